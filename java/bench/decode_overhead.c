/* What a call costs in C, beside DecodeOverhead.java, which does the same: nanoseconds of one decode step, and of
 * a decode that computes nothing, which is the first one of a fork; medians of many short rounds. Behind them the
 * tokens, for a comparison.
 *   decode_overhead MODEL ROUNDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <waveinfer.h>

enum { kSteps = 20, kForks = 20 };

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

static int compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static double median(double* of, int count) {
  qsort(of, (size_t)count, sizeof *of, compare);
  return of[count / 2];
}

static int32_t decode(wi_session* session, wi_cancel* cancel) {
  check(wi_session_decode(session, cancel, &event, &error));
  memcpy(text + length, event.text, event.text_length);
  length += event.text_length;
  return event.token;
}

int main(int argc, char** argv) {
  const wi_runtime_params one = {.struct_size = sizeof one, .threads = 1};
  wi_runtime* runtime;
  wi_model* model;
  wi_session *session, *forks[kForks];
  wi_cancel* cancel;
  int32_t tokens[kSteps];
  if (argc != 3) return fputs("usage: decode_overhead MODEL ROUNDS\n", stderr), 1;
  const int rounds = atoi(argv[2]);
  double* steps = calloc((size_t)rounds, sizeof *steps);
  double* calls = calloc((size_t)rounds, sizeof *calls);
  if (!steps || !calls) return 1;
  check(wi_runtime_create(&one, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, NULL, &model, &error));
  check(wi_session_create(model, NULL, &session, &error));
  check(wi_cancel_create(&cancel, &error));
  check(wi_session_append_text(session, "In the beginning", 16, WI_TOKENIZE_ADD_BOS, NULL, NULL, &error));
  for (int round = -rounds; round < rounds; round++) { /* those before 0 warm up */
    for (int i = 0; i < kForks; i++) check(wi_session_fork(session, &forks[i], &error));
    length = 0;
    const double begun = now_ns();
    for (int i = 0; i < kForks; i++) decode(forks[i], cancel);
    const double called = now_ns();
    for (int i = 0; i < kSteps; i++) tokens[i] = decode(forks[0], cancel);
    const double ended = now_ns();
    for (int i = 0; i < kForks; i++) wi_session_release(forks[i]);
    if (round < 0) continue;
    calls[round] = (called - begun) / kForks;
    steps[round] = (ended - called) / kSteps;
  }
  printf("%.0f %.0f 0 0 ", median(steps, rounds), median(calls, rounds));
  for (int i = 0; i < kSteps; i++) printf(i ? ",%d" : "%d", tokens[i]);
  puts("");
  free(steps);
  free(calls);
  wi_cancel_release(cancel);
  wi_session_release(session);
  wi_model_release(model);
  wi_runtime_release(runtime);
  return 0;
}
