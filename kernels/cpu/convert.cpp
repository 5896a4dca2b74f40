// f32 to and from the KV cache's types: to_kv rounds to nearest even.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

template <class In, class Out>
void Convert(const In* in, Out* out, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreFloats(d, LoadFloats(d, in + i), out + i);
  if (i == count) return;
  alignas(64) In in_tail[hn::MaxLanes(d)] = {};
  alignas(64) Out out_tail[hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < count; j++) hwy::CopyBytes<sizeof(In)>(in + j, in_tail + (j - i));
  StoreFloats(d, LoadFloats(d, in_tail), out_tail);
  for (int64_t j = i; j < count; j++) hwy::CopyBytes<sizeof(Out)>(out_tail + (j - i), out + j);
}

void ToF16(const float* in, void* out, int64_t n) { Convert(in, static_cast<hwy::float16_t*>(out), n); }
void ToBf16(const float* in, void* out, int64_t n) { Convert(in, static_cast<hwy::bfloat16_t*>(out), n); }
void FromF16(const void* in, float* out, int64_t n) {
  Convert(static_cast<const hwy::float16_t*>(in), out, n);
}
void FromBf16(const void* in, float* out, int64_t n) {
  Convert(static_cast<const hwy::bfloat16_t*>(in), out, n);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>

namespace wi::cpu {

HWY_EXPORT(ToF16);
HWY_EXPORT(ToBf16);
HWY_EXPORT(FromF16);
HWY_EXPORT(FromBf16);

void to_kv(const float* in, DType kv, void* out, int64_t count) {
  if (kv == DType::f16) return HWY_DYNAMIC_DISPATCH(ToF16)(in, out, count);
  if (kv == DType::bf16) return HWY_DYNAMIC_DISPATCH(ToBf16)(in, out, count);
  if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

void from_kv(const void* in, DType kv, float* out, int64_t count) {
  if (kv == DType::f16) return HWY_DYNAMIC_DISPATCH(FromF16)(in, out, count);
  if (kv == DType::bf16) return HWY_DYNAMIC_DISPATCH(FromBf16)(in, out, count);
  if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace wi::cpu
#endif
