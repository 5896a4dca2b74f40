// Weights in blocks of 256, as stored, times a few rows. What is summed is block256-inl.h's.
#if defined(WI_KERNELS_CPU_DOT256_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_DOT256_INL_H_
#undef WI_KERNELS_CPU_DOT256_INL_H_
#else
#define WI_KERNELS_CPU_DOT256_INL_H_
#endif

#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/block256-inl.h"
#include "kernels/cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

constexpr int kTile256 = 4;  // outputs

// Whether vectors of 32 bytes are multiplied in pairs: then weights need not be widened, and activations are
// 256 · high + low. On AVX-512 too, where 512 bits would widen 32 weights at once: four outputs' sums over
// sixteen lanes would cost more than that saves (Zen 4, Q4_K: a fifth).
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr bool kPairsOfBytes = true;
using D16Pairs = hn::CappedTag<int16_t, 16>;

// unsigned · signed, each number with its neighbour; |sum| ≤ 2 · 63 · 128 here.
HWY_INLINE hn::Vec<D16Pairs> MultiplyPairs(V8 weights, const int8_t* activations) {
  const hn::RebindToSigned<D8> di8;
  return hn::Vec<D16Pairs>{_mm256_maddubs_epi16(weights.raw, hn::Load(di8, activations).raw)};
}
#else
constexpr bool kPairsOfBytes = false;
using D16Pairs = D16;
hn::Vec<D16Pairs> MultiplyPairs(V8, const int8_t*);  // there is none
#endif

using D32 = hn::RepartitionToWide<D16Pairs>;  // sums of pairs of products
using V32 = hn::Vec<D32>;

// Makes the compiler load from the array again: a load spreads a scale for nothing, while the shuffles from
// a register that it prefers compete with those that unpack the weights (Q6K: a quarter slower).
template <class Array>
HWY_INLINE void KeepInMemory(Array& array) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+m"(array));
#else
  (void)array;
#endif
}

// The scales of a block, each twice in 32 bits.
template <class Q>
HWY_INLINE void SpreadScales(const uint8_t* block, uint32_t* spread) {
  constexpr int kSubs = 256 / Q::kSub;
  const hn::CappedTag<uint32_t, kSubs> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  alignas(16) int8_t scales[16];
  hn::Store(hn::BitCast(hn::RebindToSigned<DScales>(), Q::Scales(block)), hn::RebindToSigned<DScales>(),
            scales);
  for (int j = 0; j < kSubs; j += static_cast<int>(hn::MaxLanes(d)))
    hn::Store(hn::BitCast(d, TwiceInLane(hn::PromoteTo(d32, hn::LoadU(d8, scales + j)))), d, spread + j);
}

// scales[0] in every lane; where a vector of kWeights weights has those of two sub-blocks, scales[1] in the upper
// ones.
template <int kSub, int kWeights>
HWY_INLINE hn::Vec<D16Pairs> SpreadScale(const uint32_t* scales) {
  const hn::RebindToUnsigned<D32> du;
  auto scale = hn::Set(du, scales[0]);
  if constexpr (kSub < kWeights)
    scale = hn::IfThenElse(hn::FirstN(du, kSub * hn::MaxLanes(du) / kWeights), scale, hn::Set(du, scales[1]));
  return hn::BitCast(D16Pairs(), scale);
}

// Lookup by lane a part of S of one block, for R rows, in words of 65536 or, of bytes, of 256.
template <int R>
struct Words {
  V32 high[R], low[R];
};

// words += the group's products of bytes; of what Group gives: kLess is not yet subtracted.
template <class Q, int R, int group>
HWY_INLINE void AddBytes(const uint8_t* block, const uint32_t* scales, const int8_t* const (&a)[R],
                         Words<R>& words) {
  const V8 w = Q::template Group<group>(StoredBytes{block, 0});
  const auto scale = SpreadScale<Q::kSub, 32>(scales + group * 32 / Q::kSub);
  for (int r = 0; r < R; r++) {
    V32 odd = hn::Zero(D32());  // stays so: x86 adds pairs
    const int8_t* bytes = a[r] + group * 64;
    words.high[r] = hn::ReorderWidenMulAccumulate(D32(), MultiplyPairs(w, bytes), scale, words.high[r], odd);
    words.low[r] =
        hn::ReorderWidenMulAccumulate(D32(), MultiplyPairs(w, bytes + 32), scale, words.low[r], odd);
  }
}

