// Quantised weights times many rows. A panel is kPanel outputs by a chunk of 256 inputs as 16-bit integers,
// unpacked once for all rows and small enough for the first cache: lane by lane the outputs, in each lane a
// pair of inputs, so that one number of a row, spread over the lanes, meets all outputs at once and sums need
// no adding across lanes. What is summed, and in which order, is said in scales-inl.h and block256-inl.h; of
// blocks of 256 a panel has the weights times their scales.
#if defined(WI_KERNELS_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_PANEL_INL_H_
#undef WI_KERNELS_CPU_PANEL_INL_H_
#else
#define WI_KERNELS_CPU_PANEL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/block256-inl.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/dot256-inl.h"
#include "kernels/cpu/scales-inl.h"
#include "kernels/cpu/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// Rows at a time: two sums each, with what they are made of, are what the registers hold.
constexpr int kPanelRows = kLanes32 == 16 ? 8 : 4;

struct Panel {
  TurnedQuants turned;
  alignas(64) int16_t weights[kPanel * kChunk];  // (group, 8 pairs of even inputs then 8 of odd, output, 2)
  PanelTail tail;
  union {
    Scales32<kPanel> scales32;
    Scales256<kPanel> scales256;
  };
  // Weights as unsigned bytes (8 dwords of a group, kPanel outputs, 4), if they are to be multiplied as such, and from a
  // group to the next one: in `weights`, or in the matrix itself.
  const uint8_t* bytes;
  int64_t group_bytes;
  alignas(64) int16_t min_pairs[8][2 * kPanel];  // (pair of sub-blocks, output, 2), where they are wanted so
};

// Whether a matrix that is turned has bytes in a panel's own order.
template <class Q, class Outputs>
constexpr bool kInOrder =
    std::is_same_v<Q, Q8_0>&& std::is_same_v<Outputs, TurnedOutputs>&& kPanel == kTurnedRows;

// For so many rows bytes that are in order are widened as they are multiplied, once for each kPanelRows; for more rows,
// once for all.
constexpr int64_t kWidenedAtOnce = 2 * kPanelRows;

template <class Q>
HWY_INLINE void LoadScales(const PanelOutputs& outputs, int groups, Panel& panel) {
  if constexpr (kHasBlocks256<Q>) {
    LoadScales256<Q>(outputs, panel.scales256);
  } else {
    LoadScales32<Q>(outputs, groups, panel.scales32);
  }
}

template <class Q>
HWY_INLINE void LoadScales(const TurnedOutputs& outputs, int groups, Panel& panel) {
  const LF d;
  for (int group = 0; group < groups; group++)
    for (int v = 0; v < kPanelVecs; v++) {
      const auto* halves =
          reinterpret_cast<const hwy::float16_t*>(outputs.block + group * kTurnedRows * Q::kBytes) +
          outputs.first + v * kLanes32;
      hn::Store(LoadFloats(d, halves), d, panel.scales32.scale[group] + v * kLanes32);
      if constexpr (Q::kHasMin)
        hn::Store(LoadFloats(d, halves + kTurnedRows), d, panel.scales32.min[group] + v * kLanes32);
    }
}

// For so many rows.
template <class Q, class Outputs>
HWY_INLINE void FillPanel(const Outputs& outputs, int groups, int64_t rows, Panel& panel) {
  LoadScales<Q>(outputs, groups, panel);
  panel.bytes = nullptr;
  if constexpr (kInOrder<Q, Outputs>) {
    panel.group_bytes = kTurnedRows * Q::kBytes;
    if (rows <= kWidenedAtOnce) panel.bytes = outputs.template quants<Q>(0);
    if (panel.bytes) return;
  }
  constexpr int kPair = kPanel * 2;
  EachDword<Q>(outputs, groups, panel.turned, [&](int group, int dword, int vec, auto weights) HWY_ATTR {
    if constexpr (Q::kLess > 0) weights = hn::Sub(weights, hn::Set(LB(), Q::kLess));
    auto even = EvenBytes(L16(), weights), odd = OddBytes(L16(), weights);
    if constexpr (kHasBlocks256<Q>) {
      const int sub = (group * 32 + dword * 4) / Q::kSub;
      const auto scale = hn::Load(L16(), panel.scales256.scale[sub] + vec * 2 * kLanes32);
      even = hn::Mul(even, scale), odd = hn::Mul(odd, scale);
    }
    int16_t* to = panel.weights + (group * 16 + dword) * kPair + vec * 2 * kLanes32;
    hn::Store(even, L16(), to);
    hn::Store(odd, L16(), to + 8 * kPair);
  });
}

