// What the tests of dense products and of attention over chunks share: both go through Gemm.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
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

// Runs the tests with the products that the machine would take; then the program starts over with those in bf16 that are
// not AMX's, and in f32 alone.
template <size_t kCount>
int run_with_and_without_bf16(const CMUnitTest (&tests)[kCount], char** arguments) {
  constexpr const char* kSetting = "WI_TEST_PRODUCTS";
  const char* const setting = std::getenv(kSetting);
  const std::string_view products = setting ? setting : "its own";
  if (setting) cpu::choose_bf16(products == "bf16");
  std::printf("products: %s, which are in %s\n", products.data(),
              cpu::has_fast_bf16_tiles() ? "bf16 on AMX" : (cpu::has_fast_bf16() ? "bf16" : "f32"));
  const int failures = cmocka_run_group_tests(tests, nullptr, nullptr);
  const char* next = nullptr;
  if (!setting && cpu::GemmBf16::supported() && setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16", 1) == 0)
    next = "bf16";
  else if (products != "f32")
    next = "f32";
  if (failures == 0 && next && setenv(kSetting, next, 1) == 0) {
    std::fflush(nullptr);
    execv("/proc/self/exe", arguments);
  }
  return failures;
}

}  // namespace wi::test
