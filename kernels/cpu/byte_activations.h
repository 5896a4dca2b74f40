// The input rows of a product under WI_PRECISION_INT8: 8-bit integers with a scale for each 32 columns. Rows
// of a chunk of 256 columns lie together, as in activations.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/activations.h"

namespace wi::cpu {

constexpr int32_t kLargestByte = 127;  // -128 has no opposite among bytes
constexpr int64_t kByteSums = 16 + 8;  // over 16 columns each, then over 32

struct ByteActivations {
  int64_t rows = 0, cols = 0, chunks = 0;
  float* scales = nullptr;  // (chunks, rows, 8) value = byte * scale
  float* sums = nullptr;    // (chunks, rows, kByteSums) scale · Σ bytes; for weights with minima
  // (chunks, rows, kByteSums) what byte products with the panels' kBias too much in each weight begin with
  int32_t* offsets = nullptr;
  int8_t* bytes = nullptr;    // (chunks, rows, 256)
  int16_t* quants = nullptr;  // (chunks, rows, 256) the same, of each 32 the 16 even ones, then the odd ones

  static size_t bytes_for(int64_t rows, int64_t cols) {
    return static_cast<size_t>(rows * Activations::chunks_for(cols)) *
           (kChunkGroups * sizeof(float) + kByteSums * (sizeof(float) + sizeof(int32_t)) +
            kChunk * (sizeof(int8_t) + sizeof(int16_t)));
  }
  // memory: 64-byte aligned, bytes_for(rows, cols).
  void place(std::byte* memory) {
    chunks = Activations::chunks_for(cols);
    const int64_t all = rows * chunks;
    quants = reinterpret_cast<int16_t*>(memory);
    bytes = reinterpret_cast<int8_t*>(quants + all * kChunk);
    scales = reinterpret_cast<float*>(bytes + all * kChunk);
    sums = scales + all * kChunkGroups;
    offsets = reinterpret_cast<int32_t*>(sums + all * kByteSums);
  }
  int groups(int64_t chunk) const {
    const int64_t left = (cols - chunk * kChunk) / 32;
    return static_cast<int>(left < 8 ? left : 8);
  }
  // From this row of this chunk on.
  ByteActivations from(int64_t chunk, int64_t row) const {
    const int64_t at = chunk * rows + row;
    ByteActivations rest = *this;
    rest.scales += at * kChunkGroups;
    rest.sums += at * kByteSums;
    rest.offsets += at * kByteSums;
    rest.bytes += at * kChunk;
    rest.quants += at * kChunk;
    return rest;
  }
};

}  // namespace wi::cpu
