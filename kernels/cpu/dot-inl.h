// One row of weights, as stored, times R rows of activations: the inner loop of decoding. Each piece of
// weights is loaded and unpacked once for all R rows. The operations that make one row's result do not
// depend on R, so a row's result is the same in every batch.
#if defined(WI_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_DOT_INL_H_
#undef WI_KERNELS_CPU_DOT_INL_H_
#else
#define WI_KERNELS_CPU_DOT_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/floats-inl.h"
#include "kernels/cpu/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

using D32 = hn::RepartitionToWide<D16>;  // sums of pairs of products
using DF = hn::Rebind<float, D32>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;

// The hardware's prefetchers stop at page ends; this far ahead the next page is on its way in time.
constexpr int64_t kAheadBytes = 2048;
HWY_INLINE void PrefetchWeights(const uint8_t* p) { hwy::Prefetch(p + kAheadBytes); }

// sums[r] += the 32 weights w times activations of row r.
template <int R>
HWY_INLINE void MultiplyGroup(const V16 (&w)[kVecs], const int16_t* const (&a)[R], int64_t at,
                              V32 (&sums)[R]) {
  for (int r = 0; r < R; r++) {
    V32 odd = hn::Zero(D32());  // on instruction sets that keep odd pairs apart
    for (int v = 0; v < kVecs; v++) {
      const V16 x = hn::Load(D16(), a[r] + at + v * kLanes16);
      sums[r] = hn::ReorderWidenMulAccumulate(D32(), w[v], x, sums[r], odd);
    }
    sums[r] = hn::Add(sums[r], odd);
  }
}

