// The vector pieces of attention over scattered rows, shared by attend, select and estimate: q·k for a few
// rows and query heads at once, exp, and the weighted sum of rows. Compiled once per instruction set.
//
// Query heads of a GQA group are taken in blocks of 1, 2 or 4, so that a key or value row is loaded and
// converted once for the whole block. Scores of a block are interleaved, (rows, heads): one vector holds
// kLanes / heads rows, and lane i belongs to head i % heads, so that maximum, exp and sum need no shuffle.
#if defined(WI_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WI_ATTEND_INL_H_
#undef WI_ATTEND_INL_H_
#else
#define WI_ATTEND_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/floats-inl.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr size_t kLanes = HWY_LANES(float);
constexpr size_t kWide = kLanes >= 16 ? 16 : 8;  // accumulators that fit beside operands
constexpr float kLowest = std::numeric_limits<float>::lowest();

constexpr int kBlockHeads = kLanes >= 4 ? 4 : 1;
HWY_INLINE int head_blocks(int group) { return (group + kBlockHeads - 1) / kBlockHeads; }
// Width of the block that starts at this head: 1, 2 or 4; three heads take a block of four.
HWY_INLINE int block_width(int group, int first_head) {
  if (kBlockHeads == 1) return 1;
  const int left = group - first_head;
  return left >= 3 ? 4 : left;
}
HWY_INLINE size_t padded_dim(size_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

// ---- loads

template <DType kKv, class D>
HWY_INLINE hn::Vec<D> load_kv(D d, const std::byte* row, size_t i) {
  if constexpr (kKv == DType::f32) return LoadFloats(d, reinterpret_cast<const float*>(row) + i);
  if constexpr (kKv == DType::f16) return LoadFloats(d, reinterpret_cast<const hwy::float16_t*>(row) + i);
  if constexpr (kKv == DType::bf16) return LoadFloats(d, reinterpret_cast<const hwy::bfloat16_t*>(row) + i);
}

#if HWY_TARGET != HWY_SCALAR
// head_dim is a multiple of 8 (kHeadDimStep), so that what a vector of 16 leaves over is half a vector.
template <DType kKv>
HWY_INLINE Vector load_half_kv(Floats d, const std::byte* row, size_t i) {
  const hn::Half<Floats> half;
  return hn::ZeroExtendVector(d, load_kv<kKv>(half, row, i));
}
#endif

// Up to kLanes numbers; those beyond count are `rest`.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_some(D d, const T* from, size_t count, T rest) {
  if (HWY_LIKELY(count >= kLanes)) return hn::LoadU(d, from);
  HWY_ALIGN T lanes[kLanes];
  for (size_t i = 0; i < kLanes; i++) lanes[i] = i < count ? from[i] : rest;
  return hn::Load(d, lanes);
}

// Into the second cache: the first waits for few lines at a time, so that asking it for a burst of scattered
// rows stalls. (Zen 4, clusters of 16 rows: 12 GB/s a core; 8 into the first.)
HWY_INLINE void prefetch_line(const void* line) { __builtin_prefetch(line, 0, 2); }
HWY_INLINE void prefetch_row(const std::byte* row, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) prefetch_line(row + i);
}

// ---- reductions

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE Vector sum_each(Floats, Vector (&sums)[kLanes]) { return sums[0]; }
template <int kHeads>
HWY_INLINE Vector max_across_rows(Floats, Vector v) {
  return v;
}
template <int kHeads>
HWY_INLINE Vector sum_across_rows(Floats, Vector v) {
  return v;
}

#else

// One vector whose lane i is the sum of sums[i]'s lanes, for kLanes vectors. Two vectors become one by
// adding, to what each has in its own half of the places, what it has in the other's: one shuffle, where
// picking even and odd lanes takes two that most processors have fewer units for than for anything else.
HWY_INLINE Vector sum_each(Floats d, Vector (&sums)[kLanes]) {
  const hn::Repartition<uint64_t, Floats> pairs;
  if constexpr (kLanes > 4) {
    HWY_UNROLL(16)
    for (size_t i = 0; i < kLanes / 2; i++) {
      const Vector a = sums[i], b = sums[i + kLanes / 2];
      sums[i] = hn::Add(hn::ConcatUpperLower(d, b, a), hn::ConcatLowerUpper(d, b, a));
    }
  }
  if constexpr (kLanes > 8) {
    HWY_UNROLL(16)
    for (size_t i = 0; i < 4; i++) {
      const Vector a = sums[i], b = sums[i + 4];
      sums[i] = hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
    }
  }
  HWY_UNROLL(16)
  for (size_t i = 0; i < 2; i++) {
    const Vector a = sums[i], b = sums[i + 2];
    const auto own = hn::OddEven(hn::BitCast(pairs, b), hn::BitCast(pairs, a));
    sums[i] = hn::Add(hn::BitCast(d, own), hn::CombineShiftRightBytes<8>(d, b, a));
  }
  return hn::Add(hn::OddEven(sums[1], sums[0]), hn::Shuffle2301(hn::OddEven(sums[0], sums[1])));
}

