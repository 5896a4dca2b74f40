// f32, f16 and bf16 in memory as f32 vectors and back, rounded to nearest even, right for subnormals,
// infinities and NaN on every instruction set (Highway's own conversions are not before F16C, and its bf16
// ones truncate). Included once per target by the kernels of this folder.
#if defined(WI_KERNELS_CPU_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_FLOATS_INL_H_
#undef WI_KERNELS_CPU_FLOATS_INL_H_
#else
#define WI_KERNELS_CPU_FLOATS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x86 before F16C has no conversion instruction; Highway emulates it for finite numbers, and truncates.
#if HWY_ARCH_X86 && (HWY_TARGET >= HWY_SSE4 || defined(HWY_DISABLE_F16C))
constexpr bool kEmulatesF16 = true;
#else
constexpr bool kEmulatesF16 = false;
#endif

// Lanes(d) numbers from p, which needs no alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::bfloat16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> FromF16Bits(D d, hn::Vec<hn::Rebind<uint16_t, D>> bits) {
  auto value = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
  if constexpr (kEmulatesF16) {
    const hn::RebindToUnsigned<D> du;
    const auto exponent = hn::And(hn::PromoteTo(du, bits), hn::Set(du, 0x7C00));
    const auto special = hn::IfThenElseZero(hn::Eq(exponent, hn::Set(du, 0x7C00)), hn::Set(du, 0x7F800000));
    value = hn::BitCast(d, hn::Or(hn::BitCast(du, value), special));
  }
  return value;
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::float16_t* p) {
  return FromF16Bits(d, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(p)));
}

template <class D>
HWY_INLINE void StoreFloats(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}

template <class D>
HWY_INLINE void StoreFloats(D, hn::Vec<D> v, hwy::bfloat16_t* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto chosen = hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, chosen), d16, reinterpret_cast<uint16_t*>(p));
}

template <class D>
HWY_INLINE void StoreFloats(D d, hn::Vec<D> v, hwy::float16_t* p) {
  if constexpr (!kEmulatesF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, p);
  } else {
    // Signed comparisons and sums: the sign bit is taken off first.
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(di, v);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
    // Normal: rebias the exponent (127 to 15) and round away 13 bits of the mantissa.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
    const auto rebias = hn::Set(di, 0xFFF - ((127 - 15) << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, rebias), odd));
    // Subnormal: adding 0.5 leaves the rounded result in the low bits of the sum.
    const auto half = hn::Set(d, 0.5f);
    const auto shifted = hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half));
    const auto subnormal = hn::Sub(shifted, hn::BitCast(di, half));
    const auto infinity = hn::Set(di, 0x7C00);
    const auto nan = hn::Set(di, 0x7E00);
    auto out = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, (127 - 14) << 23)), subnormal, normal);
    out = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, (127 + 16) << 23)), out, infinity);
    out = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), nan, out);
    hn::StoreU(hn::DemoteTo(d16, hn::Or(out, sign)), d16, reinterpret_cast<uint16_t*>(p));
  }
}

// One f16 number. It goes through registers: a vector load of bytes just stored one by one would stall.
HWY_INLINE float LoadF16(const uint8_t* p) {
  const hn::CappedTag<float, 4> d;
  uint16_t bits;
  hwy::CopyBytes<2>(p, &bits);
  return hn::GetLane(FromF16Bits(d, hn::Set(hn::Rebind<uint16_t, decltype(d)>(), bits)));
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_FLOATS_INL_H_
