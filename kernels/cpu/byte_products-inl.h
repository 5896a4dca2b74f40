// Whether this instruction set adds four products of bytes to a 32-bit lane at once (AVX-512 VNNI), and whether a
// processor may do so beyond it. Compiled once per instruction set.
#if defined(WI_BYTE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_BYTE_PRODUCTS_INL_H_
#undef WI_BYTE_PRODUCTS_INL_H_
#else
#define WI_BYTE_PRODUCTS_INL_H_
#endif

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3_DL

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kByteProducts = true;

// Lookup i of sums += Σ over its four bytes of unsigned · signed, the same four signed ones for each lane. As
// an instruction and not by its intrinsic, around which GCC 12 moves and spills every sum (twice the time).
HWY_INLINE void add_byte_products(hn::Vec<hn::ScalableTag<uint8_t>> unsigned_bytes,
                                  const int32_t& signed_bytes, hn::Vec<hn::ScalableTag<int32_t>>& sums) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums.raw) : "v"(unsigned_bytes.raw), "m"(signed_bytes));
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#else

namespace wi::cpu::HWY_NAMESPACE {
constexpr bool kByteProducts = false;
}

#endif

namespace wi::cpu::HWY_NAMESPACE {
// Whether byte_extension.h may add to this instruction set.
constexpr bool kMayHaveMore = HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64;
}  // namespace wi::cpu::HWY_NAMESPACE

#endif  // per target
