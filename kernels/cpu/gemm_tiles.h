// One-threaded dense products in bf16 with f32 sums on AMX, of a packed right-hand matrix: c (+)= a · b.
#pragma once

#include <cstdint>

#include "kernels/cpu/pack.h"

namespace wi::cpu {

// c (m, n) = or += a (m, k) · b (k, n); a and c dense and row-major, b as `packing` says. Each number of c is
// summed up in the order of k, whatever m and n are. Allocates nothing. Only where there is has_amx_bf16() (amx.h).
struct GemmTiles {
  static constexpr int64_t kWidth = 32;  // of the packing

  Packing packing;  // and with it k and n
  int64_t m;
  bool accumulate;

  void run(const uint16_t* a, const uint16_t* b, float* c) const;
};

}  // namespace wi::cpu
