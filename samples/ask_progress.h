// The progress bar of wi_ask: tokens read, tokens per second and time left, on standard error, and only if
// that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>

namespace sample {

class Progress {
 public:
  Progress();
  ~Progress();  // clears the bar's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(uint64_t done, uint64_t total);
  // A wi_progress_callback whose user pointer is a Progress.
  static int32_t on_progress(void* user, uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_drawn_;
};

}  // namespace sample
