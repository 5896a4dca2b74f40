// What a test goes through whose every turn is a session's life. Where a step takes twenty times as long, those that do
// most: under ASan two of the policies, and one under TSan, to which what differs between them is nothing, and where the
// processor is emulated.
#pragma once

#include <vector>

namespace wi::test {

inline std::vector<const char*> policies() {
#if defined(WI_THREAD_SANITIZED) || defined(WI_EMULATED)
  return {"wave"};
#elif defined(WI_SANITIZED)
  return {"wave", "full"};
#else
  return {"wave", "full", "blocks", "streaming"};
#endif
}

// Of sealed keys and values in fast memory.
inline std::vector<float> fast_shares() {
#if defined(WI_THREAD_SANITIZED) || defined(WI_EMULATED)
  return {0.1f};
#else
  return {0.01f, 0.1f, 0.6f};
#endif
}

}  // namespace wi::test
