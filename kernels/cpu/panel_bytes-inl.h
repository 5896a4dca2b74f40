// Quantised weights times many rows of 8-bit integers, in the order that dot_bytes-inl.h gives. A panel is that
// of panel-inl.h, but in each lane four inputs of an output as bytes where this instruction set multiplies
// bytes: four of a row, spread over the lanes, meet all outputs at once. Such weights are unsigned; signed ones
// have kBias added, and their sums begin with what is too much (ByteActivations::offsets). Elsewhere weights are
// widened to 16 bits as in panel-inl.h.
#if defined(WI_KERNELS_CPU_PANEL_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_PANEL_BYTES_INL_H_
#undef WI_KERNELS_CPU_PANEL_BYTES_INL_H_
#else
#define WI_KERNELS_CPU_PANEL_BYTES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/byte_activations.h"
#include "kernels/cpu/byte_products-inl.h"
#include "kernels/cpu/dot_bytes-inl.h"
#include "kernels/cpu/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

template <class Q>
constexpr bool kIsSigned = Q::kLess > 0 || std::is_same_v<Q, Q8_0>;
// Inputs of a sum of integers, of those of a group, that one scale is for.
template <class Q>
constexpr int sub_block() {
  if constexpr (kHasBlocks256<Q>) return Q::kSub;
  return 32;
}

// How weights of a format meet rows.
enum class By {
  widened,   // as 16-bit integers, by pairs
  pairs,     // unsigned bytes; two products and their sum are 16-bit integers, and wrap: the whole sum fits
  fours,     // unsigned bytes; four products are added to a 32-bit integer (VNNI)
  matrices,  // signed bytes; eight inputs of two outputs meet eight of two rows (I8MM)
};

// kMore: with byte_extension.h. AVX2's Q8_0 is widened: signs and the widening of each product would take as many
// instructions.
#if HWY_TARGET == HWY_AVX3_DL
template <class Q, bool kMore>
constexpr By kBy = By::fours;
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <class Q, bool kMore>
constexpr By kBy = kMore                     ? By::fours
                   : std::is_same_v<Q, Q8_0> ? By::widened
                                             : By::pairs;
#else
template <class Q, bool kMore>
constexpr By kBy = kMore ? By::matrices : By::widened;
#endif

template <By kHow>
constexpr int32_t kBias = kHow == By::fours   ? 128
                          : kHow == By::pairs ? 32
                                              : 0;

// Rows at a time. Bytes need fewer registers beside the sums than pairs of 16-bit integers, which six rows of AVX2
// make slower; of matrices, two rows share a sum.
template <By kHow>
constexpr int kBytePanelRows = kHow == By::matrices                   ? 8
                               : kLanes32 == 8 && kHow != By::widened ? 6
                                                                      : kPanelRows;

// What sums over columns of a row begin with, given those of even pairs of columns and of odd ones. As a 32-bit
// integer or, where products are of 16 bits, as the two that a lane has.
template <bool kMore>
HWY_INLINE int32_t OffsetOf(int32_t even, int32_t odd) {
  constexpr By kHow = kBy<Q4_0, kMore>;  // as of all that have a bias
  if constexpr (kHow != By::pairs) return -kBias<kHow> * (even + odd);
  const uint32_t low = static_cast<uint32_t>(-kBias<kHow> * even) & 0xFFFF;
  return static_cast<int32_t>(low | static_cast<uint32_t>(-kBias<kHow> * odd) << 16);
}

