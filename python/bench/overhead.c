/* The same steps in C, for overhead.py: nanoseconds that `steps` decode steps took, or -1. */
#include <poll.h>
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

/* The same by a task of the engine's, whose events are waited for by its descriptor, as an event loop does. */
int64_t decode_as_task_in_c(wi_session* session, int32_t steps) {
  wi_event events[16] = {{.struct_size = sizeof *events}};
  for (int i = 1; i < 16; i++) events[i] = events[0];
  wi_error error = {.struct_size = sizeof error};
  const wi_task_params params = {.struct_size = sizeof params, .max_tokens = (uint64_t)steps};
  struct pollfd ready = {.events = POLLIN};
  struct timespec before, after;
  wi_task* task;
  clock_gettime(CLOCK_MONOTONIC, &before);
  if (wi_task_submit(session, &params, &task, &error)) return -1;
  int failed = wi_task_get_fd(task, &ready.fd, &error);
  for (int32_t kind = WI_EVENT_TOKEN; !failed && kind == WI_EVENT_TOKEN;) {
    uint64_t count = 0;
    failed = poll(&ready, 1, -1) < 0 || wi_task_poll(task, events, 16, &count, &error);
    if (count > 0) kind = events[count - 1].kind;
  }
  wi_task_release(task);
  clock_gettime(CLOCK_MONOTONIC, &after);
  return failed ? -1 : (after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
}
