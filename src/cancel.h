// A cancel token: one flag, set from any thread, polled between tasks of every parallel loop.
#pragma once

#include <atomic>

#include "kernels/types.h"
#include "src/error.h"

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

}  // namespace wi
