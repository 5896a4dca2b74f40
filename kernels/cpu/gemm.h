// One-threaded dense products: c (+)= a · b in f32, or in bf16 with f32 sums, the latter through oneDNN (gemm.cpp)
// or, where that is not to be had or may not come along, by bundled/gemm.cpp. The runtime's own tasks call
// these, so oneDNN is kept from waking a thread pool of its own. Used by matmul_dense and attend_chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/pack.h"
#include "kernels/types.h"

namespace wi::cpu {

// Whether bf16 products are faster than f32 ones here (AVX512_BF16, AMX, ARM's BF16).
bool has_fast_bf16();
// Whether they are so much faster that three of them take less time than one in f32 (AMX).
bool has_fast_bf16_tiles();

// c (m, n) = or += a (m, k) · b (k, n), all dense and row-major: anything else makes oneDNN 2.6 leave its
// fast kernels for bf16. c is f32.
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
  // What a process makes once, before its threads make products: oneDNN's own variables, which go at exit(). Those that
  // an engine's thread made would go first of all, under that thread. Milliseconds, the first time.
  static void prepare();

  // From this thread's cache of the shapes it used last; oneDNN takes about a millisecond to compile a new
  // shape in bf16. From exit() on, what is not in the cache is Ending.
  static std::shared_ptr<const Gemm> get(const GemmShape& shape);

  // How b must be laid out; the same for all shapes that differ in m and accumulate only.
  const Packing& packing() const;
  size_t scratch_bytes() const;
  // scratch: 64-byte aligned.
  void run(const void* a, const void* b, float* c, std::byte* scratch) const;

  struct Primitive;
  Gemm(const GemmShape& shape, std::unique_ptr<Primitive> primitive);  // null for f32
  ~Gemm();

 private:
  static std::unique_ptr<Primitive> make_primitive(const GemmShape& shape);
  GemmF32 in_f32() const;

  const GemmShape shape_;
  const std::unique_ptr<Primitive> primitive_;
  const Packing packing_;
};

}  // namespace wi::cpu
