// Weights of any type as f32, bit for bit as the gguf package's reference does: for embeddings, for tests,
// and wherever a row is wanted whole.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dequantize.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// out = scales[sub-block] * q + mins[sub-block], for the 32 weights of a group.
template <class Q, int group, int sub_size>
HWY_INLINE void UnpackGroup(const uint8_t* block, const float* scales, const float* mins, float* out) {
  constexpr int kWidth = HWY_MIN(16, static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>())));
  const hn::CappedTag<float, kWidth> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int16_t, decltype(d)> d16;
  V16 w[kVecs];
  LoadGroup<Q, group>(block, w);
  alignas(64) int16_t q[32];
  for (int v = 0; v < kVecs; v++) hn::Store(w[v], D16(), q + v * kLanes16);
  for (int i = 0; i < 32; i += kWidth) {
    const int sub = (group * 32 + i) / sub_size;
    const auto value = hn::ConvertTo(d, hn::PromoteTo(d32, hn::Load(d16, q + i)));
    auto scaled = hn::Mul(value, hn::Set(d, scales[sub]));
    // The product is exact where there are minima (at most 21 bits), so it may be fused.
    if constexpr (Q::kHasMin) scaled = hn::Add(scaled, hn::Set(d, mins[sub]));
    hn::StoreU(scaled, d, out + group * 32 + i);
  }
}

template <class Q>
void Unpack32(const uint8_t* in, float* out, int64_t blocks) {
  for (int64_t b = 0; b < blocks; b++, in += Q::kBytes) {
    const float scale = LoadF16(in);
    const float min = Q::kHasMin ? LoadF16(in + 2) : 0;
    UnpackGroup<Q, 0, 32>(in, &scale, &min, out + b * 32);
  }
}

template <class Q>
void Unpack256(const uint8_t* in, float* out, int64_t blocks) {
  for (int64_t b = 0; b < blocks; b++, in += Q::kBytes, out += 256) {
    const float d = LoadF16(in + Q::kScaleOffset);
    alignas(16) int8_t scale8[16];
    float scales[16], mins[16] = {};
    hn::Store(hn::BitCast(hn::RebindToSigned<DScales>(), Q::Scales(in)), hn::RebindToSigned<DScales>(),
              scale8);
    for (int j = 0; j < 256 / Q::kSub; j++) scales[j] = d * static_cast<float>(scale8[j]);
    if constexpr (Q::kHasMin) {
      const float dmin = LoadF16(in + Q::kScaleOffset + 2);
      alignas(16) uint8_t min8[16];
      hn::Store(Q::Mins(in), DScales(), min8);
      for (int j = 0; j < 256 / Q::kSub; j++) mins[j] = -(dmin * static_cast<float>(min8[j]));
    }
    UnpackGroup<Q, 0, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 1, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 2, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 3, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 4, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 5, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 6, Q::kSub>(in, scales, mins, out);
    UnpackGroup<Q, 7, Q::kSub>(in, scales, mins, out);
  }
}

void Unpack(const uint8_t* in, DType type, float* out, int64_t blocks) {
  switch (type) {
    case DType::q8_0:
      return Unpack32<Q8_0>(in, out, blocks);
    case DType::q4_0:
      return Unpack32<Q4_0>(in, out, blocks);
    case DType::q4_1:
      return Unpack32<Q4_1>(in, out, blocks);
    case DType::q5_0:
      return Unpack32<Q5_0>(in, out, blocks);
    case DType::q5_1:
      return Unpack32<Q5_1>(in, out, blocks);
    case DType::q2_k:
      return Unpack256<Q2K>(in, out, blocks);
    case DType::q3_k:
      return Unpack256<Q3K>(in, out, blocks);
    case DType::q4_k:
      return Unpack256<Q4K>(in, out, blocks);
    case DType::q5_k:
      return Unpack256<Q5K>(in, out, blocks);
    case DType::q6_k:
      return Unpack256<Q6K>(in, out, blocks);
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      break;  // from_kv's
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(Unpack);

void dequantize(const void* in, DType type, float* out, int64_t count) {
  const int64_t per_block = format_of(type).elements;
  if (per_block == 1) return from_kv(in, type, out, count);
  HWY_DYNAMIC_DISPATCH(Unpack)(static_cast<const uint8_t*>(in), type, out, count / per_block);
}

}  // namespace wi::cpu
#endif
