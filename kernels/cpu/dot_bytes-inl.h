// Quantised weights as stored times a few rows of 8-bit integers. With P the exact integer Σ scale_j·q·a over a
// group of 32 inputs (of blocks of 32, scale_j = 1) and a_g the group's scale of the activations, a row and an
// output are, of blocks of 32,
//   for each group: sum += P · (scale · a_g), then, with minima, sum += min · (a_g · Σ a)
// and of blocks of 256,
//   part = 0, least = 0;  for each group: part += P · a_g;  for each sub-block: least += min_j · (a_g · Σ a)
//   sum += d · part;  sum -= dmin · least
// in this order, as panel_bytes-inl.h has it: so a row's bits are the same however many rows there are. P fits
// into the 24 bits of an f32.
#if defined(WI_KERNELS_CPU_DOT_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_DOT_BYTES_INL_H_
#undef WI_KERNELS_CPU_DOT_BYTES_INL_H_
#else
#define WI_KERNELS_CPU_DOT_BYTES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/byte_activations.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/dot256-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// Where a sub-block's sums begin among ByteActivations::sums and ::offsets of a row.
template <int kSub>
constexpr int kSumsBegin = kSub == 16 ? 0 : 16;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// signed · signed as |w| · (a with w's sign): ≤ 2 · 128 · 127, no saturation, because no a is -128.
HWY_INLINE hn::Vec<D16Pairs> MultiplySignedPairs(V8 weights, const int8_t* activations) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(activations));
  return hn::Vec<D16Pairs>{
      _mm256_maddubs_epi16(_mm256_abs_epi8(weights.raw), _mm256_sign_epi8(a, weights.raw))};
}
#else
hn::Vec<D16Pairs> MultiplySignedPairs(V8, const int8_t*);  // there is none
#endif

// A chunk of weights of kTile32 outputs against R rows.
template <int R>
struct ByteChunk {
  const uint8_t* weights[kTile32];
  const int8_t* bytes[R];
  union {
    Scales32<kTile32> scales32;
    Scales256<kTile32> scales256;
  };
};

// An output's scales of a group's sub-blocks, each twice in 32 bits.
template <class Q, int R, int group>
HWY_INLINE void LoadScalePair(const ByteChunk<R>& chunk, int output, uint32_t (&scales)[2]) {
  constexpr int first = group * 32 / Q::kSub;
  hwy::CopyBytes<4>(chunk.scales256.scale[first] + 2 * output, &scales[0]);
  if constexpr (Q::kSub == 16) hwy::CopyBytes<4>(chunk.scales256.scale[first + 1] + 2 * output, &scales[1]);
}

// sums: P of one output, in parts, for each row; less: what the rows' products have too much.
template <class Q, int R, int group>
HWY_INLINE void MultiplyGroup(const ByteChunk<R>& chunk, int output,
                              [[maybe_unused]] const hn::Vec<D16Pairs> (&less)[R], V32 (&sums)[R]) {
  [[maybe_unused]] uint32_t scales[2];
  if constexpr (kHasBlocks256<Q>) LoadScalePair<Q, R, group>(chunk, output, scales);
  if constexpr (kPairsOfBytes) {
    auto scale = hn::Set(D16Pairs(), 1);
    if constexpr (kHasBlocks256<Q>) scale = SpreadScale<Q::kSub, 32>(scales);
    const V8 w = GroupBytes<Q, group>(chunk.weights[output], 0);
    for (int r = 0; r < R; r++) {
      hn::Vec<D16Pairs> pairs;
      if constexpr (std::is_same_v<Q, Q8_0>) {
        pairs = MultiplySignedPairs(w, chunk.bytes[r] + group * 32);
      } else {
        pairs = MultiplyPairs(w, chunk.bytes[r] + group * 32);
      }
      if constexpr (Q::kLess > 0) pairs = hn::Sub(pairs, less[r]);
      V32 unused = hn::Zero(D32());  // x86 adds pairs
      sums[r] = hn::ReorderWidenMulAccumulate(D32(), pairs, scale, unused, unused);
    }
  } else {
    const hn::Rebind<int8_t, D16> d8;
    V16 w[kVecs];
    if constexpr (kHasBlocks256<Q>) {
      LoadGroup<Q, group>(chunk.weights[output], w);
      for (int v = 0; v < kVecs; v++)
        w[v] = hn::Mul(w[v], SpreadScale<Q::kSub, kLanes16>(scales + v * kLanes16 / Q::kSub));
    } else {
      LoadGroup<Q, 0>(chunk.weights[output] + group * Q::kBytes, w);
    }
    for (int r = 0; r < R; r++) {
      V32 even = hn::Zero(D32()), odd = hn::Zero(D32());
      for (int v = 0; v < kVecs; v++) {
        const auto a = hn::PromoteTo(D16(), hn::LoadU(d8, chunk.bytes[r] + group * 32 + v * kLanes16));
        even = hn::ReorderWidenMulAccumulate(D32(), w[v], a, even, odd);
      }
      sums[r] = hn::Add(even, odd);
    }
  }
}

