/* The same steps in C, for overhead.py: nanoseconds that `steps` decode steps took, or -1. */
#include <time.h>
#include <waveinfer.h>

int64_t decode_in_c(wi_session* session, int32_t steps) {
  wi_event event = {.struct_size = sizeof event};
  wi_error error = {.struct_size = sizeof error};
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (int32_t i = 0; i < steps; i++)
    if (wi_session_decode(session, NULL, &event, &error)) return -1;
  clock_gettime(CLOCK_MONOTONIC, &after);
  return (after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
}
