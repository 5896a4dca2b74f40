/* The loops of decode_step.rs in C, with a runtime of their own, for bench.sh to build and the benchmark to load. */
#include <time.h>
#include <waveinfer.h>

static wi_error error = {.struct_size = sizeof error};
static wi_session* session;

const char* c_open(const char* path, const int32_t* tokens, uint64_t count) {
  const wi_runtime_params params = {.struct_size = sizeof params, .threads = 1};
  wi_runtime* runtime;
  wi_model* model;
  const int failed = wi_runtime_create(&params, &runtime, &error) ||
                     wi_model_open(runtime, path, NULL, NULL, &model, &error) ||
                     wi_session_create(model, NULL, &session, &error) ||
                     wi_session_prefill(session, tokens, count, NULL, NULL, &error);
  return failed ? error.message : NULL;
}

/* Of this thread, which does all the work: what else the machine is busy with does not count. */
uint64_t c_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nanoseconds of each step behind the first `tokens` tokens; the sum of what the events say, so that they are looked at, or -1. */
int64_t c_decode(uint64_t tokens, uint64_t steps, uint64_t* ns_out) {
  wi_event event = {.struct_size = sizeof event};
  int64_t sum = 0;
  if (wi_session_truncate(session, tokens, &error)) return -1;
  for (uint64_t i = 0; i < steps; i++) {
    const uint64_t start = c_now_ns();
    if (wi_session_decode(session, NULL, &event, &error)) return -1;
    sum += event.token + (int64_t)event.text_length;
    ns_out[i] = c_now_ns() - start;
  }
  return sum;
}

/* Nanoseconds of so many calls that do next to nothing. */
uint64_t c_calls(uint64_t calls) {
  const uint64_t start = c_now_ns();
  for (uint64_t i = 0; i < calls; i++) {
    uint64_t count;
    wi_session_tokens(session, NULL, 0, &count, &error);
  }
  return c_now_ns() - start;
}