// What is added to sums, as instructions for the reason that byte_products-inl.h gives.
#if HWY_TARGET == HWY_AVX3_DL
HWY_INLINE void AddByteProducts(hn::Vec<LB> weights, hn::Vec<L32> activations, hn::Vec<L32>& sums) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.raw) : "v"(weights.raw), "v"(activations.raw));
}
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#if HWY_TARGET == HWY_AVX2
HWY_INLINE void AddByteProducts(hn::Vec<LB> weights, hn::Vec<L32> activations, hn::Vec<L32>& sums) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums.raw) : "x"(weights.raw), "x"(activations.raw));
}
#endif
HWY_INLINE void AddPairsOfBytes(hn::Vec<LB> weights, hn::Vec<L32> activations, hn::Vec<L16>& sums) {
#if HWY_TARGET == HWY_AVX2
  const auto pairs = _mm256_maddubs_epi16(weights.raw, activations.raw);
#else
  const auto pairs = _mm512_maddubs_epi16(weights.raw, activations.raw);
#endif
  // Else GCC 12 adds in trees, for which registers are too few, and copies.
  asm("vpaddw %1, %0, %0" : "+v"(sums.raw) : "v"(pairs));
}
#elif HWY_ARCH_ARM_A64
// sums (2 outputs, 2 rows) += weights (2 outputs, 8 inputs) · rows (2, 8 inputs)ᵀ. The assembler is told of such
// processors, the compiler is not: it would not inline this into functions for all.
HWY_INLINE void AddMatrixProduct(hn::Vec<LB> weights, hn::Vec<LB> rows, hn::Vec<L32>& sums) {
  asm(".arch armv8.6-a+crypto\n\tsmmla %0.4s, %1.16b, %2.16b"
      : "+w"(sums.raw)
      : "w"(weights.raw), "w"(rows.raw));
}
#endif

// ---- Panels of bytes ----

// As bytes (group, 8 fours of inputs, output, 4), for matrices (group, 4 eights of inputs, 2 halves of a vector's outputs,
// vector, output, 8).
template <class Q, By kHow, class Outputs>
HWY_INLINE void FillBytePanel(const Outputs& outputs, int groups, Panel& panel) {
  if constexpr (kHow == By::widened) {
    FillPanel<Q>(outputs, groups, kWidenedAtOnce + 1, panel);
  } else if constexpr (kHow == By::fours && kInOrder<Q, Outputs>) {
    static_assert(kBias<kHow> == kTurnedBias);
    LoadScales<Q>(outputs, groups, panel);
    panel.bytes = outputs.template quants<Q>(0);
    panel.group_bytes = kTurnedRows * Q::kBytes;
  } else {
    LoadScales<Q>(outputs, groups, panel);
    panel.bytes = reinterpret_cast<const uint8_t*>(panel.weights);
    panel.group_bytes = 32 * kPanel;
    constexpr uint8_t kLess = static_cast<uint8_t>(kIsSigned<Q> ? Q::kLess - kBias<kHow> : 0);
    uint8_t* const panel_bytes = reinterpret_cast<uint8_t*>(panel.weights);
    EachDword<Q>(outputs, groups, panel.turned, [&](int group, int dword, int vec, auto weights) HWY_ATTR {
      if constexpr (kLess > 0) weights = hn::Sub(weights, hn::Set(LB(), kLess));
      uint8_t* to = panel_bytes + ((group * 8 + dword) * kPanelVecs + vec) * 4 * kLanes32;
      if (kHow == By::matrices && dword % 2 == 1) {
        uint8_t* const to_first = to - kPanelVecs * 4 * kLanes32;
        const auto fours = hn::BitCast(L32(), hn::Load(LB(), to_first)), next = hn::BitCast(L32(), weights);
        hn::Store(hn::BitCast(LB(), hn::InterleaveLower(L32(), fours, next)), LB(), to_first);
        weights = hn::BitCast(LB(), hn::InterleaveUpper(L32(), fours, next));
      }
      hn::Store(weights, LB(), to);
    });
  }
}

HWY_INLINE const uint8_t* PanelBytes(const Panel& panel, int group) {
  return panel.bytes + group * panel.group_bytes;
}

