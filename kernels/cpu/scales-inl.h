// What panels and the products as stored share. A chunk is 256 inputs. Σ is over integers, exact and so in any
// order: this is what makes a row's bits the same in one row and in a thousand, from kernels that otherwise have
// nothing in common. Of blocks of 32, w = scale·q (+ min), a chunk's product is, for one row and output,
//   part = 0;  for each block: part += scale · Σ q·a;  then, with minima, for each: part += min · Σ a
//   sum += (scale of the activations) · part
// in this order; of blocks of 256, see block256-inl.h.
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

// Bytes of `groups` groups of 32 weights; of whole blocks.
template <class Q>
constexpr int64_t GroupsBytes(int64_t groups) {
  return kHasBlocks256<Q> ? groups / 8 * Q::kBytes : groups * Q::kBytes;
}

// The weights of one of a chunk's groups, of which kLess is still to be subtracted.
template <class Q, int group>
HWY_INLINE V8 GroupBytes(const uint8_t* chunk, int part) {
  if constexpr (kHasBlocks256<Q>) {
    return Q::template Group<group>(StoredBytes{chunk, part});
  } else {
    return Q::template Group<0>(StoredBytes{chunk + group * Q::kBytes, part});
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

// Of blocks of 32 of N outputs, side by side.
template <int N>
struct Scales32 {
  alignas(64) float scale[8][N];  // (block, output)
  alignas(64) float min[8][N];
};

// rows[o]: the chunk's weights of an output.
template <class Q, int N, class Rows>
HWY_INLINE void LoadScales32(const Rows& rows, int groups, Scales32<N>& out) {
  const hn::CappedTag<float, N> d;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(d));
  alignas(64) uint16_t scale[8][N], min[8][N];
  const auto copy = [&](int o, int g) HWY_ATTR {
    hwy::CopyBytes<2>(rows[o] + g * Q::kBytes, &scale[g][o]);
    if constexpr (Q::kHasMin) hwy::CopyBytes<2>(rows[o] + g * Q::kBytes + 2, &min[g][o]);
  };
  for (int o = 0; o < N; o++) {
    if (groups == 8) {  // nearly always
      for (int g = 0; g < 8; g++) copy(o, g);
    } else {
      for (int g = 0; g < groups; g++) copy(o, g);
    }
  }
  for (int g = 0; g < groups; g++)
    for (int o = 0; o < N; o += kStep) {
      const auto* bits = reinterpret_cast<const hwy::float16_t*>(scale[g] + o);
      hn::Store(LoadFloats(d, bits), d, out.scale[g] + o);
      if constexpr (Q::kHasMin)
        hn::Store(LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(min[g] + o)), d, out.min[g] + o);
    }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_SCALES_INL_H_
