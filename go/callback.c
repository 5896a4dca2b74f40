#include "callback.h"

#include "_cgo_export.h"

static _Thread_local uintptr_t current;

void wi_go_begin_callbacks(uintptr_t call) { current = call; }

int32_t wi_go_progress(void* user, uint64_t done, uint64_t total) {
  (void)user;
  return goProgress(current, done, total);
}

int32_t wi_go_read(void* user, uint64_t offset, void* to, uint64_t count) {
  (void)user;
  return goRead(current, offset, to, count);
}

int32_t wi_go_write(void* user, const void* from, uint64_t count) {
  (void)user;
  return goWrite(current, (void*)from, count);
}

int32_t wi_go_logits(void* user, float* logits, uint64_t vocab) {
  return goLogits(current, *(uintptr_t*)user, logits, vocab);
}

void wi_go_log(void* user, int32_t level, const char* message) {
  goLog(*(uintptr_t*)user, level, (char*)message);
}

void wi_go_log_release(void* user) { goLogRelease(user); }

void wi_go_notify(void* user) { goNotify(*(uintptr_t*)user); }
