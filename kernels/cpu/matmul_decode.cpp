// y = x · Wᵀ with sums in f32: the products of a decode step, and of prefill for quantised weights where
// dense products in bf16 are no faster. A few rows read every weight as it is stored; for more rows, or of a matrix
// that is turned (turned_rows.h), weights are unpacked panel by panel (panel-inl.h). The parts (q, k, v; gate,
// up) are cut into runs of outputs that all workers share, with one barrier.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_decode.cpp"
#include "kernels/cpu/byte_products.h"
// After byte_products.h, which adds an instruction set.
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/dot256-inl.h"
#include "kernels/cpu/output_tasks.h"
#include "kernels/cpu/outputs-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/panel_tiles-inl.h"
#include "kernels/cpu/spread.h"

#ifndef WI_MATMUL_DECODE_ONCE
#define WI_MATMUL_DECODE_ONCE
namespace wi::cpu {
constexpr int64_t kPanelRowBlock = 256;  // 128 KB of a chunk's activations
constexpr int64_t kTileLeastRows = 12;   // fewer are no faster in tiles
}  // namespace wi::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

constexpr int kOutputs = 4;  // of a tile

// Formats whose products, Dot::Run, take any number of outputs and rows.
template <class Dot, int O, int R>
HWY_INLINE void MultiplyRows(const MatmulPart& part, int64_t output, const Activations& in, int64_t& row) {
  const size_t stride = row_bytes(part.weight.type, part.weight.cols);
  for (; row + R <= in.rows; row += R) {
    float sums[O * R];
    Dot::template Run<O, R>({WeightRow(part, output), stride, row, sums}, in);
    for (int o = 0; o < O; o++)
      for (int r = 0; r < R; r++) Store(part, row + r, output + o, 1, sums + o * R + r);
  }
}

template <class Dot, int O>
HWY_INLINE void MultiplyTile(const MatmulPart& part, int64_t output, const Activations& in) {
  int64_t row = 0;
  MultiplyRows<Dot, O, 4>(part, output, in, row);
  MultiplyRows<Dot, O, 2>(part, output, in, row);
  MultiplyRows<Dot, O, 1>(part, output, in, row);
}

template <class Dot>
void MultiplyType(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in) {
  int64_t output = begin;
  for (; output + kOutputs <= end; output += kOutputs) MultiplyTile<Dot, kOutputs>(part, output, in);
  for (; output < end; output++) MultiplyTile<Dot, 1>(part, output, in);
}

// Quantised weights as stored, tile by tile.
template <class Q, int R>
HWY_INLINE void MultiplyQuantRows(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in,
                                  int64_t& row) {
  constexpr int kTile = kHasBlocks256<Q> ? kTile256 : kTile32;
  const size_t stride = row_bytes(part.weight.type, part.weight.cols);
  for (; row + R <= in.rows; row += R)
    for (int64_t output = begin; output < end; output += kTile) {
      const int count = static_cast<int>(HWY_MIN(end - output, kTile));
      alignas(64) float sums[R * kTile];
      if constexpr (kHasBlocks256<Q>) {
        Dot256<Q, R>(WeightRow(part, output), stride, count, in, row, sums);
      } else {
        Dot32<Q, R>(WeightRow(part, output), stride, count, in, row, sums);
      }
      for (int r = 0; r < R; r++) Store(part, row + r, output, count, sums + r * kTile);
    }
}

// How panels meet rows: by vectors, or by products of tiles (AMX).
template <class Q>
struct ByVectors {
  explicit ByVectors(int64_t rows) : rows_(rows) {}

  template <class Outputs>
  HWY_INLINE void fill(const Outputs& outputs, int groups, Panel& panel) const {
    FillPanel<Q>(outputs, groups, rows_, panel);
  }
  HWY_INLINE int64_t fetches(int groups) const { return FetchesOfRows<Q>(rows_, groups); }
  HWY_INLINE void multiply(const Panel& panel, int groups, const PanelRows& rows, float* sums,
                           NextPanel& next) const {
    int64_t row = 0;
    MultiplyRowsOfPanel<Q, kPanelRows>(panel, groups, rows_, row, rows, sums, next);
    MultiplyRowsOfPanel<Q, 4>(panel, groups, rows_, row, rows, sums, next);
    MultiplyRowsOfPanel<Q, 2>(panel, groups, rows_, row, rows, sums, next);
    MultiplyRowsOfPanel<Q, 1>(panel, groups, rows_, row, rows, sums, next);
  }

