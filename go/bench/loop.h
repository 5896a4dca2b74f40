// The decode loop in C, to compare Go's with.
#pragma once

#include <waveinfer.h>

// A session that has read a text, with a runtime of one thread. NULL after a failure, which error tells.
wi_session* bench_open(const char* model, const char* text, uint64_t length, wi_error* error);

// Decodes so many tokens. Each step takes nanoseconds[i], outside[i] of them outside of what the session's own
// statistics count.
wi_status bench_decode(wi_session* session, int64_t steps, int64_t* nanoseconds, int64_t* outside,
                       wi_error* error);

// Nanoseconds of all steps by the session's own statistics.
int64_t bench_counted(wi_session* session);
