// When frames are due: 60 a second, at fixed times, as a display wants them. A frame that is not done when the next
// one is due takes its place; what is lost is lost. And what calls take of a frame.
#pragma once

#include <chrono>

namespace game {

constexpr double kPeriodMs = 1000.0 / 60;
constexpr double kMostCallsMs = 2;  // of it, that the library's calls may take

class FrameClock {
 public:
  void wait_for_frame();  // sleeps until the next one is due
  double since_due_ms() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point due_ = Clock::now();
};

// What calls take of the thread that makes them, from its construction on.
class CallClock {
 public:
  CallClock();
  // All that passed.
  double passed_ms() const;
  // The same without what the system gave other programs meanwhile: the thread's own time, and all of it if a call
  // waited for something.
  double own_ms() const;
  bool waited() const;

 private:
  double wall_ms_, thread_ms_;
  long waits_;
};

void catch_interrupt();  // Ctrl-C ends the game after the frame that it met
bool interrupted();

}  // namespace game