 private:
  const int64_t rows_;
};

// Tiles have the shape that cuts the rows into equal parts; where the last one has fewer, what its tiles have beyond them is
// nobody's.
template <class Q, class Tiles>
class ByTiles {
 public:
  explicit ByTiles(int64_t rows) : rows_(rows) {
    const int64_t parts = (rows + kMostTileRows - 1) / kMostTileRows;
    each_ = (rows + parts - 1) / parts;
    Tiles::shape(PanelTileShapes<Q>(each_));
  }
  ~ByTiles() { Tiles::release(); }
  ByTiles(const ByTiles&) = delete;
  ByTiles& operator=(const ByTiles&) = delete;

  template <class Outputs>
  HWY_INLINE void fill(const Outputs& outputs, int groups, Panel& panel) const {
    FillTilePanel<Q>(outputs, groups, panel);
  }
  HWY_INLINE int64_t fetches(int groups) const { return TileFetchesOfRows<Q>(rows_, groups); }
  HWY_INLINE void multiply(const Panel& panel, int groups, const PanelRows& rows, float* sums,
                           NextPanel& next) const {
    for (int64_t row = 0; row < rows_; row += each_)
      MultiplyTilePanel<Q, Tiles>(panel, groups, rows.from(row),
                                  static_cast<int>(HWY_MIN(each_, rows_ - row)), sums + row * kPanel, next);
  }

 private:
  const int64_t rows_;
  int64_t each_;
};

// A block of rows at a time, so that its activations stay in the second cache; panel by panel, chunk by
// chunk.
template <class Q, class How, class Panels>
void MultiplyPanels(const MatmulPart& part, int64_t begin, const Panels& panels, const Activations& in,
                    const Stream& stream, std::byte* scratch) {
  Panel& panel = *reinterpret_cast<Panel*>(scratch);
  float* const sums = reinterpret_cast<float*>(scratch + sizeof(Panel));  // (panel, row, kPanel)
  for (int64_t first = 0; first < in.rows && !stream.cancelled(); first += kPanelRowBlock) {
    const int64_t count = HWY_MIN(in.rows - first, kPanelRowBlock);
    const How how(count);
    panels.fetch_first();
    std::memset(sums, 0, static_cast<size_t>(panels.count() * count * kPanel) * sizeof(float));
    for (int64_t c = 0; c < in.chunks; c++) {
      const int64_t at = c * in.rows + first;
      const PanelRows rows =
          PanelRows{in.quants, in.sums, in.group_sums, in.offsets, in.scales, in.split, in.sum_pairs}.from(
              at);
      const int groups = panels.groups(c);
      for (int64_t p = 0; p < panels.count(); p++) {
        how.fill(panels.outputs_at(c, p, panel.tail), groups, panel);
        NextPanel next = panels.after(c, p, how.fetches(groups));
        how.multiply(panel, groups, rows, sums + p * count * kPanel, next);
      }
    }
    for (int64_t p = 0; p < panels.count(); p++) {
      const int64_t output = begin + p * kPanel;
      for (int64_t row = 0; row < count; row++)
        Store(part, first + row, output, panels.outputs_of(p), sums + (p * count + row) * kPanel);
    }
  }
}

// scratch: null where weights are to be multiplied as they are stored.
template <class Q>
void MultiplyQuants(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in,
                    const Stream& stream, std::byte* scratch) {
  if (scratch)
    return WithPanelsOf<Q>(part, begin, end, [&](const auto& panels) HWY_ATTR {
#if HWY_TARGET == HWY_AVX3_DL
      if (in.split) return MultiplyPanels<Q, ByTiles<Q, Amx>>(part, begin, panels, in, stream, scratch);
#endif
      MultiplyPanels<Q, ByVectors<Q>>(part, begin, panels, in, stream, scratch);
    });
  int64_t row = 0;
  MultiplyQuantRows<Q, 2>(part, begin, end, in, row);
  MultiplyQuantRows<Q, 1>(part, begin, end, in, row);
}