// Pairs of 16-bit integers by pairs, both products added: alone, and to sums. As instructions for the reason that
// byte_products-inl.h gives.
#if HWY_TARGET == HWY_AVX3_DL
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, hn::Vec<L16> pairs, hn::Vec<L32>& sums) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums.raw) : "v"(weights.raw), "v"(pairs.raw));
}
HWY_INLINE hn::Vec<L32> PairProducts(hn::Vec<L16> weights, hn::Vec<L16> pairs) {
  auto products = hn::Zero(L32());
  AddPairProducts(weights, pairs, products);
  return products;
}
#else
HWY_INLINE hn::Vec<L32> PairProducts(hn::Vec<L16> weights, hn::Vec<L16> pairs) {
  hn::Vec<L32> rest = hn::Zero(L32()), sum = rest;  // x86 adds pairs and has no rest
  sum = hn::ReorderWidenMulAccumulate(L32(), weights, pairs, sum, rest);
  return hn::RearrangeToOddPlusEven(sum, rest);
}
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, hn::Vec<L16> pairs, hn::Vec<L32>& sums) {
  const auto products = PairProducts(weights, pairs);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // The addition as an instruction: else GCC 12 adds in trees, for which registers are too few, and copies.
  asm("vpaddd %1, %0, %0" : "+v"(sums.raw) : "v"(products.raw));
#else
  sums = hn::Add(sums, products);
#endif
}
#endif

// A pair of a row's, in each lane: spread once for all vectors, because loads are what there are fewest of.
HWY_INLINE hn::Vec<L16> SpreadPair(const int16_t* pair) {
  int32_t both;
  hwy::CopyBytes<4>(pair, &both);
  return hn::BitCast(L16(), hn::Set(L32(), both));
}

// The chunk's activations of some rows, as Activations has them.
struct PanelRows {
  const int16_t* quants;
  const int32_t* sums;
  const float* group_sums;
  const int32_t* offsets;
  const float* scales;
  const int8_t* split;  // these null where there are none
  const int32_t* sum_pairs;

  PanelRows from(int64_t row) const {
    return {quants + row * kChunk,
            sums + row * kChunkSums,
            group_sums + row * kChunkGroups,
            offsets + row * kChunkGroups,
            scales + row,
            split ? split + row * kSplitRow : nullptr,
            split ? sum_pairs + row * kChunkSums : nullptr};
  }
};

// sums (R, kPanelVecs) += R rows' products with kPairs pairs of inputs; the first of them may begin the sums.
template <int kPairs, bool kBegins, int R>
HWY_INLINE void MultiplyPairs(const int16_t* w, const int16_t* a, hn::Vec<L32> (&sums)[R][kPanelVecs]) {
  if constexpr (R == kPanelRows)  // the next rows'
    for (int r = 0; r < R; r++) __builtin_prefetch(a + (R + r) * kChunk, 0, 3);
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; pair++, w += kPanel * 2, a += 2) {
    const auto w0 = hn::Load(L16(), w), w1 = hn::Load(L16(), w + kLanes32 * 2);
    for (int r = 0; r < R; r++) {
      const auto spread = SpreadPair(a + r * kChunk);
      if (kBegins && pair == 0) {
        sums[r][0] = PairProducts(w0, spread);
        sums[r][1] = PairProducts(w1, spread);
      } else {
        AddPairProducts(w0, spread, sums[r][0]);
        AddPairProducts(w1, spread, sums[r][1]);
      }
    }
  }
}

// sums (R, kPanelVecs) = R rows' products with kPairs pairs of inputs from the first on.
template <int kPairs, int R>
HWY_INLINE void MultiplyRun(const Panel& panel, const PanelRows& rows, int first,
                            hn::Vec<L32> (&sums)[R][kPanelVecs]) {
  const int16_t* w = panel.weights + first * kPanel * 2;
  const int16_t* a = rows.quants + first * 2;
  constexpr int kLine = HWY_MIN(kPairs, 16);  // pairs in a cache line of a row
  MultiplyPairs<kLine, true, R>(w, a, sums);
  for (int pair = kLine; pair < kPairs; pair += kLine)
    MultiplyPairs<kLine, false, R>(w + pair * kPanel * 2, a + pair * 2, sums);
}

