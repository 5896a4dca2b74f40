// Quantised weights times many rows. A panel is kPanel outputs by a chunk of 256 inputs as 16-bit integers,
// unpacked once for all rows and small enough for the first cache: lane by lane the outputs, in each lane a
// pair of inputs, so that one number of a row, spread over the lanes, meets all outputs at once and sums need
// no adding across lanes. What is summed, and in which order, is scales-inl.h's.
#if defined(WI_KERNELS_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_PANEL_INL_H_
#undef WI_KERNELS_CPU_PANEL_INL_H_
#else
#define WI_KERNELS_CPU_PANEL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
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
  Scales<kPanel> scales;
};

// Where 16 inputs of an output lie in the stage: in a vector those of outputs 4 apart.
HWY_INLINE uint8_t* StagePlace(Panel& panel, int sixteen, int output) {
  const int vec = output / kLanes32, lane = output % kLanes32;
  return panel.stage + ((sixteen * kPanelVecs + vec) * 4 + lane % 4) * kLanes32 * 4 + lane / 4 * 16;
}

template <class Q, int group>
HWY_INLINE void StageGroup(const uint8_t* chunk, int output, Panel& panel) {
  const hn::CappedTag<uint8_t, 16> d16;
  alignas(32) uint8_t bytes[32];
  for (int part = 0; part < kParts; part++) {
    V8 q = GroupBytes<Q, group>(chunk, part);
    if constexpr (Q::kLess > 0) q = hn::Sub(q, hn::Set(D8(), Q::kLess));
    hn::Store(q, D8(), bytes + part * kLanes8);
  }
  hn::Store(hn::Load(d16, bytes), d16, StagePlace(panel, 2 * group, output));
  hn::Store(hn::Load(d16, bytes + 16), d16, StagePlace(panel, 2 * group + 1, output));
}

// Four dwords, four inputs each, of every output: from output by output to dword by dword, widened.
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
        hn::Store(EvenBytes(L16(), dword), L16(), to + i * kPair);
        hn::Store(OddBytes(L16(), dword), L16(), to + (8 + i) * kPair);
      };
      put(0, hn::InterleaveLower(d64, ab, ce));
      put(1, hn::InterleaveUpper(d64, ab, ce));
      put(2, hn::InterleaveLower(d64, ab2, ce2));
      put(3, hn::InterleaveUpper(d64, ab2, ce2));
    }
}

// rows: the chunk's weights of each output. Fetches the next chunk's meanwhile.
template <class Q>
HWY_INLINE void FillPanel(const uint8_t* const (&rows)[kPanel], int groups, Panel& panel) {
  LoadScales<Q>(rows, groups, panel.scales);
  for (int o = 0; o < kPanel; o++) {
    const uint8_t* chunk = rows[o];
    for (int64_t line = 0; line < GroupsBytes<Q>(groups); line += 64)
      __builtin_prefetch(chunk + GroupsBytes<Q>(8) + line, 0, 2);
    if (groups > 0) StageGroup<Q, 0>(chunk, o, panel);
    if (groups > 1) StageGroup<Q, 1>(chunk, o, panel);
    if (groups > 2) StageGroup<Q, 2>(chunk, o, panel);
    if (groups > 3) StageGroup<Q, 3>(chunk, o, panel);
    if (groups > 4) StageGroup<Q, 4>(chunk, o, panel);
    if (groups > 5) StageGroup<Q, 5>(chunk, o, panel);
    if (groups > 6) StageGroup<Q, 6>(chunk, o, panel);
    if (groups > 7) StageGroup<Q, 7>(chunk, o, panel);
  }
  TransposeStage(panel, groups);
}