size_t PanelScratchBytes(int64_t outputs, int64_t rows) {
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  return sizeof(Panel) + static_cast<size_t>(panels * kPanel * HWY_MIN(rows, kPanelRowBlock)) * sizeof(float);
}

// Outputs [begin, end) of one part for all rows.
void MultiplyOutputs(const MatmulPart& part, int64_t begin, int64_t end, const Activations& in,
                     const Stream& stream, std::byte* scratch) {
  switch (part.weight.type) {
    case DType::f32:
      return MultiplyType<DotFloat<float>>(part, begin, end, in);
    case DType::f16:
      return MultiplyType<DotFloat<hwy::float16_t>>(part, begin, end, in);
    case DType::bf16:
      return MultiplyType<DotFloat<hwy::bfloat16_t>>(part, begin, end, in);
    case DType::q8_0:
      return MultiplyQuants<Q8_0>(part, begin, end, in, stream, scratch);
    case DType::q4_0:
      return MultiplyQuants<Q4_0>(part, begin, end, in, stream, scratch);
    case DType::q4_1:
      return MultiplyQuants<Q4_1>(part, begin, end, in, stream, scratch);
    case DType::q5_0:
      return MultiplyQuants<Q5_0>(part, begin, end, in, stream, scratch);
    case DType::q5_1:
      return MultiplyQuants<Q5_1>(part, begin, end, in, stream, scratch);
    case DType::q2_k:
      return MultiplyQuants<Q2K>(part, begin, end, in, stream, scratch);
    case DType::q3_k:
      return MultiplyQuants<Q3K>(part, begin, end, in, stream, scratch);
    case DType::q4_k:
      return MultiplyQuants<Q4K>(part, begin, end, in, stream, scratch);
    case DType::q5_k:
      return MultiplyQuants<Q5K>(part, begin, end, in, stream, scratch);
    case DType::q6_k:
      return MultiplyQuants<Q6K>(part, begin, end, in, stream, scratch);
  }
}

bool HasTiles() { return HWY_TARGET == HWY_AVX3_DL && has_amx_bytes(); }

// Of 32 numbers the high bytes, and the low ones so far behind them.
HWY_INLINE void SplitBytes(const int16_t* quants, int8_t* high, int64_t low) {
  for (int i = 0; i < 32; i++) {
    const int32_t upper = (quants[i] + 128) >> 8;
    high[i] = static_cast<int8_t>(upper);
    high[low + i] = static_cast<int8_t>(quants[i] - 256 * upper);
  }
}

// By twos, as Activations::sum_pairs has them.
void SplitSums(const int32_t* sums, int count, int32_t* pairs) {
  const auto both = [](int32_t first, int32_t second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 |
                                (static_cast<uint32_t>(first) & 0xFFFF));
  };
  constexpr int32_t kLow = (1 << kSumShift) - 1;
  for (int i = 0; i < count / 2; i++, sums += 2) {
    pairs[i] = both(sums[0] >> kSumShift, sums[1] >> kSumShift);
    pairs[count / 2 + i] = both(sums[0] & kLow, sums[1] & kLow);
  }
}

