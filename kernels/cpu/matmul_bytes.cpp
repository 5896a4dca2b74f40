// y = x · Wᵀ under WI_PRECISION_INT8: quantised weights times activations of 8 bits (byte_activations.h), any
// number of rows. As in matmul_decode, a few rows read weights as they are stored, and for more rows, or of a
// matrix that is turned, weights are unpacked panel by panel; a row's bits are the same either way. The parts
// (q, k, v; gate, up) are cut into runs of outputs that all workers share, with one barrier.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_bytes.cpp"
#include "kernels/cpu/byte_products.h"
// After byte_products.h, which adds an instruction set.
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"
#include "kernels/cpu/byte_activations.h"
#include "kernels/cpu/byte_extension.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dot_bytes-inl.h"
#include "kernels/cpu/output_tasks.h"
#include "kernels/cpu/outputs-inl.h"
#include "kernels/cpu/panel_bytes-inl.h"
#include "kernels/cpu/spread.h"

#ifndef WI_MATMUL_BYTES_ONCE
#define WI_MATMUL_BYTES_ONCE
namespace wi::cpu {
constexpr int64_t kByteRowBlock = 256;  // a chunk's activations fit into the second cache
}  // namespace wi::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {

template <class Q, int R>
HWY_INLINE void MultiplyStoredRows(const MatmulPart& part, int64_t begin, int64_t end,
                                   const ByteActivations& in, int64_t& row) {
  const size_t stride = row_bytes(part.weight.type, part.weight.cols);
  for (; row + R <= in.rows; row += R)
    for (int64_t output = begin; output < end; output += kTile32) {
      const int count = static_cast<int>(HWY_MIN(end - output, kTile32));
      alignas(64) float sums[R * kTile32];
      DotBytes<Q, R>(WeightRow(part, output), stride, count, in, row, sums);
      for (int r = 0; r < R; r++) Store(part, row + r, output, count, sums + r * kTile32);
    }
}

// A block of rows at a time, panel by panel, chunk by chunk.
template <class Q, By kHow, class Panels>
void MultiplyBytePanels(const MatmulPart& part, int64_t begin, const Panels& panels,
                        const ByteActivations& in, const Stream& stream, std::byte* scratch) {
  constexpr int kRows = kBytePanelRows<kHow>;
  Panel& panel = *reinterpret_cast<Panel*>(scratch);
  float* const sums = reinterpret_cast<float*>(scratch + sizeof(Panel));  // (panel, row, kPanel)
  for (int64_t first = 0; first < in.rows && !stream.cancelled(); first += kByteRowBlock) {
    const int64_t count = HWY_MIN(in.rows - first, kByteRowBlock);
    panels.fetch_first();
    std::memset(sums, 0, static_cast<size_t>(panels.count() * count * kPanel) * sizeof(float));
    for (int64_t c = 0; c < in.chunks; c++) {
      const ByteActivations rows = in.from(c, first);
      const int groups = panels.groups(c);
      for (int64_t p = 0; p < panels.count(); p++) {
        FillBytePanel<Q, kHow>(panels.outputs_at(c, p, panel.tail), groups, panel);
        NextPanel next = panels.after(c, p, (count + kRows - 1) / kRows * groups);
        float* to = sums + p * count * kPanel;
        int64_t row = 0;
        MultiplyRowsOfBytePanel<Q, kHow, kRows>(panel, groups, count, row, rows, to, next);
        MultiplyRowsOfBytePanel<Q, kHow, 4>(panel, groups, count, row, rows, to, next);
        MultiplyRowsOfBytePanel<Q, kHow, 2>(panel, groups, count, row, rows, to, next);
        MultiplyRowsOfBytePanel<Q, kHow, 1>(panel, groups, count, row, rows, to, next);
      }
    }
    for (int64_t p = 0; p < panels.count(); p++) {
      const int64_t output = begin + p * kPanel;
      for (int64_t row = 0; row < count; row++)
        Store(part, first + row, output, panels.outputs_of(p), sums + (p * count + row) * kPanel);
    }
  }
}

