// Looks at a cancel flag every few thousand bytes of work, so that a loop over a long text can ask at every
// step, and lets its caller do something else in between.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "src/error.h"

namespace wi {

class Poll {
 public:
  // flag null: never cancelled; pause null: nothing else to do, otherwise it must outlive this.
  explicit Poll(const std::atomic<bool>* flag, const std::function<void()>* pause = nullptr)
      : flag_(flag), pause_(pause) {}

  // Throws WI_E_CANCELLED soon after the flag is set.
  void operator()(size_t work) {
    left_ -= work;
    if (left_ > kInterval) look();  // below zero
  }
  bool fired() const { return flag_ && flag_->load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kInterval = 8192;
  void look() {
    left_ = kInterval;
    if (fired()) [[unlikely]]
      fail(WI_E_CANCELLED, "cancelled");
    if (pause_) (*pause_)();
  }

  const std::atomic<bool>* flag_;
  const std::function<void()>* pause_;
  size_t left_ = 0;  // 0: the first call looks
};

}  // namespace wi
