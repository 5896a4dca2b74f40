// What a call finds around it and must not take over: the host thread's floating-point environment, and the
// process itself, which after a fork() is not the one that the handles were made in.
#pragma once

#include <cfenv>
#include <cstdint>

namespace wi {

// While it lives, the calling thread computes as C starts out: to nearest, with denormals, nothing trapped.
// Then it is as it was, flags too: a game that rounds upwards gets the same tokens and goes on as before.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

// Forks that lie between the process which loaded this library and the calling one. A child has its parent's
// memory but none of its threads, and locks as they were at that instant: what was made under another count
// must not be used.
uint32_t fork_count();

// Has the C library set up that forks are counted, or WI_E_MEMORY. To be called before the first handle is made.
void prepare_process();

}  // namespace wi