template <class Q>
void MultiplyByteQuants(const MatmulPart& part, int64_t begin, int64_t end, const ByteActivations& in,
                        const Stream& stream, std::byte* scratch) {
  if (scratch)
    return WithPanelsOf<Q>(part, begin, end, [&](const auto& panels) HWY_ATTR {
      if constexpr (kMayHaveMore)
        if (has_byte_extension())
          return MultiplyBytePanels<Q, kBy<Q, true>>(part, begin, panels, in, stream, scratch);
      MultiplyBytePanels<Q, kBy<Q, false>>(part, begin, panels, in, stream, scratch);
    });
  int64_t row = 0;
  MultiplyStoredRows<Q, 2>(part, begin, end, in, row);
  MultiplyStoredRows<Q, 1>(part, begin, end, in, row);
}

size_t BytePanelScratchBytes(int64_t outputs, int64_t rows) {
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  return sizeof(Panel) + static_cast<size_t>(panels * kPanel * HWY_MIN(rows, kByteRowBlock)) * sizeof(float);
}

// Outputs [begin, end) of one part for all rows. scratch: null where weights are to be multiplied as they are
// stored.
void MultiplyByteOutputs(const MatmulPart& part, int64_t begin, int64_t end, const ByteActivations& in,
                         const Stream& stream, std::byte* scratch) {
  switch (part.weight.type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return;  // matmul() takes them elsewhere
    case DType::q8_0:
      return MultiplyByteQuants<Q8_0>(part, begin, end, in, stream, scratch);
    case DType::q4_0:
      return MultiplyByteQuants<Q4_0>(part, begin, end, in, stream, scratch);
    case DType::q4_1:
      return MultiplyByteQuants<Q4_1>(part, begin, end, in, stream, scratch);
    case DType::q5_0:
      return MultiplyByteQuants<Q5_0>(part, begin, end, in, stream, scratch);
    case DType::q5_1:
      return MultiplyByteQuants<Q5_1>(part, begin, end, in, stream, scratch);
    case DType::q2_k:
      return MultiplyByteQuants<Q2K>(part, begin, end, in, stream, scratch);
    case DType::q3_k:
      return MultiplyByteQuants<Q3K>(part, begin, end, in, stream, scratch);
    case DType::q4_k:
      return MultiplyByteQuants<Q4K>(part, begin, end, in, stream, scratch);
    case DType::q5_k:
      return MultiplyByteQuants<Q5K>(part, begin, end, in, stream, scratch);
    case DType::q6_k:
      return MultiplyByteQuants<Q6K>(part, begin, end, in, stream, scratch);
  }
}

