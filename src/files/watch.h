// What opening a model does between two pieces of work: tells the host how far it is, which is also where a
// host's wish to stop comes in, because the function that is called throws WI_E_CANCELLED then. Loops call
// tick() as often as they like; it looks at the clock and mostly returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace wi {

// bytes of the weights looked at or copied, bytes in all (0: not known yet)
using Progress = std::function<void(uint64_t done, uint64_t total)>;

// Of one call, on one thread.
class Watch {
 public:
  // Between calls of progress, if nothing is reached: hosts are promised 250 ms, and cancelling 100 ms.
  static constexpr std::chrono::milliseconds kEvery{40};

  Watch() = default;
  explicit Watch(const Progress& progress) : progress_(progress ? &progress : nullptr) {}  // must outlive it

  void tick() {
    if (progress_ && std::chrono::steady_clock::now() - last_ >= kEvery) report();
  }
  void reached(uint64_t done, uint64_t total) {
    done_ = done;
    total_ = total;
    if (progress_) report();
  }

 private:
  void report() {
    (*progress_)(done_, total_);
    last_ = std::chrono::steady_clock::now();
  }

  const Progress* progress_ = nullptr;
  uint64_t done_ = 0, total_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

inline void tick(Watch* watch) {
  if (watch) watch->tick();
}

// At step i of a loop whose steps take less than a millisecond.
inline void tick(Watch* watch, size_t i) {
  if (i % 64 == 0) tick(watch);
}

// A copy of any length, in pieces with a tick between them.
void copy_watched(void* to, const void* from, uint64_t bytes, Watch* watch);

}  // namespace wi
