// What the tests of the CPU kernels share: every instruction set in turn, random weights of any type, a
// stream of a given number of workers.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "src/memory/workers.h"
#include "test.h"

// Prints why (as printf) and fails the test.
#define fail_because(...) (std::printf(__VA_ARGS__), std::printf("\n"), _fail(__FILE__, __LINE__))

namespace wi::test {

constexpr DType kAllTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0, DType::q4_0,
                               DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k,
                               DType::q4_k, DType::q5_k, DType::q6_k};

// Calls body once for every instruction set that is compiled in and that this processor has.
template <class Body>
void on_every_target(Body&& body) {
  int tested = 0;
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t left = usable; left; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    if (std::strcmp(cpu::simd_name(), hwy::TargetName(target)) != 0)
      fail_because("asked for %s, kernels run %s", hwy::TargetName(target), cpu::simd_name());
    body();
    tested++;
  }
  hwy::SetSupportedTargetsForTest(0);
  assert_int_not_equal(tested, 0);
}

template <class Body>
void with_workers(int workers, Body&& body) {
  Workers pool(workers);
  pool.run(nullptr, body);
}

// Random weights as stored. Block bytes are random (all are valid), their f16 scales of a usual size.
inline std::vector<std::byte> random_weights(DType type, int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> out(row_bytes(type, count));
  std::normal_distribution<float> normal;
  if (format_of(type).elements == 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random) * 0.05f;
    cpu::to_kv(values.data(), type, out.data(), count);
    return out;
  }
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  int offsets[2] = {0, 0};  // of the scales in a block
  switch (type) {
    case DType::q2_k:
      offsets[0] = 80, offsets[1] = 82;
      break;
    case DType::q3_k:
      offsets[0] = offsets[1] = 108;
      break;
    case DType::q6_k:
      offsets[0] = offsets[1] = 208;
      break;
    case DType::q8_0:
    case DType::q4_0:
    case DType::q5_0:
      break;
    default:
      offsets[1] = 2;
  }
  for (size_t block = 0; block < out.size(); block += static_cast<size_t>(format_of(type).bytes)) {
    for (int offset : offsets) {
      const float scale = normal(random) * 0.01f;
      cpu::to_kv(&scale, DType::f16, out.data() + block + offset, 1);
    }
  }
  return out;
}

inline std::vector<float> random_floats(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace wi::test
