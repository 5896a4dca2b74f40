// The input rows of a product in the form that quantised weights want: 16-bit integers with a scale per
// 256, so that a product is integer multiply-adds and the result nearly that of f32 activations. Where
// bytes multiply faster, they are kept as bytes too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

// Both bytes of a number up to this are within -128 … 127.
constexpr int32_t kLargestQuant = 127 * 256 + 127;

struct Activations {
  const float* values = nullptr;  // (rows, cols), dense
  int64_t rows = 0, cols = 0;
  // Only for quantised weights; each row starts on a cache line and is padded with zeros.
  int64_t groups = 0;         // of 32 columns, rounded up to whole 16 groups
  int16_t* quants = nullptr;  // (rows, groups * 32), at most kLargestQuant
  int8_t* bytes = nullptr;    // (rows, groups, 64) 32 times the high byte, then the low: 256 · high + low
  float* scales = nullptr;    // (rows, groups) value = quant * scale; equal within 256 columns
  float* sums32 = nullptr;    // (rows, groups) sum of quant * scale over 32 columns, for weights with minima
  float* sums16 = nullptr;    // (rows, groups * 2) likewise over 16 columns

  static int64_t groups_for(int64_t cols) { return (cols / 32 + 15) / 16 * 16; }
  static size_t bytes_for(int64_t rows, int64_t cols) {
    return static_cast<size_t>(rows * groups_for(cols)) * (32 * sizeof(int16_t) + 64 + 4 * sizeof(float));
  }
  // memory: 64-byte aligned, bytes_for(rows, cols).
  void place(std::byte* memory) {
    groups = groups_for(cols);
    quants = reinterpret_cast<int16_t*>(memory);
    bytes = reinterpret_cast<int8_t*>(quants + rows * groups * 32);
    scales = reinterpret_cast<float*>(bytes + rows * groups * 64);
    sums32 = scales + rows * groups;
    sums16 = sums32 + rows * groups;
  }
};

}  // namespace wi::cpu
