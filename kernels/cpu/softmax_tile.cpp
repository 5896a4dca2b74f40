// The vectorised inner loops of attend_chunk, compiled once per instruction set: online softmax over one
// row of a score tile, in two passes (maximum; exponential and sum), and the scaling of the running output.
#include "kernels/cpu/softmax_tile.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/operands_seen.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_tile.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;  // at most half of the 32 columns that tiles are a multiple of
using V = hn::Vec<F>;

// 2^x for x ≤ 0, relative error 2.4e-7; below -125 it stays at 2^-125, which no sum of weights notices.
// x = n + f with |f| ≤ 1/2 through the float whose unit is 1; a polynomial for 2^f (minimax, degree 5);
// then n is added to its exponent.
HWY_INLINE V exp2_negative(V x) {
  const F d;
  const hn::RebindToSigned<F> di;
  const V magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23
  x = hn::Max(x, hn::Set(d, -125.0f));
  V shifted = hn::Add(x, magic);
  V f = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::MulAdd(hn::Set(d, 1.3276466795521373e-3f), f, hn::Set(d, 9.675541292992473e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550713289574487e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022119724872204e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931469670549177e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0000000716543662f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// The upper halves of two vectors, in order: f32 bit patterns, already rounded, as bf16.
HWY_INLINE void store_upper(hn::Vec<hn::RebindToUnsigned<F>> low, hn::Vec<hn::RebindToUnsigned<F>> high,
                            uint16_t* out) {
  const hn::Repartition<uint16_t, F> d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, high), hn::BitCast(d16, low)), d16, out);
}