// A chunk of a row as 16-bit integers. Infinity or NaN among its columns makes the scale NaN, so that it
// shows in the output as it would in f32.
void QuantizeChunk(const Activations& in, int64_t row, int64_t chunk) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int16_t, decltype(d)> d16;
  const hn::CappedTag<int16_t, 8> d8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const float* values = in.values + row * in.cols + chunk * kChunk;
  const int64_t at = chunk * in.rows + row;
  int16_t* quants = in.quants + at * kChunk;
  alignas(64) int16_t own[kChunk];
  int16_t* ordered = in.ordered ? in.ordered + at * kChunk : own;
  int32_t *sums16 = in.sums + at * kChunkSums, *sums32 = sums16 + 16;
  const int groups = in.groups(chunk);
  auto peak = hn::Zero(d), poison = hn::Zero(d);
  for (int i = 0; i < groups * 32; i += kLanes) {
    const auto v = hn::LoadU(d, values + i);
    peak = hn::Max(peak, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, peak));
  const bool is_zero = largest < 1e-30f;  // its inverse would not be finite
  in.scales[at] = (is_zero ? 0 : largest / kLargestQuant) + hn::GetLane(hn::SumOfLanes(d, poison));
  const auto inverse = hn::Set(d, is_zero ? 0 : kLargestQuant / largest);
  for (int i = 0; i < groups * 32; i += 16) {
    auto sum = hn::Zero(d32);
    for (int j = 0; j < 16; j += kLanes) {
      const auto q = hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::LoadU(d, values + i + j), inverse)));
      hn::Store(q, d16, ordered + i + j);
      sum = hn::Add(sum, hn::PromoteTo(d32, q));
    }
    sums16[i / 16] = hn::GetLane(hn::SumOfLanes(d32, sum));
    int16_t* even = quants + i / 32 * 32 + i % 32 / 2;
    const auto first = hn::Load(d8, ordered + i), second = hn::Load(d8, ordered + i + 8);
    hn::Store(hn::ConcatEven(d8, second, first), d8, even);
    hn::Store(hn::ConcatOdd(d8, second, first), d8, even + 16);
  }
  for (int g = 0; g < groups; g++) {
    if (kPairsOfBytes && in.bytes) SplitBytes(ordered + g * 32, in.bytes + at * 2 * kChunk + g * 64, 32);
    if (in.split) SplitBytes(ordered + g * 32, in.split + at * kSplitRow + g * 32, kChunk);
  }
  for (int g = 0; g < groups; g++) {
    sums32[g] = sums16[2 * g] + sums16[2 * g + 1];
    in.group_sums[at * kChunkGroups + g] = static_cast<float>(sums32[g]);
    in.offsets[at * kChunkGroups + g] = -int32_t{kTurnedBias} * sums32[g];
  }
  if (in.sum_pairs) {
    SplitSums(sums16, 16, in.sum_pairs + at * kChunkSums);
    SplitSums(sums32, 8, in.sum_pairs + at * kChunkSums + 16);
  }
}

void QuantizeChunks(const Activations& in, int64_t row, int64_t chunk, int64_t end) {
  for (; chunk < end; chunk++) QuantizeChunk(in, row, chunk);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(MultiplyOutputs);
HWY_EXPORT(PanelScratchBytes);
HWY_EXPORT(QuantizeChunks);
HWY_EXPORT(HasTiles);

namespace {

bool is_quantised(const MatmulPart& part) { return format_of(part.weight.type).elements > 1; }

bool in_panels(const MatmulArgs& args, const MatmulPart& part) {
  return (args.rows > kDirectRows && is_quantised(part)) || part.weight.turned;
}

Activations prepare(const Stream& stream, const MatmulArgs& args) {
  Activations in{.values = args.in, .rows = args.rows, .cols = args.parts[0].weight.cols};
  if (std::none_of(args.parts, args.parts + args.part_count, is_quantised)) return in;
  const bool as_stored = std::any_of(args.parts, args.parts + args.part_count, [&](const MatmulPart& part) {
    return format_of(part.weight.type).elements == 256 && !in_panels(args, part);
  });
  const bool in_tiles = in.rows >= kTileLeastRows && HWY_DYNAMIC_DISPATCH(HasTiles)();
  const Activations::Also also{as_stored, in_tiles};
  in.place(stream.shared_array<std::byte>(Activations::bytes_for(in.rows, in.cols, also)), also);
  each_run_of_chunks(stream, in.rows, in.cols, [&](int64_t row, int64_t chunk, int64_t end) {
    HWY_DYNAMIC_DISPATCH(QuantizeChunks)(in, row, chunk, end);
  });
  return in;
}

}  // namespace

void matmul_decode(const Stream& stream, const MatmulArgs& args) {
  const Activations in = prepare(stream, args);
  const OutputTasks tasks(args, stream.workers);
  stream.each(tasks.count(), [&](int64_t task, int worker) {
    const auto [part, begin, end] = tasks[task];
    std::byte* scratch = nullptr;
    if (in_panels(args, part))
      scratch = stream.worker_scratch(stream.self, worker,
                                      HWY_DYNAMIC_DISPATCH(PanelScratchBytes)(end - begin, in.rows));
    HWY_DYNAMIC_DISPATCH(MultiplyOutputs)(part, begin, end, in, stream, scratch);
  });
}

}  // namespace wi::cpu
#endif