// The sub-block's scales of a panel's outputs as numbers.
HWY_INLINE hn::Vec<LF> ScaleOf(const Panel& panel, int sub, int vec) {
  const auto twice = hn::Load(L16(), panel.scales256.scale[sub] + vec * 2 * kLanes32);
  return hn::ConvertTo(LF(), hn::ShiftRight<16>(hn::BitCast(L32(), twice)));
}

// sums (R, kPanelVecs) += R rows' products with kSub inputs.
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2

template <int kSub, int R>
HWY_INLINE void MultiplySubBlock(const uint8_t* w, const int8_t* a, hn::Vec<L32> (&sums)[R][kPanelVecs]) {
#pragma GCC unroll 8
  for (int four = 0; four < kSub / 4; four++, w += 4 * kPanel, a += 4) {
    const auto w0 = hn::Load(LB(), w), w1 = hn::Load(LB(), w + 4 * kLanes32);
    for (int r = 0; r < R; r++) {
      int32_t bytes;
      hwy::CopyBytes<4>(a + r * kChunk, &bytes);
      const auto spread = hn::Set(L32(), bytes);  // once for both: loads are what there are fewest of
      AddByteProducts(w0, spread, sums[r][0]);
      AddByteProducts(w1, spread, sums[r][1]);
    }
  }
}

#elif HWY_ARCH_ARM_A64

// Two rows at a time; of an odd number the last one is its own partner.
template <int kSub, int R>
HWY_INLINE void MultiplySubBlock(const uint8_t* w, const int8_t* a, hn::Vec<L32> (&sums)[R][kPanelVecs]) {
  constexpr int kPairs = (R + 1) / 2, kParts = 2 * kPanelVecs;
  const hn::Half<LB> half;
  hn::Vec<L32> parts[kPairs][kParts];  // of two outputs: (output, row)
  for (auto& of_pair : parts)
    for (auto& part : of_pair) part = hn::Zero(L32());
#pragma GCC unroll 4
  for (int eight = 0; eight < kSub / 8; eight++, w += 8 * kPanel, a += 8)
    for (int pair = 0; pair < kPairs; pair++) {
      const auto* of_pair = reinterpret_cast<const uint8_t*>(a + 2 * pair * kChunk);
      const auto first = hn::LoadU(half, of_pair);
      const auto second = 2 * pair + 1 < R ? hn::LoadU(half, of_pair + kChunk) : first;
      const auto rows = hn::Combine(LB(), second, first);
      for (int part = 0; part < kParts; part++)
        AddMatrixProduct(hn::Load(LB(), w + part * 4 * kLanes32), rows, parts[pair][part]);
    }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kPanelVecs; v++) {
      const auto lower = parts[r / 2][v], upper = parts[r / 2][kPanelVecs + v];
      const auto of_row =
          r % 2 == 0 ? hn::ConcatEven(L32(), upper, lower) : hn::ConcatOdd(L32(), upper, lower);
      sums[r][v] = hn::Add(sums[r][v], of_row);
    }
}

#endif

// products (R, kPanelVecs) = P of a group.
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

template <class Q, By kHow, int R>
HWY_INLINE void MultiplyPanelGroup(const Panel& panel, int group, const ByteActivations& rows,
                                   hn::Vec<LF> (&products)[R][kPanelVecs]) requires(kHow == By::fours ||
                                                                                    kHow == By::matrices) {
  const LF d;
  constexpr int kSub = sub_block<Q>();
  const uint8_t* w = PanelBytes(panel, group);
  for (int half = 0; half < 32 / kSub; half++, w += kSub * kPanel) {
    const int sub = group * 32 / kSub + half;
    hn::Vec<L32> s[R][kPanelVecs];
    for (int r = 0; r < R; r++) {
      s[r][0] = kIsSigned<Q> && kBias<kHow> > 0
                    ? hn::Set(L32(), rows.offsets[r * kByteSums + kSumsBegin<kSub> + sub])
                    : hn::Zero(L32());
      s[r][1] = s[r][0];
    }
    MultiplySubBlock<kSub, R>(w, rows.bytes + sub * kSub, s);
    for (int v = 0; v < kPanelVecs; v++) {
      if constexpr (kHasBlocks256<Q>) {
        const auto scale = ScaleOf(panel, sub, v);
        for (int r = 0; r < R; r++) {
          const auto sum = hn::ConvertTo(d, s[r][v]);
          products[r][v] = half == 0 ? hn::Mul(sum, scale) : hn::MulAdd(sum, scale, products[r][v]);
        }
      } else {
        for (int r = 0; r < R; r++) products[r][v] = hn::ConvertTo(d, s[r][v]);
      }
    }
  }
}

