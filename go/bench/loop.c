#include "loop.h"

#include <time.h>

wi_session* bench_open(const char* path, const char* text, uint64_t length, wi_error* error) {
  const wi_runtime_params params = {.struct_size = sizeof params, .threads = 1};
  wi_runtime* runtime = NULL;
  wi_model* model = NULL;
  wi_session* session = NULL;
  if (!wi_runtime_create(&params, &runtime, error) &&
      !wi_model_open(runtime, path, NULL, NULL, &model, error) &&
      !wi_session_create(model, NULL, &session, error) &&
      wi_session_append_text(session, text, length, 0, NULL, NULL, error)) {
    wi_session_release(session);
    session = NULL;
  }
  wi_model_release(model);
  wi_runtime_release(runtime);
  return session;
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t bench_counted(wi_session* session) {
  wi_session_stats stats = {.struct_size = sizeof stats};
  wi_session_get_stats(session, &stats, NULL);
  return (int64_t)stats.decode_ns;
}

wi_status bench_decode(wi_session* session, int64_t steps, int64_t* nanoseconds, int64_t* outside,
                       wi_error* error) {
  wi_event event = {.struct_size = sizeof event};
  for (int64_t i = 0; i < steps; i++) {
    const int64_t before = bench_counted(session), start = now();
    const wi_status status = wi_session_decode(session, NULL, &event, error);
    nanoseconds[i] = now() - start;
    if (status) return status;
    outside[i] = nanoseconds[i] - (bench_counted(session) - before);
  }
  return WI_OK;
}
