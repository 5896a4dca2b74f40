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
constexpr int64_t kChunkSums = 16 + 8;         // over 16 columns each, then over 32
constexpr int64_t kChunkGroups = 8;            // of 32 columns
constexpr int kSumShift = 11;                  // a sum's upper bits and its lower ones are numbers of 16 bits
constexpr int64_t kSplitRow = 2 * kChunk;      // bytes of Activations::split from row to row
constexpr size_t kSplitRoom = 16 * kSplitRow;  // behind the last

struct Activations {
  const float* values = nullptr;  // (rows, cols), dense
  int64_t rows = 0, cols = 0;
  // Only for quantised weights.
  int64_t chunks = 0;
  int16_t* quants = nullptr;  // (chunks, rows, 256) of each 32 columns the 16 even ones, then the odd ones
  // Only for blocks of 256 weights that are multiplied as they are stored.
  int16_t* ordered = nullptr;  // (chunks, rows, 256) the same in order
  int8_t* bytes = nullptr;     // (chunks, rows, 8, 64) of 32 the high bytes, then the low: 256 · high + low
  // Only for products of tiles; behind the last row others may be read.
  int8_t* split = nullptr;  // (chunks, rows, 2, 256) in order the high bytes, then the low
  // (chunks, rows, kChunkSums) the sums as 2^kSumShift · high + low, by twos: of those over 16 columns the high parts, the
  // low ones; likewise of those over 32
  int32_t* sum_pairs = nullptr;
  // Again for all:
  float* scales = nullptr;  // (chunks, rows) value = quant * scale
  // Of quants; for weights with minima.
  int32_t* sums = nullptr;      // (chunks, rows, kChunkSums)
  float* group_sums = nullptr;  // (chunks, rows, kChunkGroups) those over 32 columns again, exact as they are
  // (chunks, rows, kChunkGroups) what products with weights that have kTurnedBias (turned_rows.h) too much begin with
  int32_t* offsets = nullptr;

  static int64_t chunks_for(int64_t cols) { return (cols + kChunk - 1) / kChunk; }
  // Which of the above are wanted beside those for all.
  struct Also {
    bool as_stored, in_tiles;
  };
  static size_t bytes_for(int64_t rows, int64_t cols, const Also& also) {
    const auto all = static_cast<size_t>(rows * chunks_for(cols));
    const size_t numbers = all * kChunk * sizeof(int16_t);
    return numbers * (also.as_stored ? 3 : 1) +
           (also.in_tiles ? numbers + kSplitRoom + all * kChunkSums * sizeof(int32_t) : 0) +
           all * ((kChunkSums + kChunkGroups) * sizeof(int32_t) + (kChunkGroups + 1) * sizeof(float));
  }
  // memory: 64-byte aligned, bytes_for(rows, cols, also).
  void place(std::byte* memory, const Also& also) {
    chunks = chunks_for(cols);
    const int64_t numbers = rows * chunks * kChunk;
    const auto take = [&]<class T>(T*& out, int64_t count) {
      out = reinterpret_cast<T*>(memory);
      memory += static_cast<size_t>(count) * sizeof(T);
    };
    take(quants, numbers);
    if (also.as_stored) take(ordered, numbers), take(bytes, 2 * numbers);
    if (also.in_tiles) {
      take(split, 2 * numbers + static_cast<int64_t>(kSplitRoom));
      take(sum_pairs, rows * chunks * kChunkSums);
    }
    take(sums, rows * chunks * kChunkSums);
    take(group_sums, rows * chunks * kChunkGroups);
    take(offsets, rows * chunks * kChunkGroups);
    take(scales, rows * chunks);
  }
  // Groups of 32 columns in a chunk; fewer than 8 only in the last one.
  int groups(int64_t chunk) const {
    const int64_t left = (cols - chunk * kChunk) / 32;
    return static_cast<int>(left < 8 ? left : 8);
  }
};

}  // namespace wi::cpu