// sums += the group's products; a weight times its scale is still a 16-bit integer.
template <class Q, int R, int group>
HWY_INLINE void AddProducts(const uint8_t* block, const uint32_t* scales, const int16_t* const (&a)[R],
                            V32 (&sums)[R]) {
  V16 w[kVecs];
  LoadGroup<Q, group>(block, w);
  for (int v = 0; v < kVecs; v++)
    w[v] = hn::Mul(w[v], SpreadScale<Q::kSub, kLanes16>(scales + (group * 32 + v * kLanes16) / Q::kSub));
  for (int r = 0; r < R; r++) {
    V32 odd = hn::Zero(D32());  // on instruction sets that keep odd pairs apart
    for (int v = 0; v < kVecs; v++)
      sums[r] = hn::ReorderWidenMulAccumulate(D32(), w[v], hn::Load(D16(), a[r] + group * 32 + v * kLanes16),
                                              sums[r], odd);
    sums[r] = hn::Add(sums[r], odd);
  }
}

// How many groups' products in one lane surely fit into it.
template <class Q>
constexpr int kSafeGroups = static_cast<int>(HWY_MIN(8, kSafeProducts<Q> / (2 * kVecs)));

template <class Q, int R, int... group>
HWY_INLINE void MultiplyBlock(std::integer_sequence<int, group...>, const uint8_t* block,
                              const Activations& in, int64_t at, Words<R>& words) {
  alignas(64) uint32_t scales[256 / Q::kSub];
  SpreadScales<Q>(block, scales);
  KeepInMemory(scales);
  for (int r = 0; r < R; r++) words.high[r] = words.low[r] = hn::Zero(D32());
  if constexpr (kPairsOfBytes) {
    const int8_t* a[R];
    for (int r = 0; r < R; r++) a[r] = in.bytes + (at + r) * 2 * kChunk;
    (AddBytes<Q, R, group>(block, scales, a, words), ...);
  } else {
    const int16_t* a[R];
    V32 sums[R];
    for (int r = 0; r < R; r++) a[r] = in.ordered + (at + r) * kChunk, sums[r] = hn::Zero(D32());
    const auto flush = [&]() HWY_ATTR {
      for (int r = 0; r < R; r++) {
        words.high[r] = hn::Add(words.high[r], hn::ShiftRight<16>(sums[r]));
        words.low[r] = hn::Add(words.low[r], hn::And(sums[r], hn::Set(D32(), 0xFFFF)));
        sums[r] = hn::Zero(D32());
      }
    };
    constexpr int safe = kSafeGroups<Q>;
    ((AddProducts<Q, R, group>(block, scales, a, sums), group % safe == safe - 1 ? flush() : void()), ...);
    if constexpr (8 % safe != 0) flush();
  }
}

// Σ over sub-blocks j of the signed byte_j times the sum of its activations, in parts.
template <int kSubs>
using DSubs = hn::CappedTag<int32_t, kSubs>;
template <int kSubs>
HWY_INLINE hn::Vec<DSubs<kSubs>> MultiplySums(VScales bytes, const int32_t* sums) {
  const DSubs<kSubs> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  alignas(16) uint8_t lanes[16];
  hn::Store(bytes, DScales(), lanes);
  auto total = hn::Zero(d);
  for (int j = 0; j < kSubs; j += static_cast<int>(hn::MaxLanes(d)))
    total = hn::Add(total, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<int8_t*>(lanes) + j)),
                                   hn::LoadU(d, sums + j)));
  return total;
}

// Four outputs' sums over lanes, side by side.
template <class D, class V>
HWY_INLINE hn::Vec<hn::FixedTag<int32_t, 4>> SumLanes(D d, const V (&v)[kTile256]) {
  return Fold(d, SumsOfFour(d, v[0], v[1], v[2], v[3]));
}

