// y = x · Wᵀ for many rows: the projections of prefill. Weights are unpacked a panel of outputs at a time
// into the layout that these products read fastest, and each panel meets all rows while it is in the cache. Products
// are in bf16 with f32 sums, of one, two or three terms (unpack.h); in f32 where the weights are f32 or bf16
// is slower.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unpack.h"
#include "kernels/turned_rows.h"

namespace wi::cpu {
namespace {

constexpr int64_t kPanel = 256;     // outputs of one task
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

void unpack_rows(const Stream& stream, Input* in);
void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part, int terms,
                    int64_t first);
void pack_weights(const Matrix& weight, int64_t first, const Products& products, uint16_t* stage,
                  uint16_t* panel);
void store_tile(const float* tile, int64_t rows, int64_t columns, const MatmulPart& part, int64_t row,
                int64_t first);
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void matmul_dense(const Stream& stream, const MatmulArgs& args) {
  int64_t panels_before[4] = {};
  int terms[3] = {};
  Input in{args.in, {}, args.rows, args.parts[0].weight.cols, 0};
  for (int32_t p = 0; p < args.part_count; ++p) {
    panels_before[p + 1] = panels_before[p] + (args.parts[p].weight.rows + kPanel - 1) / kPanel;
    terms[p] = bf16_terms(args.precision, args.parts[p].weight.type);
    in.terms = std::max(in.terms, terms[p]);
  }
  if (in.terms) unpack_rows(stream, &in);
  stream.each(panels_before[args.part_count], [&](int64_t task, int worker) {
    int32_t p = 0;
    while (task >= panels_before[p + 1]) ++p;
    multiply_panel(stream, worker, in, args.parts[p], terms[p], (task - panels_before[p]) * kPanel);
  });
}

namespace {

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

// Outputs [first, first + kPanel) of one part, for all rows.
void multiply_panel(const Stream& stream, int worker, const Input& in, const MatmulPart& part, int terms,
                    int64_t first) {
  const Matrix& weight = part.weight;
  const int64_t outputs = std::min(kPanel, weight.rows - first);
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
  for (int64_t row = 0; row < in.rows && !stream.cancelled(); row += kRowBlock) {
    const int64_t count = std::min(kRowBlock, in.rows - row);
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
