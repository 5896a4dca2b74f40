// The input rows of a product in the form that quantised weights want: 16-bit integers with a scale per
// chunk of 256 columns, so that a product is integer multiply-adds and the result nearly that of f32
// activations. Rows of a chunk lie together, so that a chunk of weights meets all of them in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

constexpr int64_t kChunk = 256;  // columns
// Both bytes of an activation up to this are within -128 … 127.
constexpr int32_t kLargestQuant = 127 * 256 + 127;
constexpr int64_t kChunkSums = 16 + 8;  // over 16 columns each, then over 32
constexpr int64_t kChunkGroups = 8;     // of 32 columns

struct Activations {
  const float* values = nullptr;  // (rows, cols), dense
  int64_t rows = 0, cols = 0;
  // Only for quantised weights.
  int64_t chunks = 0;
  int16_t* quants = nullptr;  // (chunks, rows, 256) of each 32 columns the 16 even ones, then the odd ones
  // Only for blocks of 256 weights that are multiplied as they are stored.
  int16_t* ordered = nullptr;  // (chunks, rows, 256) the same in order
  int8_t* bytes = nullptr;     // (chunks, rows, 8, 64) of 32 the high bytes, then the low: 256 · high + low
  // Again for all:
  float* scales = nullptr;  // (chunks, rows) value = quant * scale
  // Of quants; for weights with minima.
  int32_t* sums = nullptr;      // (chunks, rows, kChunkSums)
  float* group_sums = nullptr;  // (chunks, rows, kChunkGroups) those over 32 columns again, exact as they are
  // (chunks, rows, kChunkGroups) what products with weights that have kTurnedBias (turned_rows.h) too much begin with
  int32_t* offsets = nullptr;

  static int64_t chunks_for(int64_t cols) { return (cols + kChunk - 1) / kChunk; }
  // as_stored: whether `ordered` and `bytes` are wanted too.
  static size_t bytes_for(int64_t rows, int64_t cols, bool as_stored) {
    return static_cast<size_t>(rows * chunks_for(cols)) *
           ((as_stored ? 4 : 1) * kChunk * sizeof(int16_t) + (kChunkSums + kChunkGroups) * sizeof(int32_t) +
            (kChunkGroups + 1) * sizeof(float));
  }
  // memory: 64-byte aligned, bytes_for(rows, cols, as_stored).
  void place(std::byte* memory, bool as_stored) {
    chunks = chunks_for(cols);
    const int64_t numbers = rows * chunks * kChunk;
    quants = reinterpret_cast<int16_t*>(memory);
    ordered = as_stored ? quants + numbers : nullptr;
    bytes = as_stored ? reinterpret_cast<int8_t*>(ordered + numbers) : nullptr;
    sums = reinterpret_cast<int32_t*>(quants + (as_stored ? 4 : 1) * numbers);
    group_sums = reinterpret_cast<float*>(sums + rows * chunks * kChunkSums);
    offsets = reinterpret_cast<int32_t*>(group_sums + rows * chunks * kChunkGroups);
    scales = reinterpret_cast<float*>(offsets + rows * chunks * kChunkGroups);
  }
  // Groups of 32 columns in a chunk; fewer than 8 only in the last one.
  int groups(int64_t chunk) const {
    const int64_t left = (cols - chunk * kChunk) / 32;
    return static_cast<int>(left < 8 ? left : 8);
  }
};

}  // namespace wi::cpu
