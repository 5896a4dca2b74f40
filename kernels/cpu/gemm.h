// One-threaded dense products: c (+)= a · b in f32 (gemm_f32.h), or in bf16 with f32 sums: by gemm_bf16.h, or where there
// is AMX by gemm_tiles.h. Used by matmul_dense and attend_chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/pack.h"
#include "kernels/types.h"

namespace wi::cpu {

// Whether bf16 products are faster than f32 ones here (AMX, AMD's AVX512_BF16, ARM's BF16).
bool has_fast_bf16();
// Whether they are so much faster that three of them take less time than one in f32 (AMX).
bool has_fast_bf16_tiles();
// For tests, before any product: whether bf16 products count as fast, where the processor has them. AMX stays if so.
void choose_bf16(bool wanted);

// c (m, n) = or += a (m, k) · b (k, n), all dense and row-major: anything else makes oneDNN 2.6 leave its
// fast kernels for bf16. c is f32.
struct GemmShape {
  int64_t m, n, k;
  DType type;         // of a and b: f32 or bf16
  bool b_transposed;  // without packing: b is given as (n, k)
  bool accumulate = false;

  bool operator==(const GemmShape&) const = default;
};

class GemmTiles;

// A product of one shape, ready to run. It belongs to the thread that asked for it.
class Gemm {
 public:
  // What a process makes once, before its threads make products: oneDNN's own variables, which go at exit(). Those that
  // an engine's thread made would go first of all, under that thread. Milliseconds, the first time; nothing without AMX.
  static void prepare();

  // Where there is AMX, bf16's are from this thread's cache of the shapes it used last; oneDNN takes about a
  // millisecond to compile a new one. From exit() on, what is not in the cache is Ending.
  static Gemm get(const GemmShape& shape);

  // How b must be laid out; the same for all shapes that differ in m and accumulate only.
  const Packing& packing() const { return packing_; }
  size_t scratch_bytes() const;
  // scratch: 64-byte aligned.
  void run(const void* a, const void* b, float* c, std::byte* scratch) const;

 private:
  Gemm(const GemmShape& shape, std::shared_ptr<const GemmTiles> tiles);
  GemmF32 in_f32() const;

  GemmShape shape_;
  std::shared_ptr<const GemmTiles> tiles_;  // null: not by AMX
  Packing packing_;
};

}  // namespace wi::cpu
