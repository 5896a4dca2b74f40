// The part of attend_chunk between its two products: one key tile of scores becomes weights, with the
// running maximum and sum of an online softmax. Scores are in units of log 2, so that exp is exp2.
#pragma once

#include <cstdint>

namespace wi::cpu {

// A tile of scores (rows, stride) in f32, overwritten in place by the weights: row i's weights start where
// its scores started, as bf16 or f32.
struct SoftmaxTile {
  float* scores;
  int64_t stride;  // floats between rows
  int32_t keys;    // columns of the tile; multiple of 32
  bool bf16;       // weights in bf16, rounded to nearest; sums are of the unrounded ones
  float* max;      // (rows) running maximum; -infinity before the first tile
  float* sum;      // (rows) running sum of 2^(score - max)
  float* out;      // (rows, head_dim) running sum of weight · value; scaled when the maximum moves
  int32_t head_dim;
};

// Row `row` sees the first `visible` columns, 0 ≤ visible ≤ keys; its weights beyond are 0.
void softmax_rows(const SoftmaxTile& tile, int64_t first_row, int64_t rows, int32_t visible);

}  // namespace wi::cpu
