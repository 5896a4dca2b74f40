// How long a process of a test's may take before it is ended, as something in it waits for ever.
#pragma once

namespace wi::test {

// seconds: on this processor; an emulated one has more.
constexpr unsigned patience(unsigned seconds) {
#ifdef WI_EMULATED
  return 40 * seconds;
#else
  return seconds;
#endif
}

}  // namespace wi::test
