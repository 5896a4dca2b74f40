// The runtime's own threads: started with it, ended with it, as many as the process may use cores, with
// per-worker scratch that grows and is kept. The host's threads and their masks are left alone. A thread that the
// system refuses is one worker less, never a failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/types.h"
#include "src/memory/own_threads.h"

namespace wi {

class Workers {
 public:
  // threads ≤ 0: every core this process may use (topology.h). bind: workers have a CPU each while they
  // work; the calling thread, which is worker 0, gets its mask back when run() returns. That is for a
  // machine the host leaves to this library; where the host runs threads of its own it gets in the way of
  // both, so it is off by default. own: what the library's threads are like; not null.
  explicit Workers(int threads, bool bind = false,
                   std::shared_ptr<const OwnThreads> own = std::make_shared<const OwnThreads>());
  // Not by one of its own threads.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const;  // that work, a caller among them
  // Threads that the system refused at the start, and its reason (errno).
  struct Refusal {
    int threads = 0;
    int error = 0;
  };
  Refusal refused() const;
  size_t scratch_bytes() const;  // of all runs

  // Runs f(stream) on this thread, as worker 0, with helpers for the stream's loops. Any number of threads
  // may be inside run() at once; each has scratch of its own for the time, and the helpers take turns at them.
  // As many as there are threads, and two at least, are kept for reuse. A loop's body must not start a loop.
  // What f or a body throws comes out here when no body runs any more, std::bad_alloc as WI_E_MEMORY; scratch
  // that cannot grow is WI_E_MEMORY too.
  template <class F>
  void run(const std::atomic<bool>* cancel, F&& f) {
    run_erased(
        cancel,
        [](void* context, const Stream& stream) {
          (*static_cast<std::remove_reference_t<F>*>(context))(stream);
        },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  void run_erased(const std::atomic<bool>* cancel, void (*call)(void*, const Stream&), void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wi
