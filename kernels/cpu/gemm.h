// One-threaded dense products through oneDNN: c (+)= a · b in f32 or bf16 with f32 sums. The runtime's own
// tasks call these, so oneDNN is kept from waking a thread pool of its own. Used by matmul_dense and
// attend_chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/types.h"

namespace wi::cpu {

// Whether bf16 products are faster than f32 ones here (AVX512_BF16 or AMX).
bool has_fast_bf16();

// All matrices row-major; ld* is the distance between rows, in elements.
struct GemmShape {
  int64_t m, n, k;
  int64_t lda;  // a (m, k)
  int64_t ldb;  // b (k, n), or (n, k) if b_transposed
  int64_t ldc;  // c (m, n)
  DType type;   // of a and b: f32 or bf16; c is f32
  bool b_transposed = false;
  bool accumulate = false;  // c += instead of c =
  bool bias = false;        // adds a vector (n) to every row

  bool operator==(const GemmShape&) const = default;
};

// A product of one shape, ready to run. It belongs to the thread that asked for it.
class Gemm {
 public:
  // From this thread's cache of the shapes it used last; compiling a new shape takes about a millisecond.
  static std::shared_ptr<const Gemm> get(const GemmShape& shape);

  size_t scratch_bytes() const;
  // scratch: 64-byte aligned. bias: (n), null unless the shape has one.
  void run(const void* a, const void* b, float* c, const float* bias, std::byte* scratch) const;

  struct Plan;
  explicit Gemm(std::unique_ptr<Plan> plan);
  ~Gemm();

 private:
  std::unique_ptr<Plan> plan_;
};

}  // namespace wi::cpu
