// The part of attend_chunk between its two products: one key tile of scores becomes weights, with the
// running maximum and sum of an online softmax. Scores are in units of log 2, so that exp is exp2.
#pragma once

#include <cstdint>

namespace wi::cpu {

struct SoftmaxTile {
  const float* scores;  // (rows, keys)
  // (rows, keys) f32, or (rows, terms, keys) bf16, a left operand of unpack.h, each number rounded to
  // nearest. May be where the scores are if rows come in order and there is one term or none.
  void* weights;
  int32_t keys;  // multiple of 32
  int terms;     // of a product; 0: f32. Sums are of the unrounded weights.
  float* max;    // (rows) running maximum; -infinity before the first tile
  float* sum;    // (rows) running sum of 2^(score - max)
  float* out;    // (rows, head_dim) running sum of weight · value; scaled when the maximum moves
  int32_t head_dim;
};

// The rows see columns [begin, end), 0 ≤ begin, end ≤ keys, or none; their other weights are 0.
void softmax_rows(const SoftmaxTile& tile, int64_t first_row, int64_t rows, int32_t begin, int32_t end);

}  // namespace wi::cpu
