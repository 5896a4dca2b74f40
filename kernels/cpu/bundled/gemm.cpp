// The dense products of a library without oneDNN: those in f32 are gemm_f32.h's as ever, those in bf16 run on
// AVX512_BF16's instructions or ARM's. AMX is oneDNN's alone. A product has nothing to make beforehand, so there is no
// cache, no lock and no scratch memory for bf16; and nothing here depends on how many rows or columns a
// product has but where it stops.
#include "kernels/cpu/gemm.h"

#include <cassert>

#include "kernels/cpu/bundled/gemm_bf16.h"

namespace wi::cpu {

struct Gemm::Primitive {};

void Gemm::prepare() {}

std::shared_ptr<const Gemm> Gemm::get(const GemmShape& shape) {
  return std::make_shared<const Gemm>(shape, nullptr);
}

Gemm::Gemm(const GemmShape& shape, std::unique_ptr<Primitive> primitive)
    : shape_(shape),
      primitive_(std::move(primitive)),
      packing_{shape.k, shape.n, shape.type == DType::f32 ? 0 : GemmBf16::kWidth} {}
Gemm::~Gemm() = default;

const Packing& Gemm::packing() const { return packing_; }

size_t Gemm::scratch_bytes() const { return shape_.type == DType::f32 ? in_f32().scratch_bytes() : 0; }

void Gemm::run(const void* a, const void* b, float* c, std::byte* scratch) const {
  if (shape_.type == DType::f32)
    return in_f32().run(static_cast<const float*>(a), static_cast<const float*>(b), c, scratch);
  assert(has_fast_bf16());
  const GemmBf16 product{packing_, shape_.m, shape_.accumulate};
  product.run(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), c);
}

GemmF32 Gemm::in_f32() const {
  return {shape_.m, shape_.n, shape_.k, shape_.b_transposed, shape_.accumulate};
}

bool has_fast_bf16() {
  static const bool fast = GemmBf16::supported();
  return fast;
}

bool has_fast_bf16_tiles() { return false; }

}  // namespace wi::cpu
