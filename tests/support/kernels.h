// What tests of CPU kernels share: every instruction set in turn, bf16 rounding the plain way, random
// numbers, and the number of threads this process has.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <random>
#include <vector>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace wi::test {

// Calls f once for each instruction set that was compiled and that this processor has.
template <class F>
void for_each_simd(F&& f) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    f(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

inline uint16_t to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline std::vector<float> normal_floats(std::mt19937_64& random, size_t count, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline int thread_count() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) count += entry.exists();
  return count;
}

}  // namespace wi::test
