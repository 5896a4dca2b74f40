// What the tests of products and element-wise kernels share: every instruction set in turn, checked; a
// stream of a given number of workers; failing with a reason.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "src/memory/workers.h"
#include "tests/support/kernels.h"
#include "tests/support/weights.h"
#include "tests/test.h"

// Prints why (as printf) and fails the test.
#define fail_because(...) (std::printf(__VA_ARGS__), std::printf("\n"), _fail(__FILE__, __LINE__))

namespace wi::test {

// Calls body once for every instruction set that is compiled in and that this processor has.
template <class Body>
void on_every_target(Body&& body) {
  int tested = 0;
  for_each_simd([&](const char* name) {
    if (std::strcmp(cpu::simd_name(), name) != 0)
      fail_because("asked for %s, kernels run %s", name, cpu::simd_name());
    body();
    tested++;
  });
  assert_int_not_equal(tested, 0);
}

template <class Body>
void with_workers(int workers, Body&& body) {
  Workers pool(workers);
  pool.run(nullptr, body);
}

inline std::vector<float> random_floats(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

template <class Allocator>
bool same_bits(const std::vector<float, Allocator>& a, const std::vector<float, Allocator>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace wi::test
