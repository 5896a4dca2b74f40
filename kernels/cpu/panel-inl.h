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

#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/block256-inl.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

using L32 = hn::ScalableTag<int32_t>;
using L16 = hn::Repartition<int16_t, L32>;
using LF = hn::Rebind<float, L32>;
constexpr int kLanes32 = static_cast<int>(hn::MaxLanes(L32()));
constexpr int kPanelVecs = 2;
constexpr int kPanel = kPanelVecs * kLanes32;  // outputs
// Rows at a time: two sums each, with what they are made of, are what the registers hold.
constexpr int kPanelRows = kLanes32 == 16 ? 8 : 4;

struct Panel {
  alignas(64) uint8_t stage[kPanel * kChunk];    // bytes as TransposeStage wants them
  alignas(64) int16_t weights[kPanel * kChunk];  // (group, 8 pairs of even inputs then 8 of odd, output, 2)
  union {
    Scales32<kPanel> scales32;
    Scales256<kPanel> scales256;
  };
};

// Where an output's first 16 inputs lie in the stage, and how far on the next ones: in a vector are those of
// outputs 4 apart.
HWY_INLINE uint8_t* StagePlace(uint8_t* stage, int output) {
  const int vec = output / kLanes32, lane = output % kLanes32;
  return stage + (vec * 4 + lane % 4) * kLanes32 * 4 + lane / 4 * 16;
}
constexpr int kStageStep = kPanelVecs * 4 * kLanes32 * 4;

// 32 bytes, or the part of them that is a vector, to two places. (A template only so that one branch is compiled.)
template <class D = D8>
HWY_INLINE void StoreHalves(hn::Vec<D> bytes, int part, uint8_t* first, uint8_t* second) {
  const hn::CappedTag<uint8_t, 16> d16;
  if constexpr (hn::MaxLanes(D()) == 32) {
    hn::Store(hn::LowerHalf(d16, bytes), d16, first);
    hn::Store(hn::UpperHalf(d16, bytes), d16, second);
  } else {
    hn::Store(bytes, d16, part == 0 ? first : second);
  }
}

template <class Q, uint8_t kLess, int group>
HWY_INLINE void StageGroup(const uint8_t* chunk, uint8_t* place) {
  for (int part = 0; part < kParts; part++) {
    V8 q = GroupBytes<Q, group>(chunk, part);
    if constexpr (kLess > 0) q = hn::Sub(q, hn::Set(D8(), kLess));
    StoreHalves<>(q, part, place + 2 * group * kStageStep, place + (2 * group + 1) * kStageStep);
  }
}

// Each weight less kLess, in bytes.
template <class Q, uint8_t kLess, int... group>
HWY_INLINE void StageGroups(std::integer_sequence<int, group...>, int groups, const uint8_t* chunk,
                            int output, uint8_t* stage) {
  uint8_t* place = StagePlace(stage, output);
  if (kHasBlocks256<Q> || groups == 8) {
    (StageGroup<Q, kLess, group>(chunk, place), ...);
  } else {
    ((group < groups ? StageGroup<Q, kLess, group>(chunk, place) : void()), ...);
  }
}

// Four dwords, four inputs each, of every output: from output by output to dword by dword, widened.
template <class Q>
HWY_INLINE void TransposeStage(Panel& panel, int groups) {
  const hn::Repartition<uint8_t, L32> d8;
  const hn::Repartition<uint32_t, L32> d32;
  const hn::Repartition<uint64_t, L32> d64;
  const auto wide = [&](auto v) HWY_ATTR { return hn::BitCast(d64, v); };
  for (int sixteen = 0; sixteen < 2 * groups; sixteen++)
    for (int vec = 0; vec < kPanelVecs; vec++) {
      const uint8_t* from = panel.stage + (sixteen * kPanelVecs + vec) * 16 * kLanes32;
      const auto load = [&](int i)
                            HWY_ATTR { return hn::BitCast(d32, hn::Load(d8, from + i * 4 * kLanes32)); };
      const auto a = load(0), b = load(1), c = load(2), e = load(3);
      const auto ab = wide(hn::InterleaveLower(d32, a, b)), ce = wide(hn::InterleaveLower(d32, c, e));
      const auto ab2 = wide(hn::InterleaveUpper(d32, a, b)), ce2 = wide(hn::InterleaveUpper(d32, c, e));
      // Of 32 inputs' 8 even pairs and 8 odd ones this is one half.
      int16_t* to = panel.weights + ((sixteen / 2 * 16 + sixteen % 2 * 4) * kPanelVecs + vec) * 2 * kLanes32;
      constexpr int kPair = kPanel * 2;
      const auto put = [&](int i, auto dword) HWY_ATTR {
        auto even = EvenBytes(L16(), dword), odd = OddBytes(L16(), dword);
        if constexpr (kHasBlocks256<Q>) {
          const auto scale =
              hn::Load(L16(), panel.scales256.scale[sixteen * 16 / Q::kSub] + vec * 2 * kLanes32);
          even = hn::Mul(even, scale), odd = hn::Mul(odd, scale);
        }
        hn::Store(even, L16(), to + i * kPair);
        hn::Store(odd, L16(), to + (8 + i) * kPair);
      };
      put(0, hn::InterleaveLower(d64, ab, ce));
      put(1, hn::InterleaveUpper(d64, ab, ce));
      put(2, hn::InterleaveLower(d64, ab2, ce2));
      put(3, hn::InterleaveUpper(d64, ab2, ce2));
    }
}

