// Weights as stored, in blocks of 32 or as f32, f16 and bf16, times a few rows: the inner loops of decoding.
// Each piece of weights is loaded and unpacked once for all R rows. What makes one (output, row) result does not
// depend on R, so a row's result is the same in every batch; blocks of 32 add in the order of scales-inl.h, as
// panels do, which take over where rows are many.
#if defined(WI_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_DOT_INL_H_
#undef WI_KERNELS_CPU_DOT_INL_H_
#else
#define WI_KERNELS_CPU_DOT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/floats-inl.h"
#include "kernels/cpu/scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

// The hardware's prefetchers lose their way among O rows that each advance a little. The same place of the
// next tile is far enough ahead, and on its way into the second cache does not crowd the first. (Zen 4,
// Q8_0, O = 4: 22 GB/s of one core's 23; 12 without.)
HWY_INLINE void PrefetchNextTile(const uint8_t* p, size_t tile_bytes) {
  __builtin_prefetch(p + tile_bytes, 0, 2);
}

constexpr int kTile32 = 8;  // outputs

using DPairs = hn::Repartition<int16_t, D8>;
using DSums = hn::Repartition<int32_t, D8>;  // of pairs
using VSums = hn::Vec<DSums>;
using DTile = hn::CappedTag<float, kTile32>;
using VTile = hn::Vec<DTile>;
constexpr int kTileVecs = kTile32 / static_cast<int>(hn::MaxLanes(DTile()));
static_assert(hn::MaxLanes(DTile()) == hn::MaxLanes(DSums()));

// Each 128 bits of the result: the sums of the same 128 bits of a, b, c, d.
template <class D, class V>
HWY_INLINE V SumsOfFour(D d32, V a, V b, V c, V d) {
  const hn::Repartition<uint64_t, D> d64;
  const auto ab = hn::Add(hn::InterleaveLower(d32, a, b), hn::InterleaveUpper(d32, a, b));
  const auto cd = hn::Add(hn::InterleaveLower(d32, c, d), hn::InterleaveUpper(d32, c, d));
  const auto ab64 = hn::BitCast(d64, ab), cd64 = hn::BitCast(d64, cd);
  return hn::Add(hn::BitCast(d32, hn::InterleaveLower(d64, ab64, cd64)),
                 hn::BitCast(d32, hn::InterleaveUpper(d64, ab64, cd64)));
}

// A chunk of weights of kTile32 outputs against R rows.
template <int R>
struct ChunkRows {
  const uint8_t* weights[kTile32];
  const int16_t* quants[R];
  alignas(64) int32_t less[R][8];  // (row, block) kLess · Σ activations: to be subtracted
  Scales32<kTile32> scales;
  VTile part[R][kTileVecs];
};

// part += scale · sum; sums: of one sub-block, all outputs.
template <class Q, int R>
HWY_INLINE void AddSub(ChunkRows<R>& chunk, int r, int sub, const VSums (&sums)[kTileVecs]) {
  const DTile d;
  for (int v = 0; v < kTileVecs; v++) {
    const auto scale = hn::Load(d, chunk.scales.scale[sub] + v * static_cast<int>(hn::MaxLanes(d)));
    VSums sum = sums[v];
    if constexpr (Q::kLess > 0) sum = hn::Sub(sum, hn::Set(DSums(), chunk.less[r][sub]));
    chunk.part[r][v] = hn::MulAdd(hn::ConvertTo(d, sum), scale, chunk.part[r][v]);
  }
}

