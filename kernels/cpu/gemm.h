// One-threaded dense products: c (+)= a · b in f32 (gemm_f32.h), or in bf16 with f32 sums: by gemm_bf16.h, or where there
// is AMX by gemm_tiles.h. Used by matmul_dense and attend_chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/pack.h"
#include "kernels/types.h"

namespace wi::cpu {

// Whether bf16 products are faster than f32 ones here (AMX, AMD's AVX512_BF16, ARM's BF16).
bool has_fast_bf16();
// Whether they are so much faster that three of them take less time than one in f32 (AMX).
bool has_fast_bf16_tiles();

// For tests, before any product: whether bf16 products count as fast, where the processor has them. Those of AMX do
// while it is allowed (amx.h).
void choose_bf16(bool wanted);

// c (m, n) = or += a (m, k) · b (k, n), all dense and row-major. c is f32.
struct GemmShape {
  int64_t m, n, k;
  DType type;         // of a and b: f32 or bf16
  bool b_transposed;  // of f32, which is not packed: b is given as (n, k)
  bool accumulate = false;
};

// A product of one shape. Allocates nothing.
class Gemm {
 public:
  explicit Gemm(const GemmShape& shape);

  // How b must be laid out; the same for all shapes that differ in m and accumulate only.
  const Packing& packing() const { return packing_; }
  size_t scratch_bytes() const;
  // scratch: 64-byte aligned.
  void run(const void* a, const void* b, float* c, std::byte* scratch) const;

 private:
  GemmF32 in_f32() const;

  GemmShape shape_;
  Packing packing_;
};

}  // namespace wi::cpu
