// y = x · Wᵀ for many rows: the projections of prefill. Weights are unpacked a panel of outputs at a time,
// and each panel meets all rows while it is in the cache, as dense products in bf16 (f32 where the weights
// are f32 or the processor has no fast bf16).
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"

namespace wi::cpu {
namespace {

constexpr int64_t kPanel = 256;     // outputs of one task
constexpr int64_t kRowBlock = 256;  // rows of one product; between two of them a task polls for cancellation

// The rows in the form the products want, shared by all tasks.
struct Input {
  const float* wide;       // (rows, inputs)
  const uint16_t* narrow;  // (rows, inputs) bf16, null if no part needs it
  int64_t rows, inputs;
};

bool in_bf16(const MatmulPart& part) { return part.weight.type != DType::f32 && has_fast_bf16(); }
const uint16_t* round_rows(const Stream& stream, const MatmulArgs& args, int64_t inputs);
void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part, int64_t first);

}  // namespace

void matmul_dense(const Stream& stream, const MatmulArgs& args) {
  int64_t panels_before[4] = {};
  bool narrow = false;
  for (int32_t p = 0; p < args.part_count; ++p) {
    panels_before[p + 1] = panels_before[p] + (args.parts[p].weight.rows + kPanel - 1) / kPanel;
    narrow |= in_bf16(args.parts[p]);
  }
  Input in{args.in, nullptr, args.rows, args.parts[0].weight.cols};
  if (narrow) in.narrow = round_rows(stream, args, in.inputs);
  stream.each(panels_before[args.part_count], [&](int64_t task, int worker) {
    int32_t p = 0;
    while (task >= panels_before[p + 1]) ++p;
    multiply_panel(stream, worker, in, args.parts[p], (task - panels_before[p]) * kPanel);
  });
}

namespace {

const uint16_t* round_rows(const Stream& stream, const MatmulArgs& args, int64_t inputs) {
  constexpr int64_t kRows = 32;
  uint16_t* out = stream.shared_array<uint16_t>(static_cast<size_t>(args.rows * inputs));
  stream.each((args.rows + kRows - 1) / kRows, [&](int64_t task, int) {
    const int64_t first = task * kRows;
    const int64_t count = std::min(kRows, args.rows - first) * inputs;
    unpack_bf16(args.in + first * inputs, DType::f32, out + first * inputs, count);
  });
  return out;
}

// Outputs [first, first + kPanel) of one part, for all rows.
void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part,
                    int64_t first) {
  const Matrix& weight = part.weight;
  const bool bf16 = in_bf16(part);
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const int64_t outputs = std::min(kPanel, weight.rows - first);
  const bool in_place = weight.type == type;

  GemmShape shape{.m = std::min(kRowBlock, in.rows),
                  .n = outputs,
                  .k = in.inputs,
                  .lda = in.inputs,
                  .ldb = in.inputs,
                  .ldc = weight.rows,
                  .type = type,
                  .b_transposed = true,
                  .accumulate = part.accumulate,
                  .bias = part.bias != nullptr};
  auto whole = Gemm::get(shape);
  shape.m = in.rows % kRowBlock;
  auto last = shape.m != 0 ? Gemm::get(shape) : whole;

  const size_t element = static_cast<size_t>(format_of(type).bytes);
  const size_t panel_bytes =
      in_place ? 0 : (static_cast<size_t>(outputs * in.inputs) * element + 63) / 64 * 64;
  std::byte* scratch = stream.worker_scratch(
      stream.self, worker, panel_bytes + std::max(whole->scratch_bytes(), last->scratch_bytes()));
  const void* panel = static_cast<const std::byte*>(weight.data) +
                      row_bytes(weight.type, in.inputs) * static_cast<size_t>(first);
  if (!in_place) {
    if (bf16) {
      unpack_bf16(panel, weight.type, reinterpret_cast<uint16_t*>(scratch), outputs * in.inputs);
    } else {
      dequantize(panel, weight.type, reinterpret_cast<float*>(scratch), outputs * in.inputs);
    }
    panel = scratch;
  }
  for (int64_t row = 0; row < in.rows && !stream.cancelled(); row += kRowBlock) {
    const void* rows =
        bf16 ? static_cast<const void*>(in.narrow + row * in.inputs) : in.wide + row * in.inputs;
    const Gemm& gemm = in.rows - row >= kRowBlock ? *whole : *last;
    gemm.run(rows, panel, part.out + row * weight.rows + first, part.bias ? part.bias + first : nullptr,
             scratch + panel_bytes);
  }
}

}  // namespace
}  // namespace wi::cpu
