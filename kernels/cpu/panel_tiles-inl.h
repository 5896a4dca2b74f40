// Quantised weights times many rows by products of tiles of bytes (AMX), up to 16 rows at a time; what is summed, and in
// which order, is said in scales-inl.h and block256-inl.h. Activations are two bytes, 256 · high + low, and so are weights
// of blocks of 256 once they are multiplied by their scales: each of a row's bytes meets each of a weight's. Compiled for
// every instruction set, so that a test may try it with plain tiles.
#if defined(WI_KERNELS_CPU_PANEL_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_KERNELS_CPU_PANEL_TILES_INL_H_
#undef WI_KERNELS_CPU_PANEL_TILES_INL_H_
#else
#define WI_KERNELS_CPU_PANEL_TILES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

constexpr int kMostTileRows = 16;
constexpr int kTileOutputs = HWY_MIN(kPanel, 16);  // of a tile of sums
constexpr int kPanelTiles = kPanel / kTileOutputs;

// Which tile is what. Of blocks of 32 sums by high bytes are 2t, by low ones 2t + 1, for the panel's tile t of weights,
// which is 6 + t; of blocks of 256, of whose panel one tile is done after the other, weights' high and low bytes are 6 and 7.
// Rows' high bytes are 4, low ones 5.
constexpr int kRowsHigh = 4, kRowsLow = 5, kWeights = 6;

// For so many rows.
template <class Q>
TileShapes PanelTileShapes(int64_t rows) {
  constexpr int kInputs = kHasBlocks256<Q> ? 64 : 32;  // of a product
  TileShapes shapes;
  for (int tile = 0; tile < 8; tile++) {
    shapes.rows[tile] = static_cast<uint8_t>(rows);
    shapes.row_bytes[tile] = 4 * kTileOutputs;
  }
  shapes.row_bytes[kRowsHigh] = shapes.row_bytes[kRowsLow] = kInputs;
  shapes.rows[kWeights] = shapes.rows[kWeights + 1] = kInputs / 4;
  return shapes;
}

// Weights of blocks of 256 times their scales, as two bytes: 2^kHighShift · high + low.
// Without minima they are signed, and so are the bytes. With minima neither weights nor scales are: weights times the upper
// and the lower three bits of a scale fit into bytes as they are, and two of them are multiplied as one number of 16 bits.
template <class Q>
constexpr bool kUnsignedBytes = kHasBlocks256<Q>&& Q::kHasMin;
template <class Q>
constexpr int kHighShift = kUnsignedBytes<Q> ? 3 : 8;

// ---- Filling: bytes (group, 8 fours of inputs, output, 4); of blocks of 256 the low ones, then the high ones ----

template <int kSubs>
HWY_INLINE void PairMins(Panel& panel) {
  const L32 d32;
  for (int sub = 0; sub < kSubs; sub += 2)
    for (int v = 0; v < kPanelVecs; v++) {
      const auto first = hn::Load(d32, panel.scales256.min[sub] + v * kLanes32);
      const auto second = hn::Load(d32, panel.scales256.min[sub + 1] + v * kLanes32);
      hn::Store(hn::BitCast(L16(), hn::Or(first, hn::ShiftLeft<16>(second))), L16(),
                panel.min_pairs[sub / 2] + v * 2 * kLanes32);
    }
}

template <class Q, class Outputs>
HWY_INLINE void FillTilePanel(const Outputs& outputs, int groups, Panel& panel) {
  LoadScales<Q>(outputs, groups, panel);
  if constexpr (kHasBlocks256<Q> && Q::kHasMin) PairMins<256 / Q::kSub>(panel);
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(panel.weights);
  const auto store = [&](auto low, auto high, uint8_t* to) HWY_ATTR {
    hn::Store(hn::BitCast(LB(), low), LB(), to);
    hn::Store(hn::BitCast(LB(), high), LB(), to + kPanel * kChunk);
  };
  EachDword<Q>(outputs, groups, panel.turned, [&](int group, int dword, int vec, auto weights) HWY_ATTR {
    if constexpr (Q::kLess > 0) weights = hn::Sub(weights, hn::Set(LB(), Q::kLess));
    uint8_t* const to = bytes + ((group * 8 + dword) * kPanelVecs + vec) * 4 * kLanes32;
    if constexpr (!kHasBlocks256<Q>) {
      hn::Store(weights, LB(), to);
    } else {
      const int sub = (group * 32 + dword * 4) / Q::kSub;
      const auto scale = hn::Load(L16(), panel.scales256.scale[sub] + vec * 2 * kLanes32);
      if constexpr (kUnsignedBytes<Q>) {
        const auto two = hn::BitCast(L16(), weights);
        store(hn::Mul(two, hn::And(scale, hn::Set(L16(), 7))), hn::Mul(two, hn::ShiftRight<3>(scale)), to);
      } else {
        const auto even = hn::Mul(EvenBytes(L16(), weights), scale),
                   odd = hn::Mul(OddBytes(L16(), weights), scale);
        const auto low_byte = hn::Set(L16(), 0xFF), round = hn::Set(L16(), 128);
        store(hn::Or(hn::And(even, low_byte), hn::ShiftLeft<8>(odd)),
              hn::Or(hn::And(hn::ShiftRight<8>(hn::Add(even, round)), low_byte),
                     hn::AndNot(low_byte, hn::Add(odd, round))),
              to);
      }
    }
  });
}

