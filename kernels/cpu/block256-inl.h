// Formats of blocks of 256 weights, w = d·scale_j·q − dmin·min_j with integers scale_j, q and min_j: to the end
// of a block a product is one over integers, however it is come by,
//   S = Σ scale_j·q·a,  M = Σ min_j·Σ a
//   sum += (scale of the activations) · (d·S − dmin·M)
// S has up to 36 bits. It is kept in two words of 32, and at the end as 256·high + low, 0 ≤ low < 256.
#if defined(WI_KERNELS_CPU_BLOCK256_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_BLOCK256_INL_H_
#undef WI_KERNELS_CPU_BLOCK256_INL_H_
#else
#define WI_KERNELS_CPU_BLOCK256_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// So many products scale_j·q·a surely fit into 32 bits together.
template <class Q>
constexpr int64_t kSafeProducts = (int64_t{1} << 31) / (Q::kLargest * kLargestQuant);

// S of each lane, as a number: exact but for the conversion of high and the last addition.
template <class D, class V>
HWY_INLINE hn::Vec<D> FromWords256(D d, V high, V low) {
  return hn::MulAdd(hn::ConvertTo(d, high), hn::Set(d, 256), hn::ConvertTo(d, low));
}

// The same of S = 65536·high + low, low ≥ 0.
template <class D, class V>
HWY_INLINE hn::Vec<D> FromWords65536(D d, V high, V low) {
  const hn::RebindToSigned<D> d32;
  return FromWords256(d, hn::Add(hn::ShiftLeft<8>(high), hn::ShiftRight<8>(low)),
                      hn::And(low, hn::Set(d32, 255)));
}

// Of the sums of four outputs, each spread over a vector: side by side.
template <class D, class V>
HWY_INLINE hn::Vec<hn::FixedTag<int32_t, 4>> Fold(D d, V sums) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    (void)d;
    return sums;
  } else {
    const hn::Half<D> half;
    return Fold(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)));
  }
}

// ---- Scales and minima of N outputs, side by side, as integers ----

template <int N>
struct Scales256 {
  alignas(64) int16_t scale[16][2 * N];  // (sub-block, output), each twice
  alignas(64) int32_t min[16][N];
  alignas(64) float unit[N];      // d
  alignas(64) float min_unit[N];  // -dmin
};

// by_sub[j]: the j-th byte of each of eight.
template <int kSubs>
HWY_INLINE void TransposeBytes(const VScales (&bytes)[8], uint8_t (&by_sub)[kSubs][8]) {
  const DScales d8;
  for (int upper = 0; upper < kSubs / 8; upper++) {
    VScales x[4];
    for (int i = 0; i < 4; i++)
      x[i] = upper ? hn::InterleaveUpper(d8, bytes[i], bytes[i + 4])
                   : hn::InterleaveLower(bytes[i], bytes[i + 4]);
    const VScales even = hn::InterleaveLower(x[0], x[2]), odd = hn::InterleaveLower(x[1], x[3]);
    const VScales even4 = hn::InterleaveUpper(d8, x[0], x[2]), odd4 = hn::InterleaveUpper(d8, x[1], x[3]);
    uint8_t* to = by_sub[8 * upper];
    hn::Store(hn::InterleaveLower(even, odd), d8, to);
    hn::Store(hn::InterleaveUpper(d8, even, odd), d8, to + 16);
    hn::Store(hn::InterleaveLower(even4, odd4), d8, to + 32);
    hn::Store(hn::InterleaveUpper(d8, even4, odd4), d8, to + 48);
  }
}

// Each 32-bit lane's lower half in both halves.
template <class V>
HWY_INLINE V TwiceInLane(V v) {
  const hn::DFromV<V> d32;
  return hn::Or(hn::ShiftLeft<16>(v), hn::And(v, hn::Set(d32, 0xFFFF)));
}

// The f16 numbers at `offset` of N blocks, from blocks[first] on.
template <int N, class Blocks>
HWY_INLINE void LoadFactors(const Blocks& blocks, int first, int offset, float* out) {
  const hn::CappedTag<float, N> d;
  alignas(16) uint16_t bits[N];
  for (int i = 0; i < N; i++) hwy::CopyBytes<2>(blocks[first + i] + offset, bits + i);
  for (int i = 0; i < N; i += static_cast<int>(hn::MaxLanes(d)))
    hn::Store(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(bits + i)), d, out + i);
}

// rows[o]: a block of an output.
template <class Q, int N, class Rows>
HWY_INLINE void LoadScales256(const Rows& rows, Scales256<N>& out) {
  constexpr int kSubs = 256 / Q::kSub;
  const hn::CappedTag<int32_t, 8> d32;
  const hn::Repartition<int16_t, decltype(d32)> d16;
  const hn::Rebind<int8_t, decltype(d32)> d8;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(d32));
  VScales bytes[8];
  alignas(16) uint8_t by_sub[kSubs][8];
  const auto widened = [&](int sub, int i) HWY_ATTR {
    return hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(by_sub[sub] + i)));
  };
  for (int o = 0; o < N; o += 8) {
    LoadFactors<8>(rows, o, Q::kScaleOffset, out.unit + o);
    for (int i = 0; i < 8; i++) bytes[i] = Q::Scales(rows[o + i]);
    TransposeBytes<kSubs>(bytes, by_sub);
    for (int sub = 0; sub < kSubs; sub++)
      for (int i = 0; i < 8; i += kStep)
        hn::Store(hn::BitCast(d16, TwiceInLane(widened(sub, i))), d16, out.scale[sub] + 2 * (o + i));
    if constexpr (Q::kHasMin) {
      LoadFactors<8>(rows, o, Q::kScaleOffset + 2, out.min_unit + o);
      for (int i = o; i < o + 8; i++) out.min_unit[i] = -out.min_unit[i];
      for (int i = 0; i < 8; i++) bytes[i] = Q::Mins(rows[o + i]);
      TransposeBytes<kSubs>(bytes, by_sub);
      for (int sub = 0; sub < kSubs; sub++)
        for (int i = 0; i < 8; i += kStep) hn::Store(widened(sub, i), d32, out.min[sub] + o + i);
    }
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_BLOCK256_INL_H_