HWY_INLINE float row_max(const float* scores, int32_t visible, float start) {
  const F d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  V m0 = hn::Set(d, start), m1 = m0, m2 = m0, m3 = m0;
  int32_t j = 0;
  for (; j + 4 * lanes <= visible; j += 4 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, scores + j));
    m1 = hn::Max(m1, hn::LoadU(d, scores + j + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, scores + j + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, scores + j + 3 * lanes));
  }
  for (; j + lanes <= visible; j += lanes) m0 = hn::Max(m0, hn::LoadU(d, scores + j));
  if (j < visible) {
    auto in_row = hn::FirstN(d, static_cast<size_t>(visible - j));
    m1 = hn::Max(m1, hn::IfThenElse(in_row, hn::LoadU(d, scores + j), m1));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

// Scores to weights, two vectors at a time: each pair is read before anything is written in its place;
// columns outside [begin, end) get weight 0. Returns the sum.
template <int kTerms>
HWY_INLINE float row_weights(const float* scores, void* weights, int32_t keys, int32_t begin, int32_t end,
                             float max) {
  const F d;
  const hn::RebindToUnsigned<F> du;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const V vmax = hn::Set(d, max);
  const auto half = hn::Set(du, 0x8000u);  // rounds to nearest; ties go up, as weights are positive
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  auto store = [&](int32_t j, V w0, V w1) HWY_ATTR {
    sum0 = hn::Add(sum0, w0);
    sum1 = hn::Add(sum1, w1);
    if constexpr (kTerms > 0) {
      const auto bits0 = hn::Add(hn::BitCast(du, w0), half), bits1 = hn::Add(hn::BitCast(du, w1), half);
      uint16_t* out = static_cast<uint16_t*>(weights) + j;
      store_upper(bits0, bits1, out);
      if constexpr (kTerms > 1) {  // what is left may be negative: its ties go away from zero
        const auto upper = hn::Set(du, 0xffff0000u);
        const V rest0 = hn::Sub(w0, hn::BitCast(d, hn::And(bits0, upper)));
        const V rest1 = hn::Sub(w1, hn::BitCast(d, hn::And(bits1, upper)));
        store_upper(hn::Add(hn::BitCast(du, rest0), half), hn::Add(hn::BitCast(du, rest1), half), out + keys);
      }
      if constexpr (kTerms > 2) store_upper(bits0, bits1, out + 2 * keys);
    } else {
      hn::StoreU(w0, d, static_cast<float*>(weights) + j);
      hn::StoreU(w1, d, static_cast<float*>(weights) + j + lanes);
    }
  };
  const auto first = [&](int32_t columns) HWY_ATTR {  // of a vector
    return hn::FirstN(d, static_cast<size_t>(columns > 0 ? columns : 0));
  };
  const auto weight = [&](int32_t at)
                          HWY_ATTR { return exp2_negative(hn::Sub(hn::LoadU(d, scores + at), vmax)); };
  const auto masked = [&](int32_t at) HWY_ATTR {
    return hn::IfThenElseZero(hn::AndNot(first(begin - at), first(end - at)), weight(at));
  };
  int32_t j = 0;
  for (; j < begin; j += 2 * lanes) store(j, masked(j), masked(j + lanes));
  for (; j + 2 * lanes <= end; j += 2 * lanes) store(j, weight(j), weight(j + lanes));
  for (; j < keys; j += 2 * lanes) store(j, masked(j), masked(j + lanes));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

template <int kTerms>
void softmax_rows(const SoftmaxTile& tile, int64_t first_row, int64_t rows, int32_t begin, int32_t end) {
  const F d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const size_t row_bytes =
      static_cast<size_t>(tile.keys) * (kTerms ? kTerms * sizeof(uint16_t) : sizeof(float));
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    const float* scores = tile.scores + row * tile.keys;
    char* weights = static_cast<char*>(tile.weights) + static_cast<size_t>(row) * row_bytes;
    if (end <= begin) {
      std::memset(weights, 0, row_bytes);
      continue;
    }
    const float old_max = tile.max[row];
    const float max = row_max(scores + begin, end - begin, old_max);
    const float tile_sum = row_weights<kTerms>(scores, weights, tile.keys, begin, end, max);
    if (max > old_max && old_max > -INFINITY) {
      const float shrink = hn::GetLane(exp2_negative(hn::Set(d, old_max - max)));
      tile.sum[row] *= shrink;
      float* out = tile.out + row * tile.head_dim;
      const V factor = hn::Set(d, shrink);
      int32_t j = 0;
      for (; j + lanes <= tile.head_dim; j += lanes)
        hn::StoreU(hn::Mul(hn::LoadU(d, out + j), factor), d, out + j);
      for (; j < tile.head_dim; ++j) out[j] *= shrink;
    }
    tile.max[row] = max;
    tile.sum[row] += tile_sum;
  }
}

void softmax_any_rows(const SoftmaxTile& tile, int64_t first_row, int64_t rows, int32_t begin, int32_t end) {
  switch (tile.terms) {
    case 0:
      return softmax_rows<0>(tile, first_row, rows, begin, end);
    case 1:
      return softmax_rows<1>(tile, first_row, rows, begin, end);
    case 2:
      return softmax_rows<2>(tile, first_row, rows, begin, end);
    default:
      return softmax_rows<3>(tile, first_row, rows, begin, end);
  }
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(softmax_any_rows);

void softmax_rows(const SoftmaxTile& tile, int64_t first_row, int64_t rows, int32_t begin, int32_t end) {
  const auto bytes = [&](int64_t columns, size_t each) { return static_cast<size_t>(rows * columns) * each; };
  const size_t weight = tile.terms ? static_cast<size_t>(tile.terms) * sizeof(uint16_t) : sizeof(float);
  reads(tile.scores + first_row * tile.keys, bytes(tile.keys, sizeof(float)));
  writes(static_cast<char*>(tile.weights) + static_cast<size_t>(first_row * tile.keys) * weight,
         bytes(tile.keys, weight));
  writes(tile.max + first_row, bytes(1, sizeof(float)));
  writes(tile.sum + first_row, bytes(1, sizeof(float)));
  writes(tile.out + first_row * tile.head_dim, bytes(tile.head_dim, sizeof(float)));
  HWY_DYNAMIC_DISPATCH(softmax_any_rows)(tile, first_row, rows, begin, end);
}

}  // namespace wi::cpu
#endif