// sums (R, kPanelVecs) = R rows' products with a group of unsigned bytes, less what those have too much.
template <int R>
HWY_INLINE void MultiplyBytesOfGroup(const uint8_t* w, const PanelRows& rows, int group,
                                     hn::Vec<L32> (&sums)[R][kPanelVecs]) {
  const hn::Repartition<uint16_t, L32> du;
  const int16_t* a = rows.quants + group * 32;
  for (int r = 0; r < R; r++) {
    sums[r][0] = hn::Set(L32(), rows.offsets[r * kChunkGroups + group]);
    sums[r][1] = sums[r][0];
    if constexpr (R == kPanelRows) __builtin_prefetch(a + (R + r) * kChunk, 0, 3);  // the next rows'
  }
#pragma GCC unroll 8
  for (int dword = 0; dword < 8; dword++, w += 4 * kPanel, a += 2) {
    const auto w0 = hn::BitCast(du, hn::Load(LB(), w)),
               w1 = hn::BitCast(du, hn::Load(LB(), w + 4 * kLanes32));
    const auto low = hn::Set(du, 0xFF);
    const auto even0 = hn::BitCast(L16(), hn::And(w0, low)), even1 = hn::BitCast(L16(), hn::And(w1, low));
    const auto odd0 = hn::BitCast(L16(), hn::ShiftRight<8>(w0)),
               odd1 = hn::BitCast(L16(), hn::ShiftRight<8>(w1));
    for (int r = 0; r < R; r++) {
      const auto even = SpreadPair(a + r * kChunk), odd = SpreadPair(a + r * kChunk + 16);
      AddPairProducts(even0, even, sums[r][0]);
      AddPairProducts(even1, even, sums[r][1]);
      AddPairProducts(odd0, odd, sums[r][0]);
      AddPairProducts(odd1, odd, sums[r][1]);
    }
  }
}

// sums (kPanel) += what a row's sums of blocks of 32 come to.
template <bool kHasMin>
HWY_INLINE void AddPart32(const Scales32<kPanel>& scales, int groups, const PanelRows& row, const float* part,
                          float* sums) {
  const LF d;
  for (int v = 0; v < kPanelVecs; v++) {
    auto whole = hn::Load(d, part + v * kLanes32);
    if constexpr (kHasMin) {
      for (int group = 0; group < groups; group++)
        whole = hn::MulAdd(hn::Load(d, scales.min[group] + v * kLanes32), hn::Set(d, row.group_sums[group]),
                           whole);
    }
    float* to = sums + v * kLanes32;
    hn::Store(hn::MulAdd(whole, hn::Set(d, row.scales[0]), hn::Load(d, to)), d, to);
  }
}

// sums (R, kPanel) += panel · R rows, of blocks of 32.
template <bool kHasMin, bool kBytes, int R>
void MultiplyPanel32(const Panel& panel, int groups, const PanelRows& rows, float* sums, NextPanel& next) {
  const LF d;
  const Scales32<kPanel>& scales = panel.scales32;
  alignas(64) float part[R * kPanel];
  for (int group = 0; group < groups; group++) {
    hn::Vec<L32> s[R][kPanelVecs];
    next.fetch();
    if constexpr (kBytes) {
      MultiplyBytesOfGroup<R>(panel.bytes + group * panel.group_bytes, rows, group, s);
    } else {
      MultiplyRun<16, R>(panel, rows, group * 16, s);
    }
    for (int v = 0; v < kPanelVecs; v++) {
      const auto scale = hn::Load(d, scales.scale[group] + v * kLanes32);
      for (int r = 0; r < R; r++) {
        float* to = part + r * kPanel + v * kLanes32;
        const auto before = group > 0 ? hn::Load(d, to) : hn::Zero(d);
        hn::Store(hn::MulAdd(hn::ConvertTo(d, s[r][v]), scale, before), d, to);
      }
    }
    KeepInMemory(part);  // registers are for the sums
  }
  for (int r = 0; r < R; r++)
    AddPart32<kHasMin>(scales, groups, rows.from(r), part + r * kPanel, sums + r * kPanel);
}

