// A lock that others hold at the pace of a disk, for callers that may be cancelled meanwhile.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

namespace wi {

// poll: may be empty; throws to give up.
inline std::unique_lock<std::mutex> lock_patiently(std::mutex& mutex, const std::function<void()>& poll) {
  std::unique_lock lock(mutex, std::defer_lock);
  while (!lock.try_lock()) {
    if (poll) poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return lock;
}

}  // namespace wi
