#include "src/memory/team.h"

#include <algorithm>
#include <cassert>
#include <thread>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Team::publish(int64_t tasks, Stream::Body body, void* context, const std::atomic<bool>* cancel) {
  assert(finished_.load(std::memory_order_relaxed) == loop_.tasks && "a loop inside a loop's body");
  loop_ = {body, context, cancel, tasks};
  finished_.store(0, std::memory_order_relaxed);
  unclaimed_.store(tasks, std::memory_order_seq_cst);
}

void Team::finish() {
  work(0);
  // The last bodies of others run now: soon over, unless their thread has lost its core.
  for (int spins = 0; finished_.load(std::memory_order_acquire) < loop_.tasks;)
    if (++spins < 2000)
      relax();
    else
      std::this_thread::yield();
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Team::serve(int worker) {
  Clock::time_point arrived = Clock::now(), busy = arrived;
  for (;;) {
    bool worked = work(worker);
    if (!worked)
      for (int i = 0; i < 32 && unclaimed_.load(std::memory_order_relaxed) <= 0; ++i) relax();
    Clock::time_point now = Clock::now();
    if (worked) busy = now;
    if (now - busy > kLinger || now - arrived > kStint) return;
  }
}

// A claim may belong to a later loop than the one whose
// count was read first; that is harmless, because the loop is looked at only after the claim, which pins it.
bool Team::work(int worker) {
  bool worked = false;
  int64_t left = unclaimed_.load(std::memory_order_relaxed);
  while (left > 0) {
    int64_t count = std::max<int64_t>(1, left / share_);
    if (!unclaimed_.compare_exchange_weak(left, left - count, std::memory_order_acquire,
                                          std::memory_order_relaxed))
      continue;
    execute(loop_.tasks - left, count, worker);
    worked = true;
    finished_.fetch_add(count, std::memory_order_release);
    left = unclaimed_.load(std::memory_order_relaxed);
  }
  return worked;
}

void Team::execute(int64_t first, int64_t count, int worker) noexcept {
  const Loop& loop = loop_;
  try {
    for (int64_t task = first; task < first + count; ++task) {
      if (loop.cancel && loop.cancel->load(std::memory_order_relaxed)) return;
      if (failed_.load(std::memory_order_relaxed)) return;
      loop.body(loop.context, task, worker);
    }
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

}  // namespace wi