// 32 columns of a row. Infinity or NaN among them makes the scale NaN, so that it shows in the output as it
// would in f32.
template <bool kMore>
HWY_INLINE void QuantizeGroup(const float* values, int group, const ByteActivations& to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int16_t, decltype(d)> d16;
  const hn::Rebind<int8_t, decltype(d)> d8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  auto peak = hn::Zero(d), poison = hn::Zero(d);
  for (int i = 0; i < 32; i += kLanes) {
    const auto v = hn::LoadU(d, values + i);
    peak = hn::Max(peak, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, peak));
  const bool is_zero = largest < 1e-30f;  // its inverse would not be finite
  const float scale =
      (is_zero ? 0 : largest / static_cast<float>(kLargestByte)) + hn::GetLane(hn::SumOfLanes(d, poison));
  const auto inverse = hn::Set(d, is_zero ? 0 : static_cast<float>(kLargestByte) / largest);
  int8_t* bytes = to.bytes + group * 32;
  const hn::Repartition<int32_t, decltype(d16)> d_pairs;
  alignas(64) int16_t wide[32];
  for (int i = 0; i < 32; i += kLanes) {
    const auto q = hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::LoadU(d, values + i), inverse)));
    hn::StoreU(hn::DemoteTo(d8, q), d8, bytes + i);
    hn::Store(q, d16, wide + i);
  }
  to.scales[group] = scale;
  alignas(64) int32_t pairs[16];  // sums of two
  for (int i = 0; i < 16; i += static_cast<int>(hn::MaxLanes(d_pairs))) {
    const auto both = hn::BitCast(d_pairs, hn::Load(d16, wide + 2 * i));
    hn::Store(hn::Add(hn::ShiftRight<16>(both), hn::ShiftRight<16>(hn::ShiftLeft<16>(both))), d_pairs,
              pairs + i);
  }
  int32_t even[2], odd[2];  // of each 16 columns: the sums of even pairs, of odd ones
  for (int half = 0; half < 2; half++) {
    const int32_t* of = pairs + 8 * half;
    even[half] = of[0] + of[2] + of[4] + of[6];
    odd[half] = of[1] + of[3] + of[5] + of[7];
    to.sums[2 * group + half] = scale * static_cast<float>(even[half] + odd[half]);
    to.offsets[2 * group + half] = OffsetOf<kMore>(even[half], odd[half]);
  }
  to.sums[16 + group] = scale * static_cast<float>(even[0] + even[1] + odd[0] + odd[1]);
  to.offsets[16 + group] = OffsetOf<kMore>(even[0] + even[1], odd[0] + odd[1]);
  if constexpr (kBy<Q8_0, kMore> == By::widened)
    for (int i = 0; i < 16; i++) {
      to.quants[group * 32 + i] = bytes[2 * i];
      to.quants[group * 32 + 16 + i] = bytes[2 * i + 1];
    }
}

template <bool kMore>
void QuantizeChunks(const float* values, const ByteActivations& in, int64_t row, int64_t chunk, int64_t end) {
  for (; chunk < end; chunk++) {
    const ByteActivations to = in.from(chunk, row);
    for (int group = 0; group < in.groups(chunk); group++)
      QuantizeGroup<kMore>(values + chunk * kChunk + group * 32, group, to);
  }
}

// values: the row's, of which these chunks become bytes.
void QuantizeBytes(const float* values, const ByteActivations& in, int64_t row, int64_t chunk, int64_t end) {
  if constexpr (kMayHaveMore)
    if (has_byte_extension()) return QuantizeChunks<true>(values, in, row, chunk, end);
  QuantizeChunks<false>(values, in, row, chunk, end);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace wi::cpu {

HWY_EXPORT(MultiplyByteOutputs);
HWY_EXPORT(BytePanelScratchBytes);
HWY_EXPORT(QuantizeBytes);

namespace {

ByteActivations quantize(const Stream& stream, const MatmulArgs& args) {
  ByteActivations in;
  in.rows = args.rows;
  in.cols = args.parts[0].weight.cols;
  in.place(stream.shared_array<std::byte>(ByteActivations::bytes_for(in.rows, in.cols)));
  each_run_of_chunks(stream, in.rows, in.cols, [&](int64_t row, int64_t chunk, int64_t end) {
    HWY_DYNAMIC_DISPATCH(QuantizeBytes)(args.in + row * in.cols, in, row, chunk, end);
  });
  return in;
}

}  // namespace

void matmul_bytes(const Stream& stream, const MatmulArgs& args) {
  const ByteActivations in = quantize(stream, args);
  const OutputTasks tasks(args, stream.workers);
  stream.each(tasks.count(), [&](int64_t task, int worker) {
    const auto [part, begin, end] = tasks[task];
    std::byte* scratch = nullptr;
    if (args.rows > kDirectRows || part.weight.turned)
      scratch = stream.worker_scratch(stream.self, worker,
                                      HWY_DYNAMIC_DISPATCH(BytePanelScratchBytes)(end - begin, in.rows));
    HWY_DYNAMIC_DISPATCH(MultiplyByteOutputs)(part, begin, end, in, stream, scratch);
  });
}

}  // namespace wi::cpu
#endif