// Formats with a scale of its own for each 32 weights. The scales of 16 blocks are converted together.
template <class Q, int R>
HWY_INLINE void Dot32(const uint8_t* weights, const Activations& in, int64_t row, float* out) {
  const hn::CappedTag<float, 16> d_scale;
  constexpr int kScaleLanes = static_cast<int>(hn::MaxLanes(d_scale));
  const int64_t blocks = in.cols / 32;
  const int16_t* a[R];
  VF acc[R];
  hn::Vec<decltype(d_scale)> min_acc[R];
  for (int r = 0; r < R; r++) {
    a[r] = in.quants + (row + r) * in.groups * 32;
    acc[r] = hn::Zero(DF());
    min_acc[r] = hn::Zero(d_scale);
  }
  alignas(64) hwy::float16_t d[16] = {}, m[16] = {};
  alignas(64) float scales[R][16];
  for (int64_t first = 0; first < blocks; first += 16) {
    const int count = static_cast<int>(HWY_MIN(blocks - first, 16));
    const uint8_t* block = weights + first * Q::kBytes;
    if (count < 16) {
      hwy::ZeroBytes<sizeof(d)>(d);
      hwy::ZeroBytes<sizeof(m)>(m);
    }
    for (int i = 0; i < count; i++) {
      hwy::CopyBytes<2>(block + i * Q::kBytes, d + i);
      if constexpr (Q::kHasMin) hwy::CopyBytes<2>(block + i * Q::kBytes + 2, m + i);
    }
    for (int l = 0; l < 16; l += kScaleLanes) {
      const auto weight_scale = LoadFloats(d_scale, d + l);
      const auto weight_min = LoadFloats(d_scale, m + l);
      for (int r = 0; r < R; r++) {
        const int64_t at = (row + r) * in.groups + first + l;
        hn::Store(hn::Mul(weight_scale, hn::Load(d_scale, in.scales + at)), d_scale, scales[r] + l);
        if constexpr (Q::kHasMin)
          min_acc[r] = hn::MulAdd(weight_min, hn::Load(d_scale, in.sums32 + at), min_acc[r]);
      }
    }
    for (int i = 0; i < count; i++, block += Q::kBytes) {
      PrefetchWeights(block);
      V16 w[kVecs];
      LoadGroup<Q, 0>(block, w);
      V32 sums[R];
      for (int r = 0; r < R; r++) sums[r] = hn::Zero(D32());
      MultiplyGroup<R>(w, a, (first + i) * 32, sums);
      for (int r = 0; r < R; r++)
        acc[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), hn::Set(DF(), scales[r][i]), acc[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    out[r] = hn::GetLane(hn::SumOfLanes(DF(), acc[r]));
    if constexpr (Q::kHasMin) out[r] += hn::GetLane(hn::SumOfLanes(d_scale, min_acc[r]));
  }
}

// One group of a block of 256: its weights times their sub-block's scale are still 16-bit integers.
// scales: each one twice in 32 bits, so that one load spreads it.
template <class Q, int R, int group>
HWY_INLINE void Multiply256(const uint8_t* block, const uint32_t* scales, const int16_t* const (&a)[R],
                            int64_t at, V32 (&sums)[R]) {
  const hn::RebindToUnsigned<D32> du;
  V16 w[kVecs];
  LoadGroup<Q, group>(block, w);
  for (int v = 0; v < kVecs; v++) {
    const int sub = (group * 32 + v * kLanes16) / Q::kSub;
    auto scale = hn::Set(du, scales[sub]);
    if constexpr (Q::kSub < kLanes16)
      scale = hn::IfThenElse(hn::FirstN(du, Q::kSub / 2), scale, hn::Set(du, scales[sub + 1]));
    w[v] = hn::Mul(w[v], hn::BitCast(D16(), scale));
  }
  MultiplyGroup<R>(w, a, at + group * 32, sums);
}

// How many groups' products fit into 32 bits: two products a lane and vector, |weight * scale| ≤ 4096 in
// Q6K and 1953 at most elsewhere, |activation| ≤ 32767.
template <class Q>
constexpr int kSafeGroups = std::is_same_v<Q, Q6K>&& kVecs > 1 ? 8 / kVecs : 8;

// Formats with blocks of 256 and integer scales for each kSub weights.
template <class Q, int R>
HWY_INLINE void Dot256(const uint8_t* weights, const Activations& in, int64_t row, float* out) {
  const hn::CappedTag<float, 8> d_min;
  using VMin = hn::Vec<decltype(d_min)>;
  constexpr int kMinLanes = static_cast<int>(hn::MaxLanes(d_min));
  constexpr int kSubs = 256 / Q::kSub;
  const hn::CappedTag<uint32_t, 8> d_spread;
  constexpr int kSpreadLanes = static_cast<int>(hn::MaxLanes(d_spread));
  const int64_t blocks = in.cols / 256;
  const int16_t* a[R];
  VF acc[R];
  VMin min_acc[R];
  for (int r = 0; r < R; r++) {
    a[r] = in.quants + (row + r) * in.groups * 32;
    acc[r] = hn::Zero(DF());
    min_acc[r] = hn::Zero(d_min);
  }
  for (int64_t b = 0; b < blocks; b++) {
    const uint8_t* block = weights + b * Q::kBytes;
    for (int line = 0; line < Q::kBytes; line += 64) PrefetchWeights(block + line);
    alignas(16) int8_t scale8[16];
    alignas(64) uint32_t scales[kSubs];
    Q::Scales(block, scale8);
    for (int j = 0; j < kSubs; j += kSpreadLanes) {
      const hn::Rebind<int8_t, decltype(d_spread)> d8;
      const hn::RebindToSigned<decltype(d_spread)> d32;
      const auto wide = hn::BitCast(d_spread, hn::PromoteTo(d32, hn::LoadU(d8, scale8 + j)));
      const auto low = hn::And(wide, hn::Set(d_spread, 0xFFFF));
      hn::Store(hn::Or(hn::ShiftLeft<16>(wide), low), d_spread, scales + j);
    }
    const float d = LoadF16(block + Q::kScaleOffset);
    V32 sums[R];
    for (int r = 0; r < R; r++) sums[r] = hn::Zero(D32());
    const auto flush = [&]() HWY_ATTR {
      for (int r = 0; r < R; r++) {
        const float scale = d * in.scales[(row + r) * in.groups + b * 8];
        acc[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), hn::Set(DF(), scale), acc[r]);
        sums[r] = hn::Zero(D32());
      }
    };
    constexpr int safe = kSafeGroups<Q>;
    Multiply256<Q, R, 0>(block, scales, a, b * 256, sums);
    Multiply256<Q, R, 1>(block, scales, a, b * 256, sums);
    if constexpr (safe == 2) flush();
    Multiply256<Q, R, 2>(block, scales, a, b * 256, sums);
    Multiply256<Q, R, 3>(block, scales, a, b * 256, sums);
    if constexpr (safe <= 4) flush();
    Multiply256<Q, R, 4>(block, scales, a, b * 256, sums);
    Multiply256<Q, R, 5>(block, scales, a, b * 256, sums);
    if constexpr (safe == 2) flush();
    Multiply256<Q, R, 6>(block, scales, a, b * 256, sums);
    Multiply256<Q, R, 7>(block, scales, a, b * 256, sums);
    flush();
    if constexpr (Q::kHasMin) {
      alignas(16) uint8_t mins[16];
      Q::Mins(block, mins);
      const auto dmin = hn::Set(d_min, LoadF16(block + Q::kScaleOffset + 2));
      const float* all_sums = Q::kSub == 16 ? in.sums16 : in.sums32;
      for (int j = 0; j < kSubs; j += kMinLanes) {
        const hn::Rebind<uint8_t, decltype(d_min)> d8;
        const hn::Rebind<int32_t, decltype(d_min)> d32;
        const auto wide = hn::PromoteTo(d32, hn::LoadU(d8, mins + j));
        const auto min = hn::Mul(dmin, hn::ConvertTo(d_min, wide));
        for (int r = 0; r < R; r++) {
          const float* sums_here = all_sums + (row + r) * in.groups * (32 / Q::kSub) + b * kSubs + j;
          min_acc[r] = hn::MulAdd(min, hn::Load(d_min, sums_here), min_acc[r]);
        }
      }
    }
  }
  for (int r = 0; r < R; r++) {
    out[r] = hn::GetLane(hn::SumOfLanes(DF(), acc[r]));
    if constexpr (Q::kHasMin) out[r] -= hn::GetLane(hn::SumOfLanes(d_min, min_acc[r]));
  }
}

// f32, f16 and bf16 weights against f32 activations. Two sums a row hide the latency of the additions.
template <class T, int R>
HWY_INLINE void DotFloats(const uint8_t* weights, const Activations& in, int64_t row, float* out) {
  const hn::ScalableTag<float> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const T* w = reinterpret_cast<const T*>(weights);
  const int64_t cols = in.cols;
  const float* a[R];
  hn::Vec<decltype(d)> even[R], odd[R];
  for (int r = 0; r < R; r++) {
    a[r] = in.values + (row + r) * cols;
    even[r] = odd[r] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
    PrefetchWeights(reinterpret_cast<const uint8_t*>(w + i));
    const auto w0 = LoadFloats(d, w + i);
    const auto w1 = LoadFloats(d, w + i + kLanes);
    for (int r = 0; r < R; r++) {
      even[r] = hn::MulAdd(w0, hn::LoadU(d, a[r] + i), even[r]);
      odd[r] = hn::MulAdd(w1, hn::LoadU(d, a[r] + i + kLanes), odd[r]);
    }
  }
  for (; i < cols; i += kLanes) {  // the rest, zeros behind it
    const int64_t count = HWY_MIN(cols - i, kLanes);
    alignas(64) T w_rest[kLanes] = {};
    alignas(64) float a_rest[kLanes] = {};
    std::memcpy(static_cast<void*>(w_rest), w + i, static_cast<size_t>(count) * sizeof(T));
    const auto w0 = LoadFloats(d, w_rest);
    for (int r = 0; r < R; r++) {
      std::memcpy(a_rest, a[r] + i, static_cast<size_t>(count) * sizeof(float));
      even[r] = hn::MulAdd(w0, hn::Load(d, a_rest), even[r]);
    }
  }
  for (int r = 0; r < R; r++) out[r] = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r])));
}

// The formats as types with one interface, for matmul_decode.cpp.
template <class T>
struct FloatDot {
  template <int R>
  static void Run(const uint8_t* weights, const Activations& in, int64_t row, float* out) {
    DotFloats<T, R>(weights, in, row, out);
  }
};
template <class Q>
struct Dot {
  template <int R>
  static void Run(const uint8_t* weights, const Activations& in, int64_t row, float* out) {
    if constexpr (Q::kBytes < 64) {
      Dot32<Q, R>(weights, in, row, out);
    } else {
      Dot256<Q, R>(weights, in, row, out);
    }
  }
};

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT_INL_H_
