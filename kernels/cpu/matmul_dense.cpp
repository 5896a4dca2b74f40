// y = x · Wᵀ for many rows: the projections of prefill. Weights are unpacked a panel of outputs at a time
// into the layout that these products read fastest, and each panel meets its task's rows while it is in the cache.
// Products are in bf16 with f32 sums, of one, two or three terms (unpack.h); in f32 where the weights are f32 or bf16
// is slower.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"
#include "kernels/turned_rows.h"

namespace wi::cpu {
namespace {

constexpr int64_t kPanel = 256;     // outputs of one task at most
constexpr int64_t kRowBlock = 256;  // rows of one product; between two of them a task polls for cancellation
constexpr int64_t kInputBlock = 512;  // inputs of one product in bf16: the matrices of all its terms fit in
                                      // the cache of a core together; whole blocks of every weight type
constexpr int64_t kStageStride = kInputBlock + 32;  // so that rows do not fall on the same cache sets

// The rows in the form the products want, shared by all tasks.
struct Input {
  const float* wide;  // (rows, inputs)
  // The two parts of all numbers (unpack.h), null where they are not needed: of a block of inputs all rows,
  // then the next block.
  const uint16_t* parts[2];
  int64_t rows, inputs;
  int terms;  // of the products of any part; 0 if none is in bf16
};

// The products of one task: the outputs of a panel, a block of rows, a block of inputs after the other.
struct Products {
  int64_t rows, outputs, inputs;
  int terms;  // 0: f32

  DType type() const { return terms ? DType::bf16 : DType::f32; }
  size_t element_bytes() const { return static_cast<size_t>(format_of(type()).bytes); }
  int64_t block() const { return terms ? kInputBlock : inputs; }
  int64_t inputs_from(int64_t k) const { return std::min(block(), inputs - k); }
  Gemm get(int64_t row_count, int64_t k, bool first) const {
    return Gemm({row_count, outputs, inputs_from(k), type(), true, !first});
  }
  Packing packing(int64_t k) const { return get(rows, k, true).packing(); }
};

// What a task has at most: so many outputs of one part, and of the rows so many, whole blocks.
struct Cut {
  int64_t outputs, rows;

