// What the tests of dense products and of attention over chunks share: both go through Gemm, and in
// bf16 through oneDNN or (WI_TEST_OWN_GEMM) through the products that a bundled library has.
#pragma once

#include <chrono>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#include "kernels/cpu/gemm.h"
#include "src/memory/workers.h"
#include "tests/test.h"

namespace wi::test {

// The ABI promises an end within 100 ms of cancelling; half a second is for loaded machines.
constexpr std::chrono::milliseconds kEndsSoon{500};

// Runs an operation that takes seconds and cancels it after 50 ms.
template <class Operation>
void assert_ends_soon_when_cancelled(Operation operation) {
  using Clock = std::chrono::steady_clock;
  Workers workers(2);
  std::atomic<bool> cancel{false};
  Clock::time_point cancelled;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cancelled = Clock::now();
    cancel = true;
  });
  try {
    workers.run(&cancel, operation);
  } catch (const Error&) {  // whoever runs the loop may say that it was cancelled
  }
  const Clock::time_point end = Clock::now();
  canceller.join();
  assert_in_time(end - cancelled < kEndsSoon);
}

// Runs the tests; where the processor multiplies bf16, the program starts over with a oneDNN that does so
// without AMX, and once more with one that has f32 alone.
template <size_t kCount>
int run_with_and_without_bf16(const CMUnitTest (&tests)[kCount], char** arguments) {
#if WI_TEST_OWN_GEMM
  (void)arguments;
  std::printf("own products, fast bf16: %s\n", cpu::has_fast_bf16() ? "yes" : "no");
  return cmocka_run_group_tests(tests, nullptr, nullptr);
#else
  constexpr const char* kSetting = "DNNL_MAX_CPU_ISA";
  const char* isa = std::getenv(kSetting);
  std::printf("oneDNN's instructions: %s, fast bf16: %s\n", isa ? isa : "all",
              cpu::has_fast_bf16() ? "yes" : "no");
  const int failures = cmocka_run_group_tests(tests, nullptr, nullptr);
  const char* less = isa ? "AVX2" : "AVX512_CORE_BF16";
  if (failures == 0 && cpu::has_fast_bf16() && setenv(kSetting, less, 1) == 0) {
    std::fflush(nullptr);
    execv("/proc/self/exe", arguments);
  }
  return failures;
#endif
}

}  // namespace wi::test