// Combines the lanes of each head; every lane of a head ends with the same value.
template <int kHeads, class Combine>
HWY_INLINE Vector across_rows(Floats d, Vector v, Combine combine) {
  const hn::Rebind<int32_t, Floats> di;
  for (size_t step = kHeads; step < kLanes; step *= 2) {
    const auto lanes = hn::And(hn::Add(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(step))),
                               hn::Set(di, static_cast<int32_t>(kLanes - 1)));
    v = combine(v, hn::TableLookupLanes(v, hn::IndicesFromVec(d, lanes)));
  }
  return v;
}
template <int kHeads>
HWY_INLINE Vector max_across_rows(Floats d, Vector v) {
  return across_rows<kHeads>(d, v, [](Vector a, Vector b) HWY_ATTR { return hn::Max(a, b); });
}
template <int kHeads>
HWY_INLINE Vector sum_across_rows(Floats d, Vector v) {
  return across_rows<kHeads>(d, v, [](Vector a, Vector b) HWY_ATTR { return hn::Add(a, b); });
}

#endif  // not HWY_SCALAR

// ---- exp

// x = n ln 2 + r, |r| ≤ ln 2 / 2; returns 2^n. For x in [-87, 87].
HWY_INLINE Vector split_exponent(Floats d, Vector x, Vector& r) {
  const hn::Rebind<int32_t, Floats> di;
  // Adding 1.5 · 2^23 rounds to an integer n, which is then in the low bits of the sum.
  const Vector magic = hn::Set(d, 12582912.0f);
  const Vector shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const Vector n = hn::Sub(shifted, magic);
  r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  return hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23)));
}

// exp(x) within 2e-7 relative for x in [-87, 87]; 0 below, also for -infinity. Not for x above.
HWY_INLINE Vector exp(Floats d, Vector x) {
  const auto in_range = hn::Gt(x, hn::Set(d, -87.0f));
  Vector r;
  const Vector power = split_exponent(d, hn::Max(x, hn::Set(d, -87.0f)), r);
  Vector p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  return hn::IfThenElseZero(in_range, hn::Mul(p, power));
}

// exp(x) within 4e-5 relative for x in [-87, 87], for statistics; e^-87 below.
HWY_INLINE Vector rough_exp(Floats d, Vector x) {
  Vector r;
  const Vector power = split_exponent(d, hn::Max(x, hn::Set(d, -87.0f)), r);
  Vector p = hn::Set(d, 4.1665795894e-2f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::Mul(p, power);
}

// Not below exp(x) but for its rounding, and at most 6.2 % above, for x in [-87, 87]; e^-87 below: what is
// linear between powers of two lies above a curve that bends up.
HWY_INLINE Vector upper_exp(Floats d, Vector x) {
  const hn::Rebind<int32_t, Floats> di;
  const Vector clamped = hn::Max(x, hn::Set(d, -87.0f));
  const Vector bits = hn::MulAdd(clamped, hn::Set(d, 1.44269504f * 0x1p23f), hn::Set(d, 127 * 0x1p23f));
  return hn::BitCast(d, hn::ConvertTo(di, bits));
}

// ---- the two products

// Scores of kLanes / kHeads rows: lane row * kHeads + head is query[head] · rows[row].
// query: (kHeads, padded_dim), scaled, zero beyond head_dim.
template <DType kKv, int kHeads>
HWY_INLINE Vector dot_rows(Floats d, const float* HWY_RESTRICT query, const std::byte* const* rows,
                           size_t head_dim) {
  constexpr size_t kRows = kLanes / kHeads;
  const size_t stride = padded_dim(head_dim);
  Vector sums[kLanes];
  HWY_UNROLL(16)
  for (size_t i = 0; i < kLanes; i++) sums[i] = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    Vector q[kHeads];
    HWY_UNROLL(16)
    for (int h = 0; h < kHeads; h++) q[h] = hn::LoadU(d, query + h * stride + i);
    HWY_UNROLL(16)
    for (size_t r = 0; r < kRows; r++) {
      const Vector k = load_kv<kKv>(d, rows[r], i);
      HWY_UNROLL(16)
      for (int h = 0; h < kHeads; h++) sums[r * kHeads + h] = hn::MulAdd(k, q[h], sums[r * kHeads + h]);
    }
  }
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes > 8) {
    if (i < head_dim) {
      for (size_t r = 0; r < kRows; r++) {
        const Vector k = load_half_kv<kKv>(d, rows[r], i);
        for (int h = 0; h < kHeads; h++) {
          sums[r * kHeads + h] = hn::MulAdd(k, hn::LoadU(d, query + h * stride + i), sums[r * kHeads + h]);
        }
      }
    }
  }
#endif
  return sum_each(d, sums);
}

// The weight of (row, head) is at row · row_step + head · head_step.
struct Weights {
  const float* of;
  size_t row_step, head_step;
};

