// When what a step may still be looking at can go. Each step has a number from its beginning to its end; what
// is taken out of sight gets the number of that moment, and may be used anew once no older step is left. So
// steps of any number of sessions run side by side without a lock around what they read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace wi {

// Thread-safe.
class Epochs {
 public:
  // A step begins; throws std::bad_alloc. It ends with leave().
  uint64_t enter() {
    std::lock_guard lock(mutex_);
    steps_.push_back(clock_ + 1);
    return ++clock_;
  }
  void leave(uint64_t step) noexcept {
    std::lock_guard lock(mutex_);
    steps_.erase(std::find(steps_.begin(), steps_.end(), step));
  }
  // What was taken out of sight until now has this number.
  uint64_t hide() noexcept {
    std::lock_guard lock(mutex_);
    return ++clock_;
  }
  // What was hidden under a lower number is seen by nobody.
  uint64_t oldest() const noexcept {
    std::lock_guard lock(mutex_);
    return steps_.empty() ? clock_ + 1 : steps_.front();
  }

 private:
  mutable std::mutex mutex_;
  uint64_t clock_ = 0;
  std::vector<uint64_t> steps_;  // that run, the oldest first
};

}  // namespace wi
