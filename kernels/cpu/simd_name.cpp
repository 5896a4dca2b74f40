// The name of the instruction set that dispatch picks, from a dispatched function itself.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_name.cpp"
#include "kernels/cpu/byte_products.h"
// After byte_products.h, which adds an instruction set.
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/byte_extension.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/cpu.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

const char* Name() {
  if constexpr (kMayHaveMore)
    if (has_byte_extension()) return HWY_ARCH_ARM_A64 ? "NEON_I8MM" : "AVX2_VNNI";
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(Name);

const char* simd_name() { return HWY_DYNAMIC_DISPATCH(Name)(); }

}  // namespace wi::cpu
#endif
