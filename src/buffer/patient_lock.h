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

// For at most so long; not locked: it took longer.
inline std::unique_lock<std::mutex> lock_within(std::mutex& mutex, std::chrono::nanoseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  std::unique_lock lock(mutex, std::defer_lock);
  while (!lock.try_lock() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lock;
}

}  // namespace wi
