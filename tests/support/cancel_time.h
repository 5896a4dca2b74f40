// How long a call goes on after it was cancelled: in time that its thread worked, so that what else a machine
// does meanwhile does not count.
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <pthread.h>
#include <thread>

#include "in_time.h"
#include "src/error.h"

namespace wi::test {

inline std::chrono::nanoseconds time_worked(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Milliseconds from setting the flag, so long after the call has begun, to its end as cancelled; negative: it
// had ended before.
inline double milliseconds_once_cancelled(const std::function<void(const std::atomic<bool>*)>& call,
                                          std::chrono::milliseconds after) {
  std::atomic<bool> flag{false}, given_up{false}, reading{true};
  std::chrono::nanoseconds ended{};
  std::thread working([&] {
    try {
      call(&flag);
    } catch (const Error& error) {
      given_up = error.code() == WI_E_CANCELLED;
    }
    ended = time_worked(CLOCK_THREAD_CPUTIME_ID);
    while (reading) std::this_thread::yield();  // the thread's clock is read until then
  });
  clockid_t clock{};
  const bool has_clock = pthread_getcpuclockid(working.native_handle(), &clock) == 0;
  std::this_thread::sleep_for(after);
  const std::chrono::nanoseconds fired = has_clock ? time_worked(clock) : std::chrono::nanoseconds(0);
  flag = true;
  reading = false;
  working.join();
  return given_up ? std::chrono::duration<double, std::milli>(ended - fired).count() : -1;
}

// The least of the tries that it needs: what a virtual machine's host takes of its thread counts as worked.
inline double milliseconds_to_cancel(const std::function<void(const std::atomic<bool>*)>& call,
                                     std::chrono::milliseconds after) {
  return least_of_tries(kCancelMs, [&] { return milliseconds_once_cancelled(call, after); });
}

}  // namespace wi::test
