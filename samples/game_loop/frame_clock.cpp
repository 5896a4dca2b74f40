#include "frame_clock.h"

#include <csignal>
#include <ctime>
#include <sys/resource.h>
#include <thread>

namespace game {
namespace {

volatile std::sig_atomic_t caught = 0;

double clock_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// How often this thread gave its core away by itself, to wait.
long waits() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

void FrameClock::wait_for_frame() {
  constexpr std::chrono::nanoseconds kPeriod{1'000'000'000 / 60};
  due_ += kPeriod;
  const auto now = Clock::now();
  if (due_ < now) due_ += (now - due_ + kPeriod - std::chrono::nanoseconds(1)) / kPeriod * kPeriod;
  std::this_thread::sleep_until(due_);
}

double FrameClock::since_due_ms() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - due_).count();
}

CallClock::CallClock()
    : wall_ms_(clock_ms(CLOCK_MONOTONIC)), thread_ms_(clock_ms(CLOCK_THREAD_CPUTIME_ID)), waits_(waits()) {}

double CallClock::passed_ms() const { return clock_ms(CLOCK_MONOTONIC) - wall_ms_; }

double CallClock::own_ms() const {
  return waited() ? passed_ms() : clock_ms(CLOCK_THREAD_CPUTIME_ID) - thread_ms_;
}

bool CallClock::waited() const { return waits() != waits_; }

void catch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { caught = 1; };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return caught != 0; }

}  // namespace game
