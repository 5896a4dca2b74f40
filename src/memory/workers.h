// The runtime's own threads: one oneTBB arena, bound by hwloc to the cores the process may use, with
// per-worker scratch that only grows. The host's threads and its own oneTBB arenas are left alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/types.h"

namespace wi {

class Workers {
 public:
  // threads ≤ 0: every core this process may use. bind: pin workers to cores.
  explicit Workers(int threads, bool bind = false);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const;
  size_t scratch_bytes() const;

  // Runs f(stream) inside the arena, so that the operations' parallel loops start without a hand-over.
  // One call at a time has the arena's scratch: others get scratch of their own, kept for reuse.
  template <class F>
  void run(const std::atomic<bool>* cancel, F&& f) {
    run_erased(cancel, [](void* context, const Stream& stream) { (*static_cast<std::remove_reference_t<F>*>(context))(stream); },
               const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  void run_erased(const std::atomic<bool>* cancel, void (*call)(void*, const Stream&), void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wi