// ---- Products of integers, into memory ----

// products (rows, 2, kPanel): of a group's weights with high bytes, and with low ones.
template <class Tiles>
HWY_INLINE void MultiplyTileGroup(const uint8_t* w, const int8_t* rows, int32_t* products) {
  constexpr int64_t kStride = 2 * kPanel * sizeof(int32_t);
  Tiles::template load<kRowsHigh>(rows, kSplitRow);
  Tiles::template load<kRowsLow>(rows + kChunk, kSplitRow);
  const auto tile = [&]<int t>() {
    Tiles::template load<kWeights + t>(w + t * 4 * kTileOutputs, 4 * kPanel);
    Tiles::template clear<2 * t>();
    Tiles::template clear<2 * t + 1>();
    Tiles::template add_byte_products<2 * t, kRowsHigh, kWeights + t>();
    Tiles::template add_byte_products<2 * t + 1, kRowsLow, kWeights + t>();
  };
  const auto store = [&]<int t>() {
    Tiles::template store<2 * t>(products + t * kTileOutputs, kStride);
    Tiles::template store<2 * t + 1>(products + kPanel + t * kTileOutputs, kStride);
  };
  tile.template operator()<0>();
  if constexpr (kPanelTiles > 1) tile.template operator()<1>();
  store.template operator()<0>();
  if constexpr (kPanelTiles > 1) store.template operator()<1>();
}

// products (rows, 4, kPanel), of one of the panel's tiles of a block of 256: rows' high bytes by weights' high and low
// ones, rows' low ones likewise.
template <bool kUnsigned, class Tiles>
HWY_INLINE void MultiplyTile256(const uint8_t* w, const int8_t* rows, int32_t* products) {
  constexpr int64_t kStride = 4 * kPanel * sizeof(int32_t);
  const auto add = []<int kSums, int kRows, int kBytes>() {
    if constexpr (kUnsigned)
      Tiles::template add_unsigned_byte_products<kSums, kRows, kBytes>();
    else
      Tiles::template add_byte_products<kSums, kRows, kBytes>();
  };
  Tiles::template clear<0>();
  Tiles::template clear<1>();
  Tiles::template clear<2>();
  Tiles::template clear<3>();
  for (int k = 0; k < kChunk; k += 64, w += 64 * kPanel, rows += 64) {
    Tiles::template load<kWeights>(w + kPanel * kChunk, 4 * kPanel);
    Tiles::template load<kRowsHigh>(rows, kSplitRow);
    Tiles::template load<kWeights + 1>(w, 4 * kPanel);
    Tiles::template load<kRowsLow>(rows + kChunk, kSplitRow);
    add.template operator()<0, kRowsHigh, kWeights>();
    add.template operator()<1, kRowsHigh, kWeights + 1>();
    add.template operator()<2, kRowsLow, kWeights>();
    add.template operator()<3, kRowsLow, kWeights + 1>();
  }
  Tiles::template store<0>(products, kStride);
  Tiles::template store<1>(products + kPanel, kStride);
  Tiles::template store<2>(products + 2 * kPanel, kStride);
  Tiles::template store<3>(products + 3 * kPanel, kStride);
}

// ---- sums (rows, kPanel) += panel · rows ----