// So many pairs' products surely fit into 32 bits; of a panel's 128.
template <class Q>
constexpr int SafePairs() {
  int pairs = 128;
  while (pairs * 2 > kSafeProducts<Q>) pairs /= 2;
  return pairs;
}

// How often MultiplyRowsOfPanel has the next panel fetched for so many rows, at the least.
template <class Q>
constexpr int64_t FetchesOfRows(int64_t rows, int groups) {
  int64_t runs = groups;
  if constexpr (kHasBlocks256<Q>) runs = 128 / SafePairs<Q>();
  return (rows + kPanelRows - 1) / kPanelRows * runs;
}

// The same, of blocks of 256. kPairs: SafePairs of the format. kSub: of its minima, 0 if there are none.
template <int kPairs, int kSub, int R>
void MultiplyPanel256(const Panel& panel, const PanelRows& rows, float* sums, NextPanel& next) {
  using V = hn::Vec<L32>;
  const LF d;
  const L32 d32;
  const Scales256<kPanel>& scales = panel.scales256;
  const auto in_lane = [&](V v) HWY_ATTR { return hn::And(v, hn::Set(d32, 0xFFFF)); };
  alignas(64) int32_t high[R * kPanel], low[R * kPanel];  // in words of 65536
  for (int first = 0; first < 128; first += kPairs) {
    V s[R][kPanelVecs];
    next.fetch();
    MultiplyRun<kPairs, R>(panel, rows, first, s);
    for (int r = 0; r < R; r++)
      for (int v = 0; v < kPanelVecs; v++) {
        const int at = r * kPanel + v * kLanes32;
        auto h = hn::ShiftRight<16>(s[r][v]), l = in_lane(s[r][v]);
        if (first > 0) h = hn::Add(h, hn::Load(d32, high + at)), l = hn::Add(l, hn::Load(d32, low + at));
        hn::Store(h, d32, high + at);
        hn::Store(l, d32, low + at);
      }
    KeepInMemory(high), KeepInMemory(low);  // registers are for the sums
  }
  for (int v = 0; v < kPanelVecs; v++) {
    const auto unit = hn::Load(d, scales.unit + v * kLanes32);
    V mins[R];
    if constexpr (kSub > 0) {
      for (int r = 0; r < R; r++) mins[r] = hn::Zero(d32);
      for (int sub = 0; sub < 256 / kSub; sub++) {
        const auto min = hn::Load(d32, scales.min[sub] + v * kLanes32);
        for (int r = 0; r < R; r++)
          mins[r] = hn::Add(
              mins[r], hn::Mul(min, hn::Set(d32, rows.sums[r * kChunkSums + sub + (kSub == 16 ? 0 : 16)])));
      }
    }
    for (int r = 0; r < R; r++) {
      const int at = r * kPanel + v * kLanes32;
      auto product = hn::Mul(unit, FromWords65536(d, hn::Load(d32, high + at), hn::Load(d32, low + at)));
      if constexpr (kSub > 0)
        product = hn::MulAdd(hn::Load(d, scales.min_unit + v * kLanes32), hn::ConvertTo(d, mins[r]), product);
      hn::Store(hn::MulAdd(product, hn::Set(d, rows.scales[r]), hn::Load(d, sums + at)), d, sums + at);
    }
  }
}

template <class Q, int R>
HWY_INLINE void MultiplyRowsOfPanel(const Panel& panel, int groups, int64_t count, int64_t& row,
                                    const PanelRows& rows, float* sums, NextPanel& next) {
  for (; row + R <= count; row += R) {
    if constexpr (kHasBlocks256<Q>) {
      MultiplyPanel256<SafePairs<Q>(), Q::kHasMin ? Q::kSub : 0, R>(panel, rows.from(row),
                                                                    sums + row * kPanel, next);
    } else {
      if constexpr (kInOrder<Q, TurnedOutputs>)
        if (panel.bytes) {
          MultiplyPanel32<false, true, R>(panel, groups, rows.from(row), sums + row * kPanel, next);
          continue;
        }
      MultiplyPanel32<Q::kHasMin, false, R>(panel, groups, rows.from(row), sums + row * kPanel, next);
    }
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_PANEL_INL_H_
