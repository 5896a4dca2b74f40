#include "kernels/cpu/gemm.h"

#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_tiles.h"

namespace wi::cpu {
namespace {

// Whether kernels may use what these instructions are part of: a bench or a test may be held to less.
bool may_use_bf16() { return !HWY_ARCH_X86 || (hwy::SupportedTargets() & HWY_AVX3) != 0; }

enum class Choice { none, bf16, f32 };
Choice choice = Choice::none;

}  // namespace

void Gemm::prepare() {
  if (has_fast_bf16_tiles()) GemmTiles::prepare();
}

Gemm Gemm::get(const GemmShape& shape) {
  const bool tiles = shape.type == DType::bf16 && has_fast_bf16_tiles();
  return {shape, tiles ? GemmTiles::get(shape) : nullptr};
}

Gemm::Gemm(const GemmShape& shape, std::shared_ptr<const GemmTiles> tiles)
    : shape_(shape),
      tiles_(std::move(tiles)),
      packing_(tiles_ ? tiles_->packing()
                      : Packing{shape.k, shape.n, shape.type == DType::f32 ? 0 : GemmBf16::kWidth}) {}

size_t Gemm::scratch_bytes() const {
  if (tiles_) return tiles_->scratch_bytes();
  return shape_.type == DType::f32 ? in_f32().scratch_bytes() : 0;
}

void Gemm::run(const void* a, const void* b, float* c, std::byte* scratch) const {
  if (tiles_) return tiles_->run(a, b, c, scratch);
  if (shape_.type == DType::f32)
    return in_f32().run(static_cast<const float*>(a), static_cast<const float*>(b), c, scratch);
  const GemmBf16 product{packing_, shape_.m, shape_.accumulate};
  product.run(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), c);
}

GemmF32 Gemm::in_f32() const {
  return {shape_.m, shape_.n, shape_.k, shape_.b_transposed, shape_.accumulate};
}

bool has_fast_bf16() {
  if (choice != Choice::none) return choice == Choice::bf16;
  static const bool fast = has_fast_bf16_tiles() || (GemmBf16::fast() && may_use_bf16());
  return fast;
}

bool has_fast_bf16_tiles() {
  static const bool fast = GemmTiles::supported() && may_use_bf16();
  return fast && choice != Choice::f32;
}

void choose_bf16(bool wanted) { choice = wanted && GemmBf16::supported() ? Choice::bf16 : Choice::f32; }

}  // namespace wi::cpu
