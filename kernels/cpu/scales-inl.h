// What panels and the products of blocks of 32 as stored share. A chunk is 256 inputs; in it every format is
// w = scale·q (+ min), one scale and min for each sub-block of 16 or 32 weights. So a chunk's product is, for
// one row and output and in this order,
//   part = 0;  for each sub-block: part += scale · Σ q·a;  then, with minima, for each: part += min · Σ a
//   sum += (scale of the activations) · part
// where Σ is over integers, exact and so in any order: this is what makes a row's bits the same in one row
// and in a thousand, from kernels that otherwise have nothing in common.
#if defined(WI_KERNELS_CPU_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_SCALES_INL_H_
#undef WI_KERNELS_CPU_SCALES_INL_H_
#else
#define WI_KERNELS_CPU_SCALES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

template <class Q>
constexpr bool kHasBlocks256 = Q::kBytes >= 64;

// Weights that share a scale.
template <class Q>
constexpr int SubSize() {
  if constexpr (kHasBlocks256<Q>) {
    return Q::kSub;
  } else {
    return 32;
  }
}

// Bytes of `groups` groups of 32 weights; of whole blocks.
template <class Q>
constexpr int64_t GroupsBytes(int64_t groups) {
  return kHasBlocks256<Q> ? groups / 8 * Q::kBytes : groups * Q::kBytes;
}

// The weights of one of a chunk's groups, of which kLess is still to be subtracted.
template <class Q, int group>
HWY_INLINE V8 GroupBytes(const uint8_t* chunk, int part) {
  if constexpr (kHasBlocks256<Q>) {
    return Q::template Group<group>(chunk, part);
  } else {
    return Q::template Group<0>(chunk + group * Q::kBytes, part);
  }
}

// Of each pair of signed bytes the first, and the second, as 16-bit integers.
template <class D16, class V>
HWY_INLINE hn::Vec<D16> EvenBytes(D16 d16, V bytes) {
  return hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(d16, bytes)));
}
template <class D16, class V>
HWY_INLINE hn::Vec<D16> OddBytes(D16 d16, V bytes) {
  return hn::ShiftRight<8>(hn::BitCast(d16, bytes));
}

// Of N outputs, side by side.
template <int N>
struct Scales {
  alignas(64) float scale[16][N];  // (sub-block, output)
  alignas(64) float min[16][N];
};

// Formats of blocks of 32. rows: the chunk's weights of each output.
template <class Q, int N>
HWY_INLINE void LoadScales32(const uint8_t* const (&rows)[N], int groups, Scales<N>& out) {
  const hn::CappedTag<float, N> d;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(d));
  alignas(64) uint16_t scale[8][N], min[8][N];
  for (int o = 0; o < N; o++)
    for (int g = 0; g < groups; g++) {
      hwy::CopyBytes<2>(rows[o] + g * Q::kBytes, &scale[g][o]);
      if constexpr (Q::kHasMin) hwy::CopyBytes<2>(rows[o] + g * Q::kBytes + 2, &min[g][o]);
    }
  for (int g = 0; g < groups; g++)
    for (int o = 0; o < N; o += kStep) {
      const auto* bits = reinterpret_cast<const hwy::float16_t*>(scale[g] + o);
      hn::Store(LoadFloats(d, bits), d, out.scale[g] + o);
      if constexpr (Q::kHasMin)
        hn::Store(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(min[g] + o)), d, out.min[g] + o);
    }
}

// out[j][o .. o + 8) = factor · the j-th signed byte of eight outputs' bytes; exact, for a factor has 11
// bits.
template <int kSubs, int N>
HWY_INLINE void ScaleBytes(const VScales (&bytes)[8], const float* factors, int o, float (&out)[16][N]) {
  const DScales d8;
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> lanes8;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(d));
  alignas(16) uint8_t mixed[kSubs][8];  // by sub-block
  for (int upper = 0; upper < kSubs / 8; upper++) {
    VScales x[4];
    for (int i = 0; i < 4; i++)
      x[i] = upper ? hn::InterleaveUpper(d8, bytes[i], bytes[i + 4])
                   : hn::InterleaveLower(bytes[i], bytes[i + 4]);
    const VScales even = hn::InterleaveLower(x[0], x[2]), odd = hn::InterleaveLower(x[1], x[3]);
    const VScales even4 = hn::InterleaveUpper(d8, x[0], x[2]), odd4 = hn::InterleaveUpper(d8, x[1], x[3]);
    uint8_t* to = mixed[8 * upper];
    hn::Store(hn::InterleaveLower(even, odd), d8, to);
    hn::Store(hn::InterleaveUpper(d8, even, odd), d8, to + 16);
    hn::Store(hn::InterleaveLower(even4, odd4), d8, to + 32);
    hn::Store(hn::InterleaveUpper(d8, even4, odd4), d8, to + 48);
  }
  for (int i = 0; i < 8; i += kStep) {
    const auto factor = hn::Load(d, factors + i);
    for (int j = 0; j < kSubs; j++) {
      const auto signed_bytes = hn::LoadU(lanes8, reinterpret_cast<const int8_t*>(mixed[j] + i));
      hn::Store(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, signed_bytes)), factor), d, out[j] + o + i);
    }
  }
}

// The f16 numbers at `offset` of eight blocks.
HWY_INLINE void LoadFactors(const uint8_t* const* blocks, int offset, float* out) {
  const hn::CappedTag<float, 8> d;
  alignas(16) uint16_t bits[8];
  for (int i = 0; i < 8; i++) hwy::CopyBytes<2>(blocks[i] + offset, bits + i);
  for (int i = 0; i < 8; i += static_cast<int>(hn::MaxLanes(d)))
    hn::Store(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(bits + i)), d, out + i);
}

// Formats of blocks of 256.
template <class Q, int N>
HWY_INLINE void LoadScales256(const uint8_t* const (&rows)[N], Scales<N>& out) {
  constexpr int kSubs = 256 / SubSize<Q>();
  alignas(32) float factors[8];
  VScales bytes[8];
  for (int o = 0; o < N; o += 8) {
    LoadFactors(rows + o, Q::kScaleOffset, factors);
    for (int i = 0; i < 8; i++) bytes[i] = Q::Scales(rows[o + i]);
    ScaleBytes<kSubs>(bytes, factors, o, out.scale);
    if constexpr (Q::kHasMin) {
      LoadFactors(rows + o, Q::kScaleOffset + 2, factors);
      for (float& factor : factors) factor = -factor;
      for (int i = 0; i < 8; i++) bytes[i] = Q::Mins(rows[o + i]);
      ScaleBytes<kSubs>(bytes, factors, o, out.min);
    }
  }
}

template <class Q, int N>
HWY_INLINE void LoadScales(const uint8_t* const (&rows)[N], int groups, Scales<N>& out) {
  if constexpr (kHasBlocks256<Q>) {
    LoadScales256<Q>(rows, out);
  } else {
    LoadScales32<Q>(rows, groups, out);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_SCALES_INL_H_
