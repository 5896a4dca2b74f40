// One-threaded dense products in bf16 with f32 sums, of a packed right-hand matrix: c (+)= a · b.
#pragma once

#include <cstdint>

#include "kernels/cpu/pack.h"

namespace wi::cpu {

// c (m, n) = or += a (m, k) · b (k, n); a and c dense and row-major, b as `packing` says. Each number of c is
// summed up in the order of k, whatever m and n are. Allocates nothing.
struct GemmBf16 {
  static constexpr int64_t kWidth = 64;  // of the packing

  Packing packing;  // and with it k and n
  int64_t m;
  bool accumulate;

  static bool supported();  // by this processor: AVX512_BF16, ARM's BF16
  // And faster than f32. Intel's AVX512_BF16 is not: on Sapphire Rapids it does 0.6 of what f32 does
  // (tests/bench/prefill_bench).
  static bool fast();
  void run(const uint16_t* a, const uint16_t* b, float* c) const;
};

}  // namespace wi::cpu
