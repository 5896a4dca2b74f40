// Cancelling: one flag, set from any thread, polled between tasks of every parallel loop.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>

#include "kernels/types.h"
#include "src/error.h"
#include "src/host_call.h"
#include "waveinfer.h"

namespace wi {

// What calls poll. What has fired stays so while any of them looks: a loop that had left out a task and then saw the
// flag down would go on with what that task did not write.
struct CancelToken {
  std::atomic<bool> flag{false};
};

// A token that a host may reset, whoever is using it: calls that begin afterwards poll another one.
class ResettableCancel {
  struct Counted : CancelToken {
    int64_t users = 0;
  };

 public:
  ResettableCancel() : tokens_(2) {}

  // Any thread, and signal handlers.
  void trigger() noexcept {
    now_.load(std::memory_order_acquire)->flag.store(true, std::memory_order_relaxed);
  }
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    Counted* const now = now_.load(std::memory_order_relaxed);
    if (!now->flag.load(std::memory_order_relaxed)) return;
    Counted& next = now->users ? *unused_but(now) : *now;
    next.flag.store(false, std::memory_order_relaxed);
    now_.store(&next, std::memory_order_release);
  }

  // For the time of a call; null: it cannot be cancelled. Throws WI_E_CANCELLED where it has fired already, which a
  // call that has no step to do would not see, and std::bad_alloc.
  class Use {
   public:
    explicit Use(ResettableCancel* of) : of_(of), token_(of ? of->enter() : nullptr) {}
    ~Use() {
      if (of_) of_->leave(token_);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    operator const CancelToken*() const { return token_; }

   private:
    ResettableCancel* const of_;
    Counted* const token_;
  };

 private:
  Counted* unused_but(const Counted* token) noexcept {
    for (Counted& each : tokens_)
      if (&each != token && !each.users) return &each;
    return nullptr;
  }
  // There is always one that nobody uses besides: reset() cannot fail.
  Counted* enter() {
    const std::lock_guard lock(mutex_);
    Counted* const now = now_.load(std::memory_order_relaxed);
    if (now->flag.load(std::memory_order_relaxed)) fail(WI_E_CANCELLED, "cancelled");
    if (!unused_but(now)) tokens_.emplace_back();
    ++now->users;
    return now;
  }
  void leave(Counted* token) noexcept {
    const std::lock_guard lock(mutex_);
    --token->users;
  }

  std::mutex mutex_;
  std::deque<Counted> tokens_;  // as many as there were resets while calls went on, and two
  std::atomic<Counted*> now_{&tokens_.front()};
};

inline const std::atomic<bool>* flag_of(const CancelToken* cancel) {
  return cancel ? &cancel->flag : nullptr;
}

// After an operation: results of a cancelled stream are unspecified, so nobody may go on with them.
inline void throw_if_cancelled(const Stream& stream) {
  if (stream.cancelled()) [[unlikely]]
    fail(WI_E_CANCELLED, "cancelled");
}

// Before an operation; null: there is no token.
inline void throw_if_cancelled(const std::atomic<bool>* cancel) {
  if (cancel && cancel->load(std::memory_order_relaxed)) fail(WI_E_CANCELLED, "cancelled");
}

// Tells the host how far a call is; a callback that wants no more ends it. callback may be null.
inline void report_progress(wi_progress_callback callback, void* user, uint64_t done, uint64_t total) {
  if (!callback) return;
  const HostCall host;
  if (callback(user, done, total) != 0) fail(WI_E_CANCELLED, "cancelled by the progress callback");
}

}  // namespace wi