// acc[head][i] += Σ weight · rows[row][i] for kVectors vectors of D from column i. The same columns of the
// rows of `next`, if any, are asked for; where a few passes share a line, each asks for some rows', for a
// burst of requests would keep what is needed now waiting.
template <DType kKv, int kHeads, size_t kVectors, class D>
HWY_INLINE void add_columns(D d, const Weights& weights, const std::byte* const* rows, size_t count, size_t i,
                            size_t stride, float* HWY_RESTRICT acc, const std::byte* const* next,
                            size_t bytes) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const size_t begin = row_bytes(kKv, static_cast<int64_t>(i));
  const size_t width = row_bytes(kKv, static_cast<int64_t>(kVectors * lanes));
  const size_t per_line = width < 64 && begin / 64 < bytes / 64 ? 64 / width : 1;
  const size_t turn = begin % 64 / width;
  V sums[kHeads * kVectors];
  HWY_UNROLL(16)
  for (int h = 0; h < kHeads; h++) HWY_UNROLL(16)
  for (size_t c = 0; c < kVectors; c++) {
    sums[h * kVectors + c] = hn::LoadU(d, acc + h * stride + i + c * lanes);
  }
  for (size_t r = 0; r < count; r++) {
    if (next && (r & (per_line - 1)) == turn)
      for (size_t line = 0; line < width; line += 64) prefetch_line(next[r] + begin + line);
    V w[kHeads];
    HWY_UNROLL(16)
    for (int h = 0; h < kHeads; h++)
      w[h] = hn::Set(d, weights.of[r * weights.row_step + h * weights.head_step]);
    HWY_UNROLL(16)
    for (size_t c = 0; c < kVectors; c++) {
      const V v = load_kv<kKv>(d, rows[r], i + c * lanes);
      HWY_UNROLL(16)
      for (int h = 0; h < kHeads; h++) {
        sums[h * kVectors + c] = hn::MulAdd(v, w[h], sums[h * kVectors + c]);
      }
    }
  }
  HWY_UNROLL(16)
  for (int h = 0; h < kHeads; h++) HWY_UNROLL(16)
  for (size_t c = 0; c < kVectors; c++) {
    hn::StoreU(sums[h * kVectors + c], d, acc + h * stride + i + c * lanes);
  }
}

// acc (kHeads, padded_dim) += Σ over count rows of weight times the row. next: rows to
// prefetch meanwhile, one per row, or null.
template <DType kKv, int kHeads>
HWY_INLINE void add_rows(const Weights& weights, const std::byte* const* rows, size_t count, size_t head_dim,
                         float* acc, const std::byte* const* next = nullptr) {
  const Floats d;
  const size_t stride = padded_dim(head_dim);
  const size_t bytes = row_bytes(kKv, static_cast<int64_t>(head_dim));
  constexpr size_t kVectors = kWide / kHeads;
  size_t i = 0;
  for (; i + kVectors * kLanes <= head_dim; i += kVectors * kLanes) {
    add_columns<kKv, kHeads, kVectors>(d, weights, rows, count, i, stride, acc, next, bytes);
  }
  for (; i + kLanes <= head_dim; i += kLanes) {
    add_columns<kKv, kHeads, 1>(d, weights, rows, count, i, stride, acc, next, bytes);
  }
  if constexpr (kLanes > 8) {
    if (i < head_dim) {
      add_columns<kKv, kHeads, 1>(hn::Half<Floats>(), weights, rows, count, i, stride, acc, next, bytes);
    }
  }
}

// ---- queries

HWY_INLINE float squared_length(const float* query, size_t head_dim) {
  float squares = 0;
  for (size_t i = 0; i < head_dim; i++) squares += query[i] * query[i];
  return squares;
}

// query (group, head_dim) to (blocks of heads, padded_dim), scaled and padded with zeros. Block b starts at
// row b * kBlockHeads. Returns rows written.
HWY_INLINE size_t pack_query(const float* query, int group, size_t head_dim, float scale, float* packed) {
  const size_t stride = padded_dim(head_dim);
  const size_t rows = static_cast<size_t>(head_blocks(group)) * kBlockHeads;
  std::memset(packed, 0, rows * stride * sizeof(float));
  for (int h = 0; h < group; h++)
    for (size_t i = 0; i < head_dim; i++) packed[h * stride + i] = query[h * head_dim + i] * scale;
  return rows;
}

// Calls body.operator()<kKv, kHeads>() with the two as compile-time constants.
template <class Body>
HWY_INLINE void with_type_and_width(DType kv, int width, Body&& body) {
  const auto with_width = [&]<DType kKv>() HWY_ATTR {
    if constexpr (kBlockHeads == 4) {
      if (width == 4) return body.template operator()<kKv, 4>();
      if (width == 2) return body.template operator()<kKv, 2>();
    }
    return body.template operator()<kKv, 1>();
  };
  if (kv == DType::f16) return with_width.template operator()<DType::f16>();
  if (kv == DType::bf16) return with_width.template operator()<DType::bf16>();
  return with_width.template operator()<DType::f32>();
}

// Calls body.operator()<kHeads>() for one to four heads.
template <class Body>
HWY_INLINE void with_heads(int heads, Body&& body) {
  if constexpr (kBlockHeads == 4) {
    if (heads == 4) return body.template operator()<4>();
    if (heads == 3) return body.template operator()<3>();
    if (heads == 2) return body.template operator()<2>();
  }
  return body.template operator()<1>();
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
