// Weights as stored times a few rows: the inner loops of decoding. Each piece of weights is loaded and
// unpacked once for all R rows. What makes one (output, row) result does not depend on R, so a row's result
// is the same in every batch. Formats of blocks of 32 add in the order of scales-inl.h, as panels do, which
// take over where rows are many; the others take their outputs in turns a kilobyte or less at a time, so that
// activations that do not fit into the first cache are fetched once for O outputs.
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
HWY_INLINE VSums SumsOfFour(VSums a, VSums b, VSums c, VSums d) {
  const DSums d32;
  const hn::Repartition<uint64_t, DSums> d64;
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
  alignas(64) int32_t less[R][8];  // (row, sub-block) kLess · Σ activations: to be subtracted
  Scales<kTile32> scales;
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
          VSums unused = hn::Zero(d32);  // x86 adds pairs
          const VSums sum = hn::ReorderWidenMulAccumulate(d32, even, hn::Load(DPairs(), a), unused, unused);
          sums[r][part][o] = hn::ReorderWidenMulAccumulate(d32, odd, hn::Load(DPairs(), a + 16), sum, unused);
        }
      }
    for (int r = 0; r < R; r++)
      for (int part = 0; part < kParts; part++) {
        const auto& s = sums[r][part];
        quads[r][part][q] = SumsOfFour(s[0], s[1], s[2], s[3]);
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
    LoadScales<Q>(chunk.weights, groups, chunk.scales);
    for (int r = 0; r < R; r++) {
      const int64_t at = c * in.rows + row + r;
      chunk.quants[r] = in.quants + at * kChunk;
      if constexpr (Q::kLess > 0) {
        const float* a_sums = in.sums + at * kChunkSums + 16;
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
      const float* a_sums = in.sums + at * kChunkSums + 16;
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

using D32 = hn::RepartitionToWide<D16>;  // sums of pairs of products
using DF = hn::Rebind<float, D32>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;

// A tile's weights are O rows, its results (O, R).
struct Tile {
  const uint8_t* weights;
  size_t stride;  // bytes from one row of weights to the next
  int64_t row;    // first of R rows of activations
  float* out;
};

// sums[r] += the 32 weights w times activations of row r.
template <int R>
HWY_INLINE void MultiplyGroup(const V16 (&w)[kVecs], const int16_t* const (&a)[R], int64_t at,
                              V32 (&sums)[R]) {
  for (int r = 0; r < R; r++) {
    V32 odd = hn::Zero(D32());  // on instruction sets that keep odd pairs apart
    for (int v = 0; v < kVecs; v++) {
      const V16 x = hn::Load(D16(), a[r] + at + v * kLanes16);
      sums[r] = hn::ReorderWidenMulAccumulate(D32(), w[v], x, sums[r], odd);
    }
    sums[r] = hn::Add(sums[r], odd);
  }
}

// One group of a block of 256: its weights times their sub-block's scale are still 16-bit integers.
// scales: each one twice in 32 bits, so that one load spreads it.
template <class Q, int R, int group>
HWY_INLINE void Multiply256(const uint8_t* block, const uint32_t* scales, const int16_t* const (&a)[R],
                            int64_t at, V32 (&sums)[R]) {
  const hn::RebindToUnsigned<D32> du;
  V16 w[kVecs];
  LoadGroup<Q, group>(block, w);
  for (int v = 0; v < kVecs; v++) {
    const int sub = (group * 32 + v * kLanes16) / Q::kSub;
    auto scale = hn::Set(du, scales[sub]);
    if constexpr (Q::kSub < kLanes16)
      scale = hn::IfThenElse(hn::FirstN(du, Q::kSub / 2), scale, hn::Set(du, scales[sub + 1]));
    w[v] = hn::Mul(w[v], hn::BitCast(D16(), scale));
  }
  MultiplyGroup<R>(w, a, at + group * 32, sums);
}

// Whether 256-bit vectors multiply bytes in pairs and numbers of 16 bits too: then weights need not be
// widened, and activations are 256 · high + low. Wider vectors widen 32 weights at once, which takes less.
#if HWY_TARGET == HWY_AVX2
constexpr bool kPairsOfBytes = true;

// unsigned · signed, each number with its neighbour; |sum| ≤ 2 · 63 · 128 here.
HWY_INLINE V16 MultiplyPairs(V8 weights, const int8_t* activations) {
  const hn::RebindToSigned<D8> di8;
  return V16{_mm256_maddubs_epi16(weights.raw, hn::Load(di8, activations).raw)};
}
#else
constexpr bool kPairsOfBytes = false;
V16 MultiplyPairs(V8, const int8_t*);  // there is none
#endif

// As Multiply256, of what Group gives: sums of the high bytes' products and of the low ones'.
template <class Q, int R, int group>
HWY_INLINE void MultiplyBytes256(const uint8_t* block, const uint32_t* scales, const int8_t* const (&a)[R],
                                 int64_t at, V32 (&high)[R], V32 (&low)[R]) {
  const hn::RebindToUnsigned<D32> du;
  const V8 w = Q::template Group<group>(block, 0);
  auto spread = hn::Set(du, scales[group * 32 / Q::kSub]);
  if constexpr (Q::kSub == 16)
    spread = hn::IfThenElse(hn::FirstN(du, 4), spread, hn::Set(du, scales[2 * group + 1]));
  const V16 scale = hn::BitCast(D16(), spread);
  for (int r = 0; r < R; r++) {
    V32 odd = hn::Zero(D32());  // stays so: x86 adds pairs
    const int8_t* bytes = a[r] + at + group * 64;
    high[r] = hn::ReorderWidenMulAccumulate(D32(), MultiplyPairs(w, bytes), scale, high[r], odd);
    low[r] = hn::ReorderWidenMulAccumulate(D32(), MultiplyPairs(w, bytes + 32), scale, low[r], odd);
  }
}

// How many groups' products fit into 32 bits: two products a lane and vector, |weight * scale| ≤ 4096 in
// Q6K and 1953 at most elsewhere, |activation| ≤ 32767.
template <class Q>
constexpr int kSafeGroups = std::is_same_v<Q, Q6K>&& kVecs > 1 ? 8 / kVecs : 8;

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
  for (int j = 0; j < kSubs; j += static_cast<int>(hn::MaxLanes(d))) {
    const auto wide = hn::BitCast(d, hn::PromoteTo(d32, hn::LoadU(d8, scales + j)));
    const auto low = hn::And(wide, hn::Set(d, 0xFFFF));
    hn::Store(hn::Or(hn::ShiftLeft<16>(wide), low), d, spread + j);
  }
}

// One block of 256: its products, with d and the activations' scale, to acc.
template <class Q, int R>
HWY_INLINE void AddBlock256(const uint8_t* block, const uint32_t* scales, float d, const Activations& in,
                            int64_t row, int64_t b, VF (&acc)[R]) {
  const int16_t* a[R];
  V32 sums[R];
  for (int r = 0; r < R; r++) a[r] = in.ordered + (b * in.rows + row + r) * kChunk;
  for (int r = 0; r < R; r++) sums[r] = hn::Zero(D32());
  const auto flush = [&]() HWY_ATTR {
    for (int r = 0; r < R; r++) {
      const float scale = d * in.scales[b * in.rows + row + r];
      acc[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), hn::Set(DF(), scale), acc[r]);
      sums[r] = hn::Zero(D32());
    }
  };
  constexpr int safe = kSafeGroups<Q>;
  Multiply256<Q, R, 0>(block, scales, a, 0, sums);
  Multiply256<Q, R, 1>(block, scales, a, 0, sums);
  if constexpr (safe == 2) flush();
  Multiply256<Q, R, 2>(block, scales, a, 0, sums);
  Multiply256<Q, R, 3>(block, scales, a, 0, sums);
  if constexpr (safe <= 4) flush();
  Multiply256<Q, R, 4>(block, scales, a, 0, sums);
  Multiply256<Q, R, 5>(block, scales, a, 0, sums);
  if constexpr (safe == 2) flush();
  Multiply256<Q, R, 6>(block, scales, a, 0, sums);
  Multiply256<Q, R, 7>(block, scales, a, 0, sums);
  flush();
}
// Likewise, of bytes.
template <class Q, int R>
HWY_INLINE void AddBytes256(const uint8_t* block, const uint32_t* scales, float d, const Activations& in,
                            int64_t row, int64_t b, VF (&acc)[R]) {
  const int8_t* a[R];
  V32 high[R], low[R];
  for (int r = 0; r < R; r++) a[r] = in.bytes + (b * in.rows + row + r) * 2 * kChunk;
  for (int r = 0; r < R; r++) high[r] = low[r] = hn::Zero(D32());
  MultiplyBytes256<Q, R, 0>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 1>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 2>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 3>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 4>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 5>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 6>(block, scales, a, 0, high, low);
  MultiplyBytes256<Q, R, 7>(block, scales, a, 0, high, low);
  for (int r = 0; r < R; r++) {
    const VF sum = hn::MulAdd(hn::ConvertTo(DF(), high[r]), hn::Set(DF(), 256), hn::ConvertTo(DF(), low[r]));
    const float scale = d * in.scales[b * in.rows + row + r];
    acc[r] = hn::MulAdd(sum, hn::Set(DF(), scale), acc[r]);
  }
}

// Formats with blocks of 256 and integer scales for each kSub weights.
template <class Q, int O, int R>
HWY_INLINE void Dot256(const Tile& tile, const Activations& in) {
  constexpr int kSubs = 256 / Q::kSub;
  // Bytes are multiplied with what is to be subtracted from them still there: as a min of kLess · scale.
  constexpr bool kSubtractsLater = kPairsOfBytes && Q::kLess > 0;
  static_assert(!Q::kHasMin || Q::kLess == 0);
  const hn::CappedTag<float, kSubs> d_min;
  using VMin = hn::Vec<decltype(d_min)>;
  const int64_t blocks = in.cols / 256;
  VF acc[O][R];
  VMin min_acc[O][R];
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) acc[o][r] = hn::Zero(DF()), min_acc[o][r] = hn::Zero(d_min);
  for (int64_t b = 0; b < blocks; b++) {
    for (int o = 0; o < O; o++) {
      const uint8_t* block = tile.weights + static_cast<size_t>(o) * tile.stride + b * Q::kBytes;
      for (int line = 0; line < Q::kBytes; line += 64) PrefetchNextTile(block + line, O * tile.stride);
      alignas(64) uint32_t scales[kSubs];
      SpreadScales<Q>(block, scales);
      KeepInMemory(scales);
      const float d = LoadF16(block + Q::kScaleOffset);
      if constexpr (kPairsOfBytes) {
        AddBytes256<Q, R>(block, scales, d, in, tile.row, b, acc[o]);
      } else {
        AddBlock256<Q, R>(block, scales, d, in, tile.row, b, acc[o]);
      }
      if constexpr (Q::kHasMin || kSubtractsLater) {
        const hn::Rebind<int8_t, decltype(d_min)> d8;  // mins are below 64, scales have a sign
        const hn::Rebind<int32_t, decltype(d_min)> d32;
        alignas(16) int8_t mins[16];
        const hn::RebindToSigned<DScales> d_bytes;
        float unit;
        if constexpr (Q::kHasMin) {
          hn::Store(hn::BitCast(d_bytes, Q::Mins(block)), d_bytes, mins);
          unit = LoadF16(block + Q::kScaleOffset + 2);
        } else {
          hn::Store(hn::BitCast(d_bytes, Q::Scales(block)), d_bytes, mins);
          unit = d * float{Q::kLess};
        }
        const auto dmin = hn::Set(d_min, unit);
        for (int j = 0; j < kSubs; j += static_cast<int>(hn::MaxLanes(d_min))) {
          const auto min = hn::Mul(dmin, hn::ConvertTo(d_min, hn::PromoteTo(d32, hn::LoadU(d8, mins + j))));
          for (int r = 0; r < R; r++) {
            const int64_t at = b * in.rows + tile.row + r;
            const float* sums = in.sums + at * kChunkSums + (Q::kSub == 16 ? 0 : 16) + j;
            const auto scaled = hn::Mul(min, hn::Set(d_min, in.scales[at]));
            min_acc[o][r] = hn::MulAdd(scaled, hn::LoadU(d_min, sums), min_acc[o][r]);
          }
        }
      }
    }
  }
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) {
      float& out = tile.out[o * R + r];
      out = hn::GetLane(hn::SumOfLanes(DF(), acc[o][r]));
      if constexpr (Q::kHasMin || kSubtractsLater) out -= hn::GetLane(hn::SumOfLanes(d_min, min_acc[o][r]));
    }
}

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

// Both as types with one interface, for matmul_decode.cpp.
template <class T>
struct DotFloat {
  template <int O, int R>
  static void Run(const Tile& tile, const Activations& in) {
    DotFloats<T, O, R>(tile, in);
  }
};
template <class Q>
struct DotBlocks256 {
  template <int O, int R>
  static void Run(const Tile& tile, const Activations& in) {
    Dot256<Q, O, R>(tile, in);
  }
};

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT_INL_H_
