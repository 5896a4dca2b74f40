// What the tests of dense products and of attention over chunks share: both go through Gemm.
#pragma once

#include <chrono>
#include <cstdio>
#include <thread>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
#include "src/memory/workers.h"
#include "tests/support/fewer.h"
#include "tests/test.h"

namespace wi::test {

// Runs an operation that takes seconds and cancels it after 50 ms.
template <class Operation>
void assert_ends_soon_when_cancelled(Operation operation) {
  using Clock = std::chrono::steady_clock;
  Workers workers(2);
  const double took = least_of_tries(kCancelMs, [&] {
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
    return std::chrono::duration<double, std::milli>(end - cancelled).count();
  });
  std::printf("cancelled within %.1f ms\n", took);
  assert_in_time(took < kCancelMs);
}

// Runs the tests with the products that the machine would take; then, unless that takes too long, with all lesser ones
// that it has.
template <size_t kCount>
int run_with_all_products(const CMUnitTest (&tests)[kCount]) {
  int failures = 0;
  const auto run = [&](bool amx, bool bf16) {
    cpu::allow_amx(amx);
    cpu::choose_bf16(bf16);
    std::printf("products: in %s\n",
                cpu::has_fast_bf16_tiles() ? "bf16 on AMX" : (cpu::has_fast_bf16() ? "bf16" : "f32"));
    failures += cmocka_run_group_tests(tests, nullptr, nullptr);
  };
  const bool tiles = cpu::has_fast_bf16_tiles(), bf16 = cpu::GemmBf16::supported();
  if (tiles) run(true, true);
  if (bf16 && !(kFew && tiles)) run(false, true);
  if (!(kFew && (tiles || bf16))) run(false, false);
  return failures;
}

}  // namespace wi::test