// One group of 32 inputs.
template <class Q, int R, int group>
HWY_INLINE void AddGroup(ChunkRows<R>& chunk) {
  const DSums d32;
  VSums quads[R][kParts][2];  // of four outputs: by 128 bits, which are 16 inputs
  for (int q = 0; q < 2; q++) {
    VSums sums[R][kParts][4];
    for (int o = 0; o < 4; o++)
      for (int part = 0; part < kParts; part++) {
        const V8 bytes = GroupBytes<Q, group>(chunk.weights[4 * q + o], part);
        const auto odd = OddBytes(DPairs(), bytes);
        auto even = hn::And(hn::BitCast(DPairs(), bytes), hn::Set(DPairs(), 255));  // one operation less
        if constexpr (std::is_same_v<Q, Q8_0>) even = EvenBytes(DPairs(), bytes);
        for (int r = 0; r < R; r++) {
          const int16_t* a = chunk.quants[r] + group * 32 + part * kLanes8 / 2;
          VSums rest = hn::Zero(d32), sum = rest;  // x86 adds pairs and has no rest
          sum = hn::ReorderWidenMulAccumulate(d32, even, hn::Load(DPairs(), a), sum, rest);
          sum = hn::ReorderWidenMulAccumulate(d32, odd, hn::Load(DPairs(), a + 16), sum, rest);
          sums[r][part][o] = hn::RearrangeToOddPlusEven(sum, rest);
        }
      }
    for (int r = 0; r < R; r++)
      for (int part = 0; part < kParts; part++) {
        const auto& s = sums[r][part];
        quads[r][part][q] = SumsOfFour(d32, s[0], s[1], s[2], s[3]);
      }
  }
  for (int r = 0; r < R; r++) {
    VSums first[kTileVecs], second[kTileVecs];  // of 16 inputs each
    if constexpr (kParts == 1) {
      first[0] = hn::ConcatLowerLower(d32, quads[r][0][1], quads[r][0][0]);
      second[0] = hn::ConcatUpperUpper(d32, quads[r][0][1], quads[r][0][0]);
    } else {
      for (int v = 0; v < kTileVecs; v++) first[v] = quads[r][0][v], second[v] = quads[r][kParts - 1][v];
    }
    for (int v = 0; v < kTileVecs; v++) first[v] = hn::Add(first[v], second[v]);
    AddSub<Q>(chunk, r, group, first);
  }
}