// Tiles are on their way to memory while the group before is added up.
template <bool kHasMin, class Tiles>
void MultiplyTilePanel32(const Panel& panel, int groups, const PanelRows& rows, int count, float* sums,
                         NextPanel& next) {
  const LF d;
  const L32 d32;
  alignas(64) int32_t products[2][kMostTileRows * 2 * kPanel];
  alignas(64) float part[kMostTileRows * kPanel];
  const auto* const bytes = reinterpret_cast<const uint8_t*>(panel.weights);
  for (int group = 0; group <= groups; group++) {
    if (group < groups)
      MultiplyTileGroup<Tiles>(bytes + group * 32 * kPanel, rows.split + group * 32, products[group % 2]);
    if (group == 0) continue;
    next.fetch();
    const int32_t* const before = products[(group - 1) % 2];
    for (int v = 0; v < kPanelVecs; v++) {
      const auto scale = hn::Load(d, panel.scales32.scale[group - 1] + v * kLanes32);
      for (int r = 0; r < count; r++) {
        const int32_t* const of_row = before + r * 2 * kPanel + v * kLanes32;
        const auto sum = hn::Add(hn::ShiftLeft<8>(hn::Load(d32, of_row)), hn::Load(d32, of_row + kPanel));
        float* const to = part + r * kPanel + v * kLanes32;
        const auto sum_before = group > 1 ? hn::Load(d, to) : hn::Zero(d);
        hn::Store(hn::MulAdd(hn::ConvertTo(d, sum), scale, sum_before), d, to);
      }
    }
  }
  for (int r = 0; r < count; r++)
    AddPart32<kHasMin>(panel.scales32, groups, rows.from(r), part + r * kPanel, sums + r * kPanel);
}

// sums += what a block of 256 comes to, given its sum of products of integers. kSub: of its minima, 0 if there are none.
template <int kSub>
HWY_INLINE void AddSum256(const Panel& panel, const PanelRows& row, int v, hn::Vec<LF> sum, float* sums) {
  const LF d;
  const Scales256<kPanel>& scales = panel.scales256;
  auto product = hn::Mul(hn::Load(d, scales.unit + v * kLanes32), sum);
  if constexpr (kSub > 0) {
    constexpr int kPairs = 256 / kSub / 2;
    const auto* const pairs = reinterpret_cast<const int16_t*>(row.sum_pairs + (kSub == 16 ? 0 : 16));
    auto high = hn::Zero(L32()), low = high;
    for (int pair = 0; pair < kPairs; pair++) {
      const auto min = hn::Load(L16(), panel.min_pairs[pair] + v * 2 * kLanes32);
      AddPairProducts(min, SpreadPair(pairs + 2 * pair), high);
      AddPairProducts(min, SpreadPair(pairs + 2 * (kPairs + pair)), low);
    }
    const auto mins = hn::Add(hn::ShiftLeft<kSumShift>(high), low);
    product = hn::MulAdd(hn::Load(d, scales.min_unit + v * kLanes32), hn::ConvertTo(d, mins), product);
  }
  float* const to = sums + v * kLanes32;
  hn::Store(hn::MulAdd(product, hn::Set(d, row.scales[0]), hn::Load(d, to)), d, to);
}

template <class Q, class Tiles>
void MultiplyTilePanel256(const Panel& panel, const PanelRows& rows, int count, float* sums,
                          NextPanel& next) {
  const LF d;
  const L32 d32;
  alignas(64) int32_t products[kMostTileRows * 4 * kPanel];
  const auto* const bytes = reinterpret_cast<const uint8_t*>(panel.weights);
  for (int tile = 0; tile <= kPanelTiles; tile++) {
    if (tile < kPanelTiles)
      MultiplyTile256<kUnsignedBytes<Q>, Tiles>(bytes + tile * 4 * kTileOutputs, rows.split,
                                                products + tile * kTileOutputs);
    if (tile == 0) continue;
    next.fetch();
    constexpr int kVecs = kTileOutputs / kLanes32;
    for (int v = (tile - 1) * kVecs; v < tile * kVecs; v++)
      for (int r = 0; r < count; r++) {
        const int32_t* const of_row = products + r * 4 * kPanel + v * kLanes32;
        const auto both = [&](int part) HWY_ATTR {
          return hn::Add(hn::ShiftLeft<kHighShift<Q>>(hn::Load(d32, of_row + part * kPanel)),
                         hn::Load(d32, of_row + (part + 1) * kPanel));
        };
        const auto high = both(0), low = both(2);
        const auto sum =
            FromWords256(d, hn::Add(high, hn::ShiftRight<8>(low)), hn::And(low, hn::Set(d32, 255)));
        AddSum256<Q::kHasMin ? Q::kSub : 0>(panel, rows.from(r), v, sum, sums + r * kPanel);
      }
  }
}

template <class Q, class Tiles>
HWY_INLINE void MultiplyTilePanel(const Panel& panel, int groups, const PanelRows& rows, int count,
                                  float* sums, NextPanel& next) {
  if constexpr (kHasBlocks256<Q>)
    MultiplyTilePanel256<Q, Tiles>(panel, rows, count, sums, next);
  else
    MultiplyTilePanel32<Q::kHasMin, Tiles>(panel, groups, rows, count, sums, next);
}

// How often the next panel is fetched for so many rows, at the least.
template <class Q>
constexpr int64_t TileFetchesOfRows(int64_t rows, int groups) {
  return (rows + kMostTileRows - 1) / kMostTileRows * (kHasBlocks256<Q> ? kPanelTiles : groups);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