  int64_t panels(const MatmulPart& part) const { return (part.weight.rows + outputs - 1) / outputs; }
  int64_t row_groups(int64_t all_rows) const { return (all_rows + rows - 1) / rows; }
};
// The outputs and the rows of one task.
struct Piece {
  int64_t first, outputs, row, end_row;
};

Cut best_cut(const MatmulArgs& args, int workers);
void unpack_rows(const Stream& stream, Input* in);
void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part, int terms,
                    const Piece& piece);
void pack_weights(const Matrix& weight, int64_t first, const Products& products, uint16_t* stage,
                  uint16_t* panel);
void store_tile(const float* tile, int64_t rows, int64_t columns, const MatmulPart& part, int64_t row,
                int64_t first);
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void matmul_dense(const Stream& stream, const MatmulArgs& args) {
  const Cut cut = best_cut(args, stream.workers);
  int64_t panels_before[4] = {};
  int terms[3] = {};
  Input in{args.in, {}, args.rows, args.parts[0].weight.cols, 0};
  for (int32_t p = 0; p < args.part_count; ++p) {
    panels_before[p + 1] = panels_before[p] + cut.panels(args.parts[p]);
    terms[p] = bf16_terms(args.precision, args.parts[p].weight.type);
    in.terms = std::max(in.terms, terms[p]);
  }
  if (in.terms) unpack_rows(stream, &in);
  const int64_t row_groups = cut.row_groups(args.rows);
  stream.each(panels_before[args.part_count] * row_groups, [&](int64_t task, int worker) {
    const int64_t panel = task / row_groups, row = task % row_groups * cut.rows;
    int32_t p = 0;
    while (panel >= panels_before[p + 1]) ++p;
    const int64_t first = (panel - panels_before[p]) * cut.outputs;
    const int64_t outputs = std::min(cut.outputs, args.parts[p].weight.rows - first);
    multiply_panel(stream, worker, in, args.parts[p], terms[p],
                   {first, outputs, row, std::min(row + cut.rows, args.rows)});
  });
}

namespace {

// The cut with which all workers are done first, if by a sixteenth and more. Rows in groups have each panel packed for
// each of them, which takes as long as the products of some more rows (40 to 110 where there is AMX, fewer elsewhere);
// narrow panels read the rows more often (128 outputs take up to 6 % longer, 64 up to 20). Neither changes a sum.
Cut best_cut(const MatmulArgs& args, int workers) {
  constexpr int64_t kPackingRows = 96, kNarrowOutputs = 16;
  const int64_t blocks = (args.rows + kRowBlock - 1) / kRowBlock;
  Cut best = {kPanel, blocks * kRowBlock};
  if (workers == 1) return best;
  int64_t all_outputs = 0, least = INT64_MAX;
  for (int32_t p = 0; p < args.part_count; ++p) all_outputs += args.parts[p].weight.rows;
  for (int64_t outputs : {kPanel, kPanel / 2, kPanel / 4})
    for (int64_t groups = 1; groups <= std::min<int64_t>(blocks, workers); ++groups) {
      const Cut cut = {outputs, (blocks + groups - 1) / groups * kRowBlock};
      const int64_t of_one_round = outputs * workers;
      const int64_t rounds = (all_outputs * cut.row_groups(args.rows) + of_one_round - 1) / of_one_round;
      const int64_t time =
          rounds * (std::min(cut.rows, args.rows) + kPackingRows) * (outputs + kNarrowOutputs);
      if (time >= least - least / 16) continue;
      best = cut;
      least = time;
    }
  return best;
}

void unpack_rows(const Stream& stream, Input* in) {
  constexpr int64_t kRows = 32;
  const int64_t numbers = in->rows * in->inputs;
  uint16_t* first_parts =
      stream.shared_array<uint16_t>(static_cast<size_t>(numbers * (in->terms > 1 ? 2 : 1)));
  uint16_t* second_parts = in->terms > 1 ? first_parts + numbers : nullptr;
  stream.each((in->rows + kRows - 1) / kRows, [&](int64_t task, int) {
    const int64_t first = task * kRows, end = std::min(first + kRows, in->rows);
    for (int64_t row = first; row < end; ++row) {
      for (int64_t k = 0; k < in->inputs; k += kInputBlock) {
        const int64_t count = std::min(kInputBlock, in->inputs - k), at = in->rows * k + row * count;
        unpack_parts(in->wide + row * in->inputs + k, DType::f32, count, first_parts + at,
                     second_parts ? second_parts + at : nullptr);
      }
    }
  });
  in->parts[0] = first_parts;
  in->parts[1] = second_parts;
}

void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part, int terms,
                    const Piece& piece) {
  const Matrix& weight = part.weight;
  const int64_t first = piece.first, outputs = piece.outputs;
  const Products products{std::min(kRowBlock, in.rows), outputs, in.inputs, terms};
  const size_t element = products.element_bytes();
  size_t panel_elements = 0, gemm_bytes = 0;
  for (int64_t k = 0; k < in.inputs; k += products.block()) {
    panel_elements += products.packing(k).elements() * (terms > 2 ? 2 : 1);
    for (int64_t rows : {products.rows, in.rows % kRowBlock}) {
      if (rows == 0) continue;
      for (bool start : {true, false})
        gemm_bytes = std::max(gemm_bytes, products.get(rows, k, start).scratch_bytes());
    }
  }

  const size_t panel_bytes = aligned(panel_elements * element);
  const size_t stage_bytes = 2 * 16 * kStageStride * sizeof(uint16_t);
  const size_t tile_bytes = aligned(kRowBlock * kPanel * sizeof(float));
  std::byte* scratch =
      stream.worker_scratch(stream.self, worker, panel_bytes + stage_bytes + tile_bytes + gemm_bytes);
  uint16_t* stage = reinterpret_cast<uint16_t*>(scratch + panel_bytes);
  float* tile = reinterpret_cast<float*>(scratch + panel_bytes + stage_bytes);

  const std::byte* panel = scratch;
  if (terms) {
    pack_weights(weight, first, products, stage, reinterpret_cast<uint16_t*>(scratch));
  } else if (weight.type != DType::f32) {
    float* wide = reinterpret_cast<float*>(scratch);
    for (int64_t o = 0; o < outputs; ++o) dequantize_row(weight, first + o, wide + o * in.inputs);
  } else {
    panel = static_cast<const std::byte*>(weight.data) +
            row_bytes(weight.type, in.inputs) * static_cast<size_t>(first);
  }
  for (int64_t row = piece.row; row < piece.end_row && !stream.cancelled(); row += kRowBlock) {
    const int64_t count = std::min(kRowBlock, piece.end_row - row);
    const std::byte* block = panel;
    for (int64_t k = 0; k < in.inputs; k += products.block()) {
      const size_t plane = products.packing(k).elements() * element;
      const size_t at = static_cast<size_t>(in.rows * k + row * products.inputs_from(k));
      std::byte* gemm_scratch = scratch + panel_bytes + stage_bytes + tile_bytes;
      if (terms == 0) products.get(count, k, k == 0).run(in.wide + at, block, tile, gemm_scratch);
      for (int term = 0; term < terms; ++term) {  // a1·b1, a2·b1, a1·b2
        products.get(count, k, k == 0 && term == 0)
            .run(in.parts[term == 1] + at, block + (term == 2 ? plane : 0), tile, gemm_scratch);
      }
      block += terms > 2 ? 2 * plane : plane;
    }
    store_tile(tile, count, outputs, part, row, first);
  }
}

// Sixteen outputs at a time through a stage that fits in the first-level cache. Of a block of inputs the
// first parts of all numbers, then, if there is a term for them, the second ones.
void pack_weights(const Matrix& weight, int64_t first, const Products& products, uint16_t* stage,
                  uint16_t* panel) {
  RoomAsStored room;
  const bool two_parts = products.terms > 2;
  uint16_t* second_stage = stage + 16 * kStageStride;
  const int64_t padded_outputs = products.packing(0).padded_n();
  for (int64_t n = 0; n < padded_outputs; n += 16) {
    const int64_t row_count = std::clamp<int64_t>(products.outputs - n, 0, 16);
    uint16_t* block = panel;
    for (int64_t k = 0; k < products.inputs; k += kInputBlock) {
      const Packing packing = products.packing(k);
      const int64_t padded = (packing.k + Packing::kRows - 1) / Packing::kRows * Packing::kRows;
      uint16_t* second_block = block + packing.elements();
      if (weight.type == DType::bf16 && row_count == 16 && packing.k == padded) {
        const auto* rows = static_cast<const uint16_t*>(weight.data) + (first + n) * weight.cols;
        pack_transposed(packing, n, padded, rows + k, weight.cols, block);
      } else {
        for (int64_t r = 0; r < 16; ++r) {
          uint16_t *out = stage + r * kStageStride, *second_out = second_stage + r * kStageStride;
          const int64_t filled = r < row_count ? packing.k : 0;
          const size_t empty_bytes = static_cast<size_t>(padded - filled) * sizeof(uint16_t);
          if (filled != 0)
            unpack_parts(as_stored(weight, first + n + r, k, filled, room), weight.type, filled, out,
                         two_parts ? second_out : nullptr);
          std::memset(out + filled, 0, empty_bytes);
          if (two_parts) std::memset(second_out + filled, 0, empty_bytes);
        }
        pack_transposed(packing, n, padded, stage, kStageStride, block);
        if (two_parts) pack_transposed(packing, n, padded, second_stage, kStageStride, second_block);
      }
      block = two_parts ? second_block + packing.elements() : second_block;
    }
  }
}

void store_tile(const float* tile, int64_t rows, int64_t columns, const MatmulPart& part, int64_t row,
                int64_t first) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = tile + i * columns;
    float* to = part.out + (row + i) * part.weight.rows + first;
    if (part.accumulate) {
      for (int64_t j = 0; j < columns; ++j) to[j] += from[j];
    } else {
      std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(float));
    }
    if (!part.bias) continue;
    for (int64_t j = 0; j < columns; ++j) to[j] += part.bias[first + j];
  }
}

}  // namespace
}  // namespace wi::cpu
