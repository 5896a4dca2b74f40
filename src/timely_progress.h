// What a prefill tells its host in between, on the thread that made the call: how far it is, again and again while a
// chunk lasts. The host's answer may end the call there, as a cancel token would.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "src/cancel.h"
#include "src/memory/breaks.h"

namespace wi {

class TimelyProgress final : public Breaks {
  using Clock = std::chrono::steady_clock;

 public:
  // A host may rely on 250 ms; a loop takes some ten milliseconds to stop.
  static constexpr std::chrono::milliseconds kInterval{100};

  // callback may be null: nothing is due then.
  TimelyProgress(wi_progress_callback callback, void* user) : callback_(callback), user_(user) {}

  explicit operator bool() const { return callback_ != nullptr; }
  // What the next reports say. done may be negative while only tokens of former calls were computed.
  void set(int64_t done, uint64_t total) {
    done_ = static_cast<uint64_t>(std::max<int64_t>(done, 0));
    total_ = total;
  }
  // Throws WI_E_CANCELLED if the host wants no more.
  void tell() {
    report_progress(callback_, user_, done_, total_);
    told_ = Clock::now();
  }

  bool due() override { return callback_ && Clock::now() - told_ >= kInterval; }
  void take() override {
    if (due()) tell();
  }

 private:
  const wi_progress_callback callback_;
  void* const user_;
  uint64_t done_ = 0, total_ = 0;
  Clock::time_point told_ = Clock::now();
};

}  // namespace wi
