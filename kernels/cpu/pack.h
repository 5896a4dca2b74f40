// The layout in which bf16 products read their right-hand matrix without copying it first, and the two ways of getting
// there. Packing a panel once and using it for all rows is worth a fifth of prefill's time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

// b (k, n) as panels of `width` columns, padded with zeros; in a panel 32 rows at a time; in these 16 pairs
// of rows; of each pair, column by column, both numbers. Width 0: not packed, dense as its shape says.
struct Packing {
  static constexpr int64_t kRows = 32;

  int64_t k, n;
  int64_t width;  // 0 or a multiple of 16

  int64_t padded_k() const { return width == 0 ? k : (k + kRows - 1) / kRows * kRows; }
  int64_t padded_n() const { return width == 0 ? n : (n + width - 1) / width * width; }
  size_t elements() const { return static_cast<size_t>(padded_k() * padded_n()); }
};

// From b transposed, 16 columns of b at a time: in (16, stride) holds columns [first_n, first_n + 16) at
// rows [0, count_k). first_n: multiple of 16; count_k: multiple of 32. What lies outside b must be zero in
// `in`.
void pack_transposed(const Packing& packing, int64_t first_n, int64_t count_k, const uint16_t* in,
                     int64_t stride, uint16_t* out);

// From b itself: in (padded_k, stride), stride ≥ padded_n, zero outside of b.
void pack_rows(const Packing& packing, const uint16_t* in, int64_t stride, uint16_t* out);

}  // namespace wi::cpu
