// O rows of weights (outputs), as stored, times R rows of activations: the inner loops of decoding. Each
// piece of weights is loaded and unpacked once for all R rows; the outputs take turns a kilobyte or less at
// a time, so that activations that do not fit into the first cache are fetched once for O outputs. What
// makes one (output, row) result does not depend on O or R, so a row's result is the same in every batch.
#if defined(WI_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_DOT_INL_H_
#undef WI_KERNELS_CPU_DOT_INL_H_
#else
#define WI_KERNELS_CPU_DOT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/floats-inl.h"
#include "kernels/cpu/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

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

// The hardware's prefetchers lose their way among O rows that each advance a little. The same place of the
// next tile is far enough ahead, and on its way into the second cache does not crowd the first. (Zen 4,
// Q8_0, O = 4: 22 GB/s of one core's 23; 12 without.)
HWY_INLINE void PrefetchNextTile(const uint8_t* p, size_t tile_bytes) {
  __builtin_prefetch(p + tile_bytes, 0, 2);
}

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

// Formats with a scale of its own for each 32 weights. The scales of 16 blocks are converted together.
template <class Q, int O, int R>
HWY_INLINE void Dot32(const Tile& tile, const Activations& in) {
  const hn::CappedTag<float, 16> d_scale;
  using VScale = hn::Vec<decltype(d_scale)>;
  constexpr int kScaleLanes = static_cast<int>(hn::MaxLanes(d_scale));
  const int64_t blocks = in.cols / 32;
  const int16_t* a[R];
  VF acc[O][R];
  VScale min_acc[O][R];
  for (int r = 0; r < R; r++) a[r] = in.quants + (tile.row + r) * in.groups * 32;
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) acc[o][r] = hn::Zero(DF()), min_acc[o][r] = hn::Zero(d_scale);
  alignas(64) uint16_t d[16] = {}, m[16] = {};
  alignas(64) float scales[R][16];
  for (int64_t first = 0; first < blocks; first += 16) {
    const int count = static_cast<int>(HWY_MIN(blocks - first, 16));
    for (int i = count; i < 16; i++) d[i] = m[i] = 0;
    for (int o = 0; o < O; o++) {
      const uint8_t* block = tile.weights + static_cast<size_t>(o) * tile.stride + first * Q::kBytes;
      for (int i = 0; i < count; i++) {
        hwy::CopyBytes<2>(block + i * Q::kBytes, d + i);
        if constexpr (Q::kHasMin) hwy::CopyBytes<2>(block + i * Q::kBytes + 2, m + i);
      }
      for (int l = 0; l < 16; l += kScaleLanes) {
        const VScale weight_scale = LoadFloats(d_scale, reinterpret_cast<const hwy::float16_t*>(d + l));
        const VScale weight_min = LoadFloats(d_scale, reinterpret_cast<const hwy::float16_t*>(m + l));
        for (int r = 0; r < R; r++) {
          const int64_t at = (tile.row + r) * in.groups + first + l;
          hn::Store(hn::Mul(weight_scale, hn::Load(d_scale, in.scales + at)), d_scale, scales[r] + l);
          if constexpr (Q::kHasMin)
            min_acc[o][r] = hn::MulAdd(weight_min, hn::Load(d_scale, in.sums32 + at), min_acc[o][r]);
        }
      }
      VF sum[R];
      for (int r = 0; r < R; r++) sum[r] = acc[o][r];
      for (int i = 0; i < count; i++, block += Q::kBytes) {
        PrefetchNextTile(block, O * tile.stride);
        V16 w[kVecs];
        LoadGroup<Q, 0>(block, w);
        V32 sums[R];
        for (int r = 0; r < R; r++) sums[r] = hn::Zero(D32());
        MultiplyGroup<R>(w, a, (first + i) * 32, sums);
        for (int r = 0; r < R; r++)
          sum[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), hn::Set(DF(), scales[r][i]), sum[r]);
      }
      for (int r = 0; r < R; r++) acc[o][r] = sum[r];
    }
  }
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) {
      float& out = tile.out[o * R + r];
      out = hn::GetLane(hn::SumOfLanes(DF(), acc[o][r]));
      if constexpr (Q::kHasMin) out += hn::GetLane(hn::SumOfLanes(d_scale, min_acc[o][r]));
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
  for (int r = 0; r < R; r++) a[r] = in.quants + (row + r) * in.groups * 32;
  for (int r = 0; r < R; r++) sums[r] = hn::Zero(D32());
  const auto flush = [&]() HWY_ATTR {
    for (int r = 0; r < R; r++) {
      const float scale = d * in.scales[(row + r) * in.groups + b * 8];
      acc[r] = hn::MulAdd(hn::ConvertTo(DF(), sums[r]), hn::Set(DF(), scale), acc[r]);
      sums[r] = hn::Zero(D32());
    }
  };
  constexpr int safe = kSafeGroups<Q>;
  Multiply256<Q, R, 0>(block, scales, a, b * 256, sums);
  Multiply256<Q, R, 1>(block, scales, a, b * 256, sums);
  if constexpr (safe == 2) flush();
  Multiply256<Q, R, 2>(block, scales, a, b * 256, sums);
  Multiply256<Q, R, 3>(block, scales, a, b * 256, sums);
  if constexpr (safe <= 4) flush();
  Multiply256<Q, R, 4>(block, scales, a, b * 256, sums);
  Multiply256<Q, R, 5>(block, scales, a, b * 256, sums);
  if constexpr (safe == 2) flush();
  Multiply256<Q, R, 6>(block, scales, a, b * 256, sums);
  Multiply256<Q, R, 7>(block, scales, a, b * 256, sums);
  flush();
}
// Likewise, of bytes.
template <class Q, int R>
HWY_INLINE void AddBytes256(const uint8_t* block, const uint32_t* scales, float d, const Activations& in,
                            int64_t row, int64_t b, VF (&acc)[R]) {
  const int8_t* a[R];
  V32 high[R], low[R];
  for (int r = 0; r < R; r++) a[r] = in.bytes + (row + r) * in.groups * 64;
  for (int r = 0; r < R; r++) high[r] = low[r] = hn::Zero(D32());
  MultiplyBytes256<Q, R, 0>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 1>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 2>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 3>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 4>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 5>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 6>(block, scales, a, b * 512, high, low);
  MultiplyBytes256<Q, R, 7>(block, scales, a, b * 512, high, low);
  for (int r = 0; r < R; r++) {
    const VF sum = hn::MulAdd(hn::ConvertTo(DF(), high[r]), hn::Set(DF(), 256), hn::ConvertTo(DF(), low[r]));
    const float scale = d * in.scales[(row + r) * in.groups + b * 8];
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
        const float* all_sums = Q::kSub == 16 ? in.sums16 : in.sums32;
        for (int j = 0; j < kSubs; j += static_cast<int>(hn::MaxLanes(d_min))) {
          const auto min = hn::Mul(dmin, hn::ConvertTo(d_min, hn::PromoteTo(d32, hn::LoadU(d8, mins + j))));
          for (int r = 0; r < R; r++) {
            const float* row_sums = all_sums + (tile.row + r) * in.groups * (32 / Q::kSub) + b * kSubs + j;
            min_acc[o][r] = hn::MulAdd(min, hn::Load(d_min, row_sums), min_acc[o][r]);
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

// The formats as types with one interface, for matmul_decode.cpp. kMaxRows: as many rows at a time as pay,
// for their sums want registers and the rows themselves want cache.
template <class T>
struct FloatDot {
  static constexpr int kMaxRows = 4;
  template <int O, int R>
  static void Run(const Tile& tile, const Activations& in) {
    DotFloats<T, O, R>(tile, in);
  }
};
template <class Q>
struct Dot {
  static constexpr int kMaxRows = HWY_TARGET == HWY_AVX3 && Q::kBytes < 64 ? 8 : 4;
  template <int O, int R>
  static void Run(const Tile& tile, const Activations& in) {
    if constexpr (Q::kBytes < 64) {
      Dot32<Q, O, R>(tile, in);
    } else {
      Dot256<Q, O, R>(tile, in);
    }
  }
};

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WI_KERNELS_CPU_DOT_INL_H_