#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// Inputs whose products surely fit together: two of four are in one lane, by 127 each.
template <class Q>
constexpr int safe_inputs() {
  if constexpr (sub_block<Q>() == 16 || std::is_same_v<Q, Q5K> || std::is_same_v<Q, Q5_1>) return 16;
  return 32;  // 16 · 16 · 127 < 2^15
}

template <class Q, By kHow, int R>
HWY_INLINE void MultiplyPanelGroup(const Panel& panel, int group, const ByteActivations& rows,
                                   hn::Vec<LF> (&products)[R][kPanelVecs]) requires(kHow == By::pairs) {
  constexpr int kRun = safe_inputs<Q>();
  alignas(64) int32_t before[R * kPanel];
  hn::Vec<L32> sums[R][kPanelVecs];
  const uint8_t* w = PanelBytes(panel, group);
  for (int run = 0; run < 32 / kRun; run++) {
    const int at = group * 32 / kRun + run;
    hn::Vec<L16> s[R][kPanelVecs];
    for (int r = 0; r < R; r++) {
      s[r][0] = hn::Zero(L16());
      if constexpr (kIsSigned<Q>)
        s[r][0] = hn::BitCast(L16(), hn::Set(L32(), rows.offsets[r * kByteSums + kSumsBegin<kRun> + at]));
      s[r][1] = s[r][0];
    }
    const int8_t* a = rows.bytes + at * kRun;
#pragma GCC unroll 8
    for (int four = 0; four < kRun / 4; four++, w += 4 * kPanel, a += 4) {
      const auto w0 = hn::Load(LB(), w), w1 = hn::Load(LB(), w + 4 * kLanes32);
      for (int r = 0; r < R; r++) {
        int32_t bytes;
        hwy::CopyBytes<4>(a + r * kChunk, &bytes);
        const auto spread = hn::Set(L32(), bytes);
        AddPairsOfBytes(w0, spread, s[r][0]);
        AddPairsOfBytes(w1, spread, s[r][1]);
      }
    }
    for (int v = 0; v < kPanelVecs; v++) {
      auto scale = hn::Set(L16(), 1);
      if constexpr (kHasBlocks256<Q>)
        scale = hn::Load(L16(), panel.scales256.scale[at * kRun / Q::kSub] + v * 2 * kLanes32);
      for (int r = 0; r < R; r++) {
        int32_t* to = before + r * kPanel + v * kLanes32;
        hn::Vec<L32> first = hn::Zero(L32()), unused = first;  // x86 adds pairs
        if (run > 0) first = hn::Load(L32(), to);
        sums[r][v] = hn::ReorderWidenMulAccumulate(L32(), s[r][v], scale, first, unused);
        if (run + 1 < 32 / kRun) hn::Store(sums[r][v], L32(), to);
      }
    }
    if (run + 1 < 32 / kRun) KeepInMemory(before);  // registers are for the sums
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kPanelVecs; v++) products[r][v] = hn::ConvertTo(LF(), sums[r][v]);
}

#endif