// P of a group: all outputs side by side, of each row.
template <class Q, int R, int group>
HWY_INLINE void MultiplyGroups(const ByteChunk<R>& chunk, VTile (&products)[R][kTileVecs]) {
  static_assert(hn::MaxLanes(D32()) == hn::MaxLanes(DSums()));
  hn::Vec<D16Pairs> less[R];
  for (int r = 0; r < R; r++) {
    if constexpr (kPairsOfBytes && Q::kLess > 0) {
      less[r] = MultiplyPairs(hn::Set(D8(), Q::kLess), chunk.bytes[r] + group * 32);
    } else {
      less[r] = hn::Zero(D16Pairs());
    }
  }
  VSums quads[R][2];  // of four outputs: by 128 bits
  for (int q = 0; q < 2; q++) {
    V32 sums[4][R];
    for (int o = 0; o < 4; o++) MultiplyGroup<Q, R, group>(chunk, 4 * q + o, less, sums[o]);
    for (int r = 0; r < R; r++)
      quads[r][q] = SumsOfFour(DSums(), sums[0][r], sums[1][r], sums[2][r], sums[3][r]);
  }
  for (int r = 0; r < R; r++) {
    if constexpr (kTileVecs == 1) {
      const auto lower = hn::ConcatLowerLower(DSums(), quads[r][1], quads[r][0]);
      const auto upper = hn::ConcatUpperUpper(DSums(), quads[r][1], quads[r][0]);
      products[r][0] = hn::ConvertTo(DTile(), hn::Add(lower, upper));
    } else {
      for (int v = 0; v < kTileVecs; v++) products[r][v] = hn::ConvertTo(DTile(), quads[r][v]);
    }
  }
}

// to: of blocks of 32 the sums, of blocks of 256 the parts.
template <class Q, int R, int group>
HWY_INLINE void AddByteGroup(const ByteChunk<R>& chunk, const ByteActivations& rows,
                             VTile (&to)[R][kTileVecs]) {
  const DTile d;
  VTile products[R][kTileVecs];
  MultiplyGroups<Q, R, group>(chunk, products);
  for (int r = 0; r < R; r++) {
    const auto a_scale = hn::Set(d, rows.scales[r * kChunkGroups + group]);
    for (int v = 0; v < kTileVecs; v++) {
      if constexpr (kHasBlocks256<Q>) {
        to[r][v] = hn::MulAdd(products[r][v], a_scale, to[r][v]);
      } else {
        const int at = v * static_cast<int>(hn::MaxLanes(d));
        const auto scale = hn::Mul(hn::Load(d, chunk.scales32.scale[group] + at), a_scale);
        to[r][v] = hn::MulAdd(products[r][v], scale, to[r][v]);
        if constexpr (Q::kHasMin) {
          const auto a_sum = hn::Set(d, rows.sums[r * kByteSums + kSumsBegin<32> + group]);
          to[r][v] = hn::MulAdd(hn::Load(d, chunk.scales32.min[group] + at), a_sum, to[r][v]);
        }
      }
    }
  }
}

template <class Q, int R, int... group>
HWY_INLINE void AddByteGroups(std::integer_sequence<int, group...>, int groups, const ByteChunk<R>& chunk,
                              const ByteActivations& rows, VTile (&to)[R][kTileVecs]) {
  if constexpr (kHasBlocks256<Q>) {
    (AddByteGroup<Q, R, group>(chunk, rows, to), ...);
  } else {
    ((group < groups ? AddByteGroup<Q, R, group>(chunk, rows, to) : void()), ...);
  }
}

// kTile32 outputs, as stored, times R rows from `row` on. outputs: how many there are; the others are
// reckoned too, as the last one. out: (R, kTile32).
template <class Q, int R>
void DotBytes(const uint8_t* weights, size_t stride, int outputs, const ByteActivations& in, int64_t row,
              float* out) {
  const DTile d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  ByteChunk<R> chunk;
  VTile sums[R][kTileVecs];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kTileVecs; v++) sums[r][v] = hn::Zero(d);
  for (int64_t c = 0; c < in.chunks; c++) {
    const int groups = in.groups(c);
    const ByteActivations rows = in.from(c, row);
    for (int o = 0; o < kTile32; o++) {
      chunk.weights[o] =
          weights + static_cast<size_t>(HWY_MIN(o, outputs - 1)) * stride + c * GroupsBytes<Q>(8);
      for (int64_t line = 0; line < GroupsBytes<Q>(groups); line += 64)
        PrefetchNextTile(chunk.weights[o] + line, kTile32 * stride);
    }
    for (int r = 0; r < R; r++) chunk.bytes[r] = rows.bytes + r * kChunk;
    constexpr std::make_integer_sequence<int, 8> kGroups;
    if constexpr (kHasBlocks256<Q>) {
      LoadScales256<Q>(chunk.weights, chunk.scales256);
      VTile parts[R][kTileVecs];
      for (int r = 0; r < R; r++)
        for (int v = 0; v < kTileVecs; v++) parts[r][v] = hn::Zero(d);
      AddByteGroups<Q, R>(kGroups, groups, chunk, rows, parts);
      for (int r = 0; r < R; r++)
        for (int v = 0; v < kTileVecs; v++) {
          const int at = v * kLanes;
          sums[r][v] = hn::MulAdd(hn::Load(d, chunk.scales256.unit + at), parts[r][v], sums[r][v]);
          if constexpr (Q::kHasMin) {
            const float* a_sums = rows.sums + r * kByteSums + kSumsBegin<Q::kSub>;
            auto least = hn::Zero(d);
            for (int sub = 0; sub < 256 / Q::kSub; sub++)
              least = hn::MulAdd(hn::ConvertTo(d, hn::Load(DSums(), chunk.scales256.min[sub] + at)),
                                 hn::Set(d, a_sums[sub]), least);
            sums[r][v] = hn::MulAdd(hn::Load(d, chunk.scales256.min_unit + at), least, sums[r][v]);
          }
        }
    } else {
      LoadScales32<Q>(chunk.weights, groups, chunk.scales32);
      AddByteGroups<Q, R>(kGroups, groups, chunk, rows, sums);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kTileVecs; v++) hn::Store(sums[r][v], d, out + r * kTile32 + v * kLanes);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT_BYTES_INL_H_
