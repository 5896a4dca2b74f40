// The functions that C calls back, each of which hands on to Go: see callback.go.
#pragma once

#include <waveinfer.h>

// From here on the calling thread's callbacks belong to this call, a cgo.Handle; 0: to none.
void wi_go_begin_callbacks(uintptr_t call);

// user is not used: these belong to the call that the thread is in.
int32_t wi_go_progress(void* user, uint64_t done, uint64_t total);
int32_t wi_go_read(void* user, uint64_t offset, void* to, uint64_t count);
int32_t wi_go_write(void* user, const void* from, uint64_t count);

// user points to a cgo.Handle.
int32_t wi_go_logits(void* user, float* logits, uint64_t vocab);
void wi_go_log(void* user, int32_t level, const char* message);
void wi_go_log_release(void* user);
void wi_go_notify(void* user);