#if HWY_TARGET != HWY_AVX3_DL
template <class Q, By kHow, int R>
HWY_INLINE void MultiplyPanelGroup(const Panel& panel, int group, const ByteActivations& rows,
                                   hn::Vec<LF> (&products)[R][kPanelVecs]) requires(kHow == By::widened) {
  hn::Vec<L32> sums[R][kPanelVecs];
  MultiplyRun<16, R>(panel, PanelRows{rows.quants, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr},
                     group * 16, sums);
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kPanelVecs; v++) products[r][v] = hn::ConvertTo(LF(), sums[r][v]);
}
#endif

// sums (R, kPanel) += panel · R rows.
template <class Q, By kHow, int R>
void MultiplyBytePanel(const Panel& panel, int groups, const ByteActivations& rows, float* sums,
                       NextPanel& next) {
  const LF d;
  using V = hn::Vec<LF>;
  alignas(64) float part[R * kPanel];  // of blocks of 32, the sums
  for (int i = 0; i < R * kPanel; i += kLanes32)
    hn::Store(kHasBlocks256<Q> ? hn::Zero(d) : hn::Load(d, sums + i), d, part + i);
  for (int group = 0; group < groups; group++) {
    V products[R][kPanelVecs];
    next.fetch();
    MultiplyPanelGroup<Q, kHow, R>(panel, group, rows, products);
    for (int r = 0; r < R; r++) {
      const auto a_scale = hn::Set(d, rows.scales[r * kChunkGroups + group]);
      for (int v = 0; v < kPanelVecs; v++) {
        float* to = part + r * kPanel + v * kLanes32;
        if constexpr (kHasBlocks256<Q>) {
          hn::Store(hn::MulAdd(products[r][v], a_scale, hn::Load(d, to)), d, to);
        } else {
          const auto scale = hn::Mul(hn::Load(d, panel.scales32.scale[group] + v * kLanes32), a_scale);
          V sum = hn::MulAdd(products[r][v], scale, hn::Load(d, to));
          if constexpr (Q::kHasMin) {
            const auto a_sum = hn::Set(d, rows.sums[r * kByteSums + kSumsBegin<32> + group]);
            sum = hn::MulAdd(hn::Load(d, panel.scales32.min[group] + v * kLanes32), a_sum, sum);
          }
          hn::Store(sum, d, to);
        }
      }
    }
    KeepInMemory(part);  // registers are for the sums of integers
  }
  for (int v = 0; v < kPanelVecs; v++) {
    [[maybe_unused]] V least[R];
    if constexpr (kHasBlocks256<Q>) {
      if constexpr (Q::kHasMin) {
        for (int r = 0; r < R; r++) least[r] = hn::Zero(d);
        for (int sub = 0; sub < 256 / Q::kSub; sub++) {
          const auto min = hn::ConvertTo(d, hn::Load(L32(), panel.scales256.min[sub] + v * kLanes32));
          for (int r = 0; r < R; r++)
            least[r] =
                hn::MulAdd(min, hn::Set(d, rows.sums[r * kByteSums + kSumsBegin<Q::kSub> + sub]), least[r]);
        }
      }
    }
    for (int r = 0; r < R; r++) {
      const int at = r * kPanel + v * kLanes32;
      V sum = hn::Load(d, part + at);
      if constexpr (kHasBlocks256<Q>) {
        sum = hn::MulAdd(hn::Load(d, panel.scales256.unit + v * kLanes32), sum, hn::Load(d, sums + at));
        if constexpr (Q::kHasMin)
          sum = hn::MulAdd(hn::Load(d, panel.scales256.min_unit + v * kLanes32), least[r], sum);
      }
      hn::Store(sum, d, sums + at);
    }
  }
}

template <class Q, By kHow, int R>
HWY_INLINE void MultiplyRowsOfBytePanel(const Panel& panel, int groups, int64_t count, int64_t& row,
                                        const ByteActivations& rows, float* sums, NextPanel& next) {
  for (; row + R <= count; row += R)
    MultiplyBytePanel<Q, kHow, R>(panel, groups, rows.from(0, row), sums + row * kPanel, next);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_PANEL_BYTES_INL_H_