// kTile32 outputs, as stored, times R rows from `row` on. outputs: how many there are; the others are
// reckoned too, as the last one. out: (R, kTile32).
template <class Q, int R>
void Dot32(const uint8_t* weights, size_t stride, int outputs, const Activations& in, int64_t row,
           float* out) {
  const DTile d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  ChunkRows<R> chunk;
  VTile sums[R][kTileVecs];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kTileVecs; v++) sums[r][v] = hn::Zero(d);
  for (int64_t c = 0; c < in.chunks; c++) {
    const int groups = in.groups(c);
    const int64_t chunk_bytes = GroupsBytes<Q>(groups);
    for (int o = 0; o < kTile32; o++) {
      chunk.weights[o] =
          weights + static_cast<size_t>(HWY_MIN(o, outputs - 1)) * stride + c * GroupsBytes<Q>(8);
      for (int64_t line = 0; line < chunk_bytes; line += 64)
        PrefetchNextTile(chunk.weights[o] + line, kTile32 * stride);
    }
    LoadScales32<Q>(chunk.weights, groups, chunk.scales);
    for (int r = 0; r < R; r++) {
      const int64_t at = c * in.rows + row + r;
      chunk.quants[r] = in.quants + at * kChunk;
      if constexpr (Q::kLess > 0) {
        const float* a_sums = in.group_sums + at * kChunkGroups;
        for (int sub = 0; sub < 8; sub += kLanes)
          hn::Store(hn::ConvertTo(DSums(), hn::Mul(hn::Load(d, a_sums + sub), hn::Set(d, Q::kLess))), DSums(),
                    chunk.less[r] + sub);
      }
      for (int v = 0; v < kTileVecs; v++) chunk.part[r][v] = hn::Zero(d);
    }
    if (groups > 0) AddGroup<Q, R, 0>(chunk);
    if (groups > 1) AddGroup<Q, R, 1>(chunk);
    if (groups > 2) AddGroup<Q, R, 2>(chunk);
    if (groups > 3) AddGroup<Q, R, 3>(chunk);
    if (groups > 4) AddGroup<Q, R, 4>(chunk);
    if (groups > 5) AddGroup<Q, R, 5>(chunk);
    if (groups > 6) AddGroup<Q, R, 6>(chunk);
    if (groups > 7) AddGroup<Q, R, 7>(chunk);
    for (int r = 0; r < R; r++) {
      const int64_t at = c * in.rows + row + r;
      const float* a_sums = in.group_sums + at * kChunkGroups;
      for (int v = 0; v < kTileVecs; v++) {
        if constexpr (Q::kHasMin) {
          for (int sub = 0; sub < groups; sub++)
            chunk.part[r][v] = hn::MulAdd(hn::Load(d, chunk.scales.min[sub] + v * kLanes),
                                          hn::Set(d, a_sums[sub]), chunk.part[r][v]);
        }
        sums[r][v] = hn::MulAdd(chunk.part[r][v], hn::Set(d, in.scales[at]), sums[r][v]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < kTileVecs; v++) hn::Store(sums[r][v], d, out + r * kTile32 + v * kLanes);
}

// A tile's weights are O rows, its results (O, R).
struct Tile {
  const uint8_t* weights;
  size_t stride;  // bytes from one row of weights to the next
  int64_t row;    // first of R rows of activations
  float* out;
};

// f32, f16 and bf16 weights against f32 activations. Two sums hide the latency of the additions.
template <class T, int O, int R>
HWY_INLINE void DotFloats(const Tile& tile, const Activations& in) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr int64_t kTurn = 256;  // columns of one output before the next has its turn
  const int64_t paired = in.cols / (2 * kLanes) * (2 * kLanes);
  const float* a[R];
  V acc[O][R][2];
  for (int r = 0; r < R; r++) a[r] = in.values + (tile.row + r) * in.cols;
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) acc[o][r][0] = acc[o][r][1] = hn::Zero(d);
  for (int64_t first = 0; first < in.cols; first += kTurn) {
    for (int o = 0; o < O; o++) {
      const uint8_t* bytes = tile.weights + static_cast<size_t>(o) * tile.stride;
      const T* w = reinterpret_cast<const T*>(bytes);
      V even[R], odd[R];
      for (int r = 0; r < R; r++) even[r] = acc[o][r][0], odd[r] = acc[o][r][1];
      int64_t i = first;
      for (const int64_t last = HWY_MIN(first + kTurn, paired); i < last; i += 2 * kLanes) {
        PrefetchNextTile(reinterpret_cast<const uint8_t*>(w + i), O * tile.stride);
        const V w0 = LoadFloats(d, w + i);
        const V w1 = LoadFloats(d, w + i + kLanes);
        for (int r = 0; r < R; r++) {
          even[r] = hn::MulAdd(w0, hn::LoadU(d, a[r] + i), even[r]);
          odd[r] = hn::MulAdd(w1, hn::LoadU(d, a[r] + i + kLanes), odd[r]);
        }
      }
      for (; i < HWY_MIN(first + kTurn, in.cols); i += kLanes) {  // the rest, zeros behind it
        const size_t count = static_cast<size_t>(HWY_MIN(in.cols - i, kLanes));
        alignas(64) T w_rest[kLanes] = {};
        alignas(64) float a_rest[kLanes] = {};
        std::memcpy(static_cast<void*>(w_rest), w + i, count * sizeof(T));
        const V w0 = LoadFloats(d, w_rest);
        for (int r = 0; r < R; r++) {
          std::memcpy(a_rest, a[r] + i, count * sizeof(float));
          even[r] = hn::MulAdd(w0, hn::Load(d, a_rest), even[r]);
        }
      }
      for (int r = 0; r < R; r++) acc[o][r][0] = even[r], acc[o][r][1] = odd[r];
    }
  }
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++)
      tile.out[o * R + r] = hn::GetLane(hn::SumOfLanes(d, hn::Add(acc[o][r][0], acc[o][r][1])));
}

// For matmul_decode.cpp.
template <class T>
struct DotFloat {
  template <int O, int R>
  static void Run(const Tile& tile, const Activations& in) {
    DotFloats<T, O, R>(tile, in);
  }
};

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT_INL_H_
