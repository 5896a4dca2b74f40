// A cancel token: one flag, set from any thread, polled between tasks of every parallel loop.
#pragma once

#include <atomic>

#include "kernels/types.h"
#include "src/error.h"
#include "waveinfer.h"

namespace wi {

struct CancelToken {
  std::atomic<bool> flag{false};
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
  if (callback && callback(user, done, total) != 0)
    fail(WI_E_CANCELLED, "cancelled by the progress callback");
}

}  // namespace wi
