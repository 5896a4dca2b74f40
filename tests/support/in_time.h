// For what must be done in time, wall or processor: claimed of the optimised build, whose tests that claim it run one at
// a time. Under a sanitizer, in guarded memory (runtime.h) or on an emulated processor, where things take a multiple of
// their time and tests run side by side, the call is made and its time not judged.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <limits>

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
#define assert_in_time(condition) static_cast<void>(condition)
#else
#define assert_in_time(condition) assert_true((condition) || std::getenv("WI_TEST_MEMORY"))
#endif

namespace wi::test {

#if defined(WI_SANITIZED) || defined(WI_EMULATED)
constexpr int kTries = 1;
#else
constexpr int kTries = 5;
#endif

// The least that a try took, of five or of as many as it needs to stay below the limit: a shared machine takes a
// thread's processor away now and then, and what passes then is not the call's. One where time is not judged.
template <class Try>
double least_of_tries(double limit, Try&& once) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries && least >= limit; ++i) least = std::min(least, static_cast<double>(once()));
  return least;
}

// What the header promises of a cancelled call's end, and of a callback's being called.
constexpr double kCancelMs = 100, kProgressMs = 250;

}  // namespace wi::test
