/* What a call costs in C, beside DecodeOverhead.java, which does the same: nanoseconds of one decode step, and of
 * a decode that computes nothing, which is the first one of a fork. Of many short rounds the least is printed:
 * others' work on the machine only ever adds.
 *   decode_overhead MODEL */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <waveinfer.h>

enum { kRounds = 400, kSteps = 20, kForks = 20 };

static wi_error error = {.struct_size = sizeof error};
static wi_event event = {.struct_size = sizeof event};
static char text[1 << 16];
static size_t length;

static void check(wi_status status) {
  if (status == WI_OK) return;
  fprintf(stderr, "%s: %s\n", wi_status_name(status), error.message);
  exit(1);
}

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void decode(wi_session* session, wi_cancel* cancel) {
  check(wi_session_decode(session, cancel, &event, &error));
  memcpy(text + length, event.text, event.text_length);
  length += event.text_length;
}

int main(int argc, char** argv) {
  const wi_runtime_params one = {.struct_size = sizeof one, .threads = 1};
  wi_runtime* runtime;
  wi_model* model;
  wi_session *session, *forks[kForks];
  wi_cancel* cancel;
  double step = 1e18, call = 1e18;
  if (argc != 2) return fputs("usage: decode_overhead MODEL\n", stderr), 1;
  check(wi_runtime_create(&one, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, NULL, &model, &error));
  check(wi_session_create(model, NULL, &session, &error));
  check(wi_cancel_create(&cancel, &error));
  check(wi_session_append_text(session, "In the beginning", 16, WI_TOKENIZE_ADD_BOS, NULL, NULL, &error));
  for (int round = 0; round < kRounds; round++) {
    for (int i = 0; i < kForks; i++) check(wi_session_fork(session, &forks[i], &error));
    length = 0;
    double begun = now_ns();
    for (int i = 0; i < kForks; i++) decode(forks[i], cancel);
    const double of_calls = (now_ns() - begun) / kForks;
    if (of_calls < call) call = of_calls;

    begun = now_ns();
    for (int i = 0; i < kSteps; i++) decode(forks[0], cancel);
    const double of_steps = (now_ns() - begun) / kSteps;
    if (of_steps < step) step = of_steps;
    for (int i = 0; i < kForks; i++) wi_session_release(forks[i]);
  }
  printf("%.0f %.0f\n", step, call);
  wi_cancel_release(cancel);
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  return 0;
}