// kTile256 outputs times R rows from `row` on. outputs: how many there are; the others are reckoned too, as the
// last one. out: (R, kTile256).
template <class Q, int R>
void Dot256(const uint8_t* weights, size_t stride, int outputs, const Activations& in, int64_t row,
            float* out) {
  constexpr int kSubs = 256 / Q::kSub;
  // Bytes are multiplied with what is to be subtracted from them still there.
  constexpr bool kSubtractsLater = kPairsOfBytes && Q::kLess > 0;
  constexpr int kLessBits = Q::kLess == 32 ? 5 : 2;
  static_assert(!Q::kHasMin || Q::kLess == 0);
  static_assert(Q::kLess == 0 || Q::kLess == 1 << kLessBits);
  const hn::FixedTag<float, kTile256> d;
  const hn::RebindToSigned<decltype(d)> d32;
  hn::Vec<decltype(d)> acc[R];
  for (int r = 0; r < R; r++) acc[r] = hn::Zero(d);
  const uint8_t* rows[kTile256];
  for (int o = 0; o < kTile256; o++)
    rows[o] = weights + static_cast<size_t>(HWY_MIN(o, outputs - 1)) * stride;
  for (int64_t b = 0; b < in.chunks; b++) {
    const int64_t at = b * in.rows + row;
    V32 high[R][kTile256], low[R][kTile256];
    hn::Vec<DSubs<kSubs>> offsets[R][kTile256];  // M's parts, or those of what is subtracted later
    const uint8_t* blocks[kTile256];
    for (int o = 0; o < kTile256; o++) {
      const uint8_t* block = blocks[o] = rows[o] + b * Q::kBytes;
      for (int line = 0; line < Q::kBytes; line += 64) PrefetchNextTile(block + line, kTile256 * stride);
      Words<R> words;
      MultiplyBlock<Q, R>(std::make_integer_sequence<int, 8>(), block, in, at, words);
      for (int r = 0; r < R; r++) high[r][o] = words.high[r], low[r][o] = words.low[r];
      if constexpr (Q::kHasMin || kSubtractsLater) {
        VScales bytes;
        if constexpr (Q::kHasMin) {
          bytes = Q::Mins(block);
        } else {
          bytes = Q::Scales(block);
        }
        for (int r = 0; r < R; r++)
          offsets[r][o] =
              MultiplySums<kSubs>(bytes, in.sums + (at + r) * kChunkSums + (Q::kSub == 16 ? 0 : 16));
      }
    }
    alignas(16) float unit[kTile256], min_unit[kTile256];
    LoadFactors<kTile256>(blocks, 0, Q::kScaleOffset, unit);
    if constexpr (Q::kHasMin) LoadFactors<kTile256>(blocks, 0, Q::kScaleOffset + 2, min_unit);
    for (int r = 0; r < R; r++) {
      auto h = SumLanes(D32(), high[r]), l = SumLanes(D32(), low[r]);
      if constexpr (!kPairsOfBytes) {
        h = hn::ShiftLeft<8>(h);
      } else if constexpr (kSubtractsLater) {
        const auto less = SumLanes(DSubs<kSubs>(), offsets[r]);  // times 2^kLessBits
        h = hn::Sub(h, hn::ShiftRight<8 - kLessBits>(less));
        l = hn::Sub(l, hn::ShiftLeft<kLessBits>(hn::And(less, hn::Set(d32, (1 << (8 - kLessBits)) - 1))));
      }
      h = hn::Add(h, hn::ShiftRight<8>(l));
      l = hn::And(l, hn::Set(d32, 255));
      auto product = hn::Mul(hn::Load(d, unit), FromWords256(d, h, l));
      if constexpr (Q::kHasMin) {
        const auto mins = hn::ConvertTo(d, SumLanes(DSubs<kSubs>(), offsets[r]));
        product = hn::MulAdd(hn::Neg(hn::Load(d, min_unit)), mins, product);
      }
      acc[r] = hn::MulAdd(product, hn::Set(d, in.scales[at + r]), acc[r]);
    }
  }
  for (int r = 0; r < R; r++) hn::Store(acc[r], d, out + r * kTile256);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT256_INL_H_
