// A mutex that who has just let it go does not get again while others wait: for work that lets go of it again and
// again so that they need not.
#pragma once

#include <mutex>

namespace wi {

class FairMutex {
 public:
  void lock() {
    const std::lock_guard next(next_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex next_;  // of the one that waits
  std::mutex mutex_;
};

}  // namespace wi
