// What tests of CPU kernels share: every instruction set in turn, bf16 rounding the plain way, random
// numbers, and the number of threads this process has.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "kernels/cpu/byte_extension.h"
#include "kernels/cpu/cpu.h"

namespace wi::test {

// Calls f once for each instruction set that was compiled and that this processor has, by name; what it has beyond one
// (kernels/cpu/byte_extension.h) is one more. Better ones have lower bits; a source that was not compiled for one does
// with the best below it. AVX-512 with VNNI only the sources are compiled for that ask (kernels/cpu/byte_products.h), so
// it isn't among this one's HWY_TARGETS.
template <class F>
void for_each_simd(F&& f) {
  const int64_t compiled = HWY_TARGETS | (HWY_AVX3_DL & ~int64_t{WI_DISABLED_BUT_VNNI});
  const int64_t here = hwy::SupportedTargets();
  for (int64_t left = here & compiled; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(here & ~(target - 1));
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const std::string extended = cpu::simd_name();
    if (extended.starts_with(std::string(hwy::TargetName(target)) + "_")) {
      f(extended.c_str());
      cpu::allow_byte_extension(false);
    }
    f(hwy::TargetName(target));
    cpu::allow_byte_extension(true);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
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
