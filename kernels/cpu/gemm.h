// One-threaded dense products through oneDNN: c (+)= a · b in f32 or bf16 with f32 sums. The runtime's own
// tasks call these, so oneDNN is kept from waking a thread pool of its own. Used by matmul_dense and
// attend_chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/pack.h"
#include "kernels/types.h"

namespace wi::cpu {

// Whether bf16 products are faster than f32 ones here (AVX512_BF16 or AMX).
bool has_fast_bf16();
// Whether they are so much faster that three of them take less time than one in f32 (AMX).
bool has_fast_bf16_tiles();

// c (m, n) = or += a (m, k) · b (k, n), all dense and row-major: anything else makes oneDNN 2.6 leave its
// fast kernels. c is f32.
struct GemmShape {
  int64_t m, n, k;
  DType type;         // of a and b: f32 or bf16
  bool b_transposed;  // without packing: b is given as (n, k)
  bool accumulate = false;

  bool operator==(const GemmShape&) const = default;
};

// A product of one shape, ready to run. It belongs to the thread that asked for it.
class Gemm {
 public:
  // From this thread's cache of the shapes it used last; compiling a new shape takes about a millisecond.
  static std::shared_ptr<const Gemm> get(const GemmShape& shape);

  // How b must be laid out; the same for all shapes that differ in m and accumulate only.
  const Packing& packing() const;
  size_t scratch_bytes() const;
  // scratch: 64-byte aligned.
  void run(const void* a, const void* b, float* c, std::byte* scratch) const;

  struct Plan;
  explicit Gemm(std::unique_ptr<Plan> plan);
  ~Gemm();

 private:
  std::unique_ptr<Plan> plan_;
};

}  // namespace wi::cpu
