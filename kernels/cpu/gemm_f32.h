// One-threaded dense products in f32: c (+)= a · b. Allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

// c (m, n) = or += a (m, k) · b (k, n), all dense and row-major; b may be given as (n, k). Each number of c
// is summed up in the order of k, whatever m and n are.
struct GemmF32 {
  int64_t m, n, k;
  bool b_transposed, accumulate;

  size_t scratch_bytes() const;
  // scratch: 64-byte aligned.
  void run(const float* a, const float* b, float* c, std::byte* scratch) const;
};

}  // namespace wi::cpu
