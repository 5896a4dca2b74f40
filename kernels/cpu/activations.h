// The input rows of a product in the form that quantised weights want: 16-bit integers with a scale per
// 256, so that a product is integer multiply-adds and the result nearly that of f32 activations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

struct Activations {
  const float* values = nullptr;  // (rows, cols), dense
  int64_t rows = 0, cols = 0;
  // Only for quantised weights; each row starts on a cache line and is padded with zeros.
  int64_t groups = 0;         // of 32 columns, rounded up to whole 16 groups
  int16_t* quants = nullptr;  // (rows, groups * 32)
  float* scales = nullptr;    // (rows, groups) value = quant * scale; equal within 256 columns
  float* sums32 = nullptr;    // (rows, groups) sum of quant * scale over 32 columns, for weights with minima
  float* sums16 = nullptr;    // (rows, groups * 2) likewise over 16 columns

  static int64_t groups_for(int64_t cols) { return (cols / 32 + 15) / 16 * 16; }
  static size_t bytes_for(int64_t rows, int64_t cols) {
    return static_cast<size_t>(rows * groups_for(cols)) * (32 * sizeof(int16_t) + 4 * sizeof(float));
  }
  // memory: 64-byte aligned, bytes_for(rows, cols).
  void place(std::byte* memory) {
    groups = groups_for(cols);
    quants = reinterpret_cast<int16_t*>(memory);
    scales = reinterpret_cast<float*>(quants + rows * groups * 32);
    sums32 = scales + rows * groups;
    sums16 = sums32 + rows * groups;
  }
};

}  // namespace wi::cpu
