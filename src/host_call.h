// Whose a call on the engine's thread is: the engine's own, on the sessions that tasks have; or that of a callback of
// the host's which runs there, to whom those are in use as they are to any other thread.
#pragma once

#include <utility>

#include "src/host_process.h"

namespace wi {

class EngineCall {
 public:
  EngineCall() : EngineCall(true) {}
  ~EngineCall() { here_ = before_; }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
  static bool here() { return here_; }

 protected:
  explicit EngineCall(bool engines) : before_(std::exchange(here_, engines)) {}

 private:
  const bool before_;
  static inline thread_local bool here_ = false;
};

// While one of the host's callbacks runs; the floating-point environment that it leaves goes with it.
class HostCall : private EngineCall {
 public:
  HostCall() : EngineCall(false) {}

 private:
  const DefaultFloats floats_;
};

}  // namespace wi
