#include "kernels/cpu/gemm.h"

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_tiles.h"

namespace wi::cpu {
namespace {

enum class Choice { none, bf16, f32 };
Choice choice = Choice::none;

// Whether kernels may use what these instructions are part of: a bench or a test may be held to less.
bool may_use_bf16() { return !HWY_ARCH_X86 || (hwy::SupportedTargets() & HWY_AVX3) != 0; }

int64_t width(DType type) {
  if (type == DType::f32) return 0;
  return has_fast_bf16_tiles() ? GemmTiles::kWidth : GemmBf16::kWidth;
}

}  // namespace

Gemm::Gemm(const GemmShape& shape) : shape_(shape), packing_{shape.k, shape.n, width(shape.type)} {}

size_t Gemm::scratch_bytes() const { return shape_.type == DType::f32 ? in_f32().scratch_bytes() : 0; }

void Gemm::run(const void* a, const void* b, float* c, std::byte* scratch) const {
  if (shape_.type == DType::f32)
    return in_f32().run(static_cast<const float*>(a), static_cast<const float*>(b), c, scratch);
  const auto *left = static_cast<const uint16_t*>(a), *right = static_cast<const uint16_t*>(b);
  if (packing_.width == GemmTiles::kWidth)
    return GemmTiles{packing_, shape_.m, shape_.accumulate}.run(left, right, c);
  GemmBf16{packing_, shape_.m, shape_.accumulate}.run(left, right, c);
}

GemmF32 Gemm::in_f32() const {
  return {shape_.m, shape_.n, shape_.k, shape_.b_transposed, shape_.accumulate};
}

bool has_fast_bf16() {
  if (has_fast_bf16_tiles()) return true;
  if (choice != Choice::none) return choice == Choice::bf16 && GemmBf16::supported();
  static const bool fast = GemmBf16::fast() && may_use_bf16();
  return fast;
}

bool has_fast_bf16_tiles() {
  static const bool allowed = may_use_bf16();
  return allowed && has_amx_bf16();
}

void choose_bf16(bool wanted) { choice = wanted ? Choice::bf16 : Choice::f32; }

}  // namespace wi::cpu
