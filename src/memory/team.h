// Fork and join in about half a microsecond: a decode step does a hundred or more parallel loops of some
// tens of microseconds each, so helpers stay around and claim tasks from one atomic counter instead
// of being woken, handed a task object and put to sleep each time. Workers supplies the threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>

#include "kernels/types.h"

namespace wi {

class Team {
 public:
  // How long a helper waits for the next loop before it leaves, and after what time it leaves anyway, to look
  // whether another caller wants it. Calling it back costs about 2 µs while the thread is awake and 20–50 µs
  // once it sleeps.
  static constexpr std::chrono::microseconds kLinger{300};
  static constexpr std::chrono::milliseconds kStint{5};

  explicit Team(int workers) : share_(int64_t{4} * workers) {}

  // By the owner, one thread at a time: runs body for every task, together with the helpers that are or
  // come in. publish() first, then recruit, then finish(). When finish() returns or throws, no body runs.
  // The first exception of a body is rethrown; the tasks that were not begun by then are skipped.
  void publish(int64_t tasks, Stream::Body body, void* context, const std::atomic<bool>* cancel);
  void finish();

  // By a helper, under a worker number that no other thread has meanwhile (not 0, which is the owner's).
  void serve(int worker);

  bool has_work() const { return unclaimed_.load(std::memory_order_seq_cst) > 0; }

  // Claims and runs tasks until none is unclaimed; false if there was none.
  bool work(int worker);

 private:
  void execute(int64_t first, int64_t count, int worker) noexcept;

  // What a loop is. Written by the owner while nothing is unclaimed or running; read after a claim.
  struct Loop {
    Stream::Body body = nullptr;
    void* context = nullptr;
    const std::atomic<bool>* cancel = nullptr;
    int64_t tasks = 0;
  };

  // One line for what a claim touches, another for the count that finish() watches.
  alignas(64) std::atomic<int64_t> unclaimed_{0};
  Loop loop_;
  const int64_t share_;  // a claim takes 1/share of what is left, at least one task
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<int64_t> finished_{0};
};

}  // namespace wi