// rows: the chunk's weights of each output. Fetches the next chunk's meanwhile, unless somebody else does.
template <class Q, bool kFetches = true>
HWY_INLINE void FillPanel(const uint8_t* const (&rows)[kPanel], int groups, Panel& panel) {
  if constexpr (kHasBlocks256<Q>) {
    LoadScales256<Q>(rows, panel.scales256);
  } else {
    LoadScales32<Q>(rows, groups, panel.scales32);
  }
  for (int o = 0; o < kPanel; o++) {
    const uint8_t* chunk = rows[o];
    for (int64_t line = 0; kFetches && line < GroupsBytes<Q>(groups); line += 64)
      __builtin_prefetch(chunk + GroupsBytes<Q>(8) + line, 0, 2);
    StageGroups<Q, Q::kLess>(std::make_integer_sequence<int, 8>(), groups, chunk, o, panel.stage);
  }
  TransposeStage<Q>(panel, groups);
}

// Pairs of 16-bit integers by the same pair in each lane, both products added: alone, and to sums.
#if HWY_TARGET == HWY_AVX3_DL
// As an instruction for the reason that byte_products-inl.h gives.
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, const int16_t* pair, hn::Vec<L32>& sums) {
  asm("vpdpwssd %2%{1to16%}, %1, %0"
      : "+v"(sums.raw)
      : "v"(weights.raw), "m"(*reinterpret_cast<const int32_t(*)>(pair)));
}
HWY_INLINE hn::Vec<L32> PairProducts(hn::Vec<L16> weights, const int16_t* pair) {
  auto products = hn::Zero(L32());
  AddPairProducts(weights, pair, products);
  return products;
}
#else
HWY_INLINE hn::Vec<L32> PairProducts(hn::Vec<L16> weights, const int16_t* pair) {
  int32_t both;
  hwy::CopyBytes<4>(pair, &both);
  hn::Vec<L32> rest = hn::Zero(L32()), sum = rest;  // x86 adds pairs and has no rest
  sum = hn::ReorderWidenMulAccumulate(L32(), weights, hn::BitCast(L16(), hn::Set(L32(), both)), sum, rest);
  return hn::RearrangeToOddPlusEven(sum, rest);
}
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, const int16_t* pair, hn::Vec<L32>& sums) {
  const auto products = PairProducts(weights, pair);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // The addition as an instruction: else GCC 12 adds in trees, for which registers are too few, and copies.
  asm("vpaddd %1, %0, %0" : "+v"(sums.raw) : "v"(products.raw));
#else
  sums = hn::Add(sums, products);
#endif
}
#endif

// The chunk's activations of some rows, as Activations has them.
struct PanelRows {
  const int16_t* quants;
  const int32_t* sums;
  const float* group_sums;
  const float* scales;

  PanelRows from(int64_t row) const {
    return {quants + row * kChunk, sums + row * kChunkSums, group_sums + row * kChunkGroups, scales + row};
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
      if (kBegins && pair == 0) {
        sums[r][0] = PairProducts(w0, a + r * kChunk);
        sums[r][1] = PairProducts(w1, a + r * kChunk);
      } else {
        AddPairProducts(w0, a + r * kChunk, sums[r][0]);
        AddPairProducts(w1, a + r * kChunk, sums[r][1]);
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

// sums (R, kPanel) += panel · R rows, of blocks of 32.
template <bool kHasMin, int R>
void MultiplyPanel32(const Panel& panel, int groups, const PanelRows& rows, float* sums) {
  const LF d;
  const Scales32<kPanel>& scales = panel.scales32;
  alignas(64) float part[R * kPanel];
  for (int group = 0; group < groups; group++) {
    hn::Vec<L32> s[R][kPanelVecs];
    MultiplyRun<16, R>(panel, rows, group * 16, s);
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
    for (int v = 0; v < kPanelVecs; v++) {
      auto whole = hn::Load(d, part + r * kPanel + v * kLanes32);
      if constexpr (kHasMin) {
        for (int group = 0; group < groups; group++)
          whole = hn::MulAdd(hn::Load(d, scales.min[group] + v * kLanes32),
                             hn::Set(d, rows.group_sums[r * kChunkGroups + group]), whole);
      }
      float* to = sums + r * kPanel + v * kLanes32;
      hn::Store(hn::MulAdd(whole, hn::Set(d, rows.scales[r]), hn::Load(d, to)), d, to);
    }
}

// So many pairs' products surely fit into 32 bits; of a panel's 128.
template <class Q>
constexpr int SafePairs() {
  int pairs = 128;
  while (pairs * 2 > kSafeProducts<Q>) pairs /= 2;
  return pairs;
}

// The same, of blocks of 256. kPairs: SafePairs of the format. kSub: of its minima, 0 if there are none.
template <int kPairs, int kSub, int R>
void MultiplyPanel256(const Panel& panel, const PanelRows& rows, float* sums) {
  using V = hn::Vec<L32>;
  const LF d;
  const L32 d32;
  const Scales256<kPanel>& scales = panel.scales256;
  const auto in_lane = [&](V v) HWY_ATTR { return hn::And(v, hn::Set(d32, 0xFFFF)); };
  alignas(64) int32_t high[R * kPanel], low[R * kPanel];  // in words of 65536
  for (int first = 0; first < 128; first += kPairs) {
    V s[R][kPanelVecs];
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
                                    const PanelRows& rows, float* sums) {
  for (; row + R <= count; row += R) {
    if constexpr (kHasBlocks256<Q>) {
      MultiplyPanel256<SafePairs<Q>(), Q::kHasMin ? Q::kSub : 0, R>(panel, rows.from(row),
                                                                    sums + row * kPanel);
    } else {
      MultiplyPanel32<Q::kHasMin, R>(panel, groups, rows.from(row), sums + row * kPanel);
    }
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_PANEL_INL_H_
