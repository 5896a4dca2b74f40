// f32 to and from the KV cache's types: to_kv rounds to nearest even, and tells how large the numbers are, so
// that none becomes infinite unseen.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// Every vector of numbers passes through look().
template <class In, class Out, class Look>
HWY_INLINE void Convert(const In* in, Out* out, int64_t count, Look&& look) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto convert = [&](const In* from, Out* to) HWY_ATTR {
    const auto v = LoadFloats(d, from);
    look(v);
    StoreFloats(d, v, to);
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) convert(in + i, out + i);
  if (i == count) return;
  alignas(64) In in_tail[hn::MaxLanes(d)] = {};
  alignas(64) Out out_tail[hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < count; j++) hwy::CopyBytes<sizeof(In)>(in + j, in_tail + (j - i));
  convert(in_tail, out_tail);
  for (int64_t j = i; j < count; j++) hwy::CopyBytes<sizeof(Out)>(out_tail + (j - i), out + j);
}

// Magnitudes are compared as integers: so a NaN is the largest, whatever else there is.
template <class Out>
HWY_INLINE uint32_t Narrow(const float* in, Out* out, int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto largest = hn::Zero(di);
  Convert(in, out, count, [&](auto v) HWY_ATTR {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF)));
  });
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

template <class In>
HWY_INLINE void Widen(const In* in, float* out, int64_t count) {
  Convert(in, out, count, [](auto) HWY_ATTR {});
}

uint32_t ToF16(const float* in, void* out, int64_t n) {
  return Narrow(in, static_cast<hwy::float16_t*>(out), n);
}
uint32_t ToBf16(const float* in, void* out, int64_t n) {
  return Narrow(in, static_cast<hwy::bfloat16_t*>(out), n);
}
uint32_t ToF32(const float* in, void* out, int64_t n) { return Narrow(in, static_cast<float*>(out), n); }
void FromF16(const void* in, float* out, int64_t n) { Widen(static_cast<const hwy::float16_t*>(in), out, n); }
void FromBf16(const void* in, float* out, int64_t n) {
  Widen(static_cast<const hwy::bfloat16_t*>(in), out, n);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>

namespace wi::cpu {

HWY_EXPORT(ToF16);
HWY_EXPORT(ToBf16);
HWY_EXPORT(ToF32);
HWY_EXPORT(FromF16);
HWY_EXPORT(FromBf16);

uint32_t to_kv(const float* in, DType kv, void* out, int64_t count) {
  if (kv == DType::f16) return HWY_DYNAMIC_DISPATCH(ToF16)(in, out, count);
  if (kv == DType::bf16) return HWY_DYNAMIC_DISPATCH(ToBf16)(in, out, count);
  return HWY_DYNAMIC_DISPATCH(ToF32)(in, out, count);
}

void from_kv(const void* in, DType kv, float* out, int64_t count) {
  if (kv == DType::f16) return HWY_DYNAMIC_DISPATCH(FromF16)(in, out, count);
  if (kv == DType::bf16) return HWY_DYNAMIC_DISPATCH(FromBf16)(in, out, count);
  if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace wi::cpu
#endif