// sums += weights · pair, pairs of 16-bit integers by pairs, the same pair for each lane.
#if HWY_TARGET == HWY_AVX3_DL
// As an instruction for the reason that byte_products-inl.h gives.
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, const int16_t* pair, hn::Vec<L32>& sums) {
  asm("vpdpwssd %2%{1to16%}, %1, %0"
      : "+v"(sums.raw)
      : "v"(weights.raw), "m"(*reinterpret_cast<const int32_t(*)>(pair)));
}
#else
HWY_INLINE void AddPairProducts(hn::Vec<L16> weights, const int16_t* pair, hn::Vec<L32>& sums) {
  int32_t both;
  hwy::CopyBytes<4>(pair, &both);
  hn::Vec<L32> unused = hn::Zero(L32());  // x86 adds pairs
  sums =
      hn::ReorderWidenMulAccumulate(L32(), weights, hn::BitCast(L16(), hn::Set(L32(), both)), sums, unused);
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+x"(sums.raw));  // else GCC 12 adds in trees, for which registers are too few
#endif
}
#endif

// The chunk's activations of some rows, as Activations has them.
struct PanelRows {
  const int16_t* quants;
  const float* sums;
  const float* scales;
};

// sums (R, kPanel) += panel · R rows.
template <int kSub, bool kHasMin, int R>
void MultiplyPanel(const Panel& panel, int groups, const PanelRows& rows, float* sums) {
  using V = hn::Vec<L32>;
  const LF d;
  alignas(64) float part[R * kPanel] = {};
  for (int sub = 0; sub < groups * 32 / kSub; sub++) {
    V s[R][kPanelVecs];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < kPanelVecs; v++) s[r][v] = hn::Zero(L32());
    const int first = sub * kSub / 32 * 16 + sub * kSub % 32 / 4;  // pair
    if constexpr (R == kPanelRows) {                               // the next rows'
      for (int r = 0; r < R; r++) __builtin_prefetch(rows.quants + (R + r) * kChunk + sub * kSub, 0, 3);
    }
    for (int half = 0; half < 2; half++) {
      const int16_t* w = panel.weights + (first + 8 * half) * kPanel * 2;
      const int16_t* a = rows.quants + (first + 8 * half) * 2;
#pragma GCC unroll 8
      for (int pair = 0; pair < kSub / 4; pair++, w += kPanel * 2, a += 2) {
        const auto w0 = hn::Load(L16(), w), w1 = hn::Load(L16(), w + kLanes32 * 2);
        for (int r = 0; r < R; r++) {
          AddPairProducts(w0, a + r * kChunk, s[r][0]);
          AddPairProducts(w1, a + r * kChunk, s[r][1]);
        }
      }
    }
    for (int v = 0; v < kPanelVecs; v++) {
      const auto scale = hn::Load(d, panel.scales.scale[sub] + v * kLanes32);
      for (int r = 0; r < R; r++) {
        float* to = part + r * kPanel + v * kLanes32;
        hn::Store(hn::MulAdd(hn::ConvertTo(d, s[r][v]), scale, hn::Load(d, to)), d, to);
      }
    }
    KeepInMemory(part);  // registers are for the sums
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kPanelVecs; v++) {
      auto whole = hn::Load(d, part + r * kPanel + v * kLanes32);
      if constexpr (kHasMin) {
        const float* a_sums = rows.sums + r * kChunkSums + (kSub == 16 ? 0 : 16);
        for (int sub = 0; sub < groups * 32 / kSub; sub++)
          whole =
              hn::MulAdd(hn::Load(d, panel.scales.min[sub] + v * kLanes32), hn::Set(d, a_sums[sub]), whole);
      }
      float* to = sums + r * kPanel + v * kLanes32;
      hn::Store(hn::MulAdd(whole, hn::Set(d, rows.scales[r]), hn::Load(d, to)), d, to);
    }
}

template <class Q, int R>
HWY_INLINE void MultiplyRowsOfPanel(const Panel& panel, int groups, int64_t count, int64_t& row,
                                    const PanelRows& rows, float* sums) {
  for (; row + R <= count; row += R)
    MultiplyPanel<SubSize<Q>(), Q::kHasMin, R>(
        panel, groups, {rows.quants + row * kChunk, rows.sums + row * kChunkSums, rows.scales + row},
        sums + row * kPanel);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_PANEL_INL_H_
