// Dense products in f32 (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008): a
// block of b is copied into panels of two vectors' width, small enough for the first cache, and each panel
// meets all rows of a, as many at a time as the registers hold sums of.
#include "kernels/cpu/gemm_f32.h"

#include <algorithm>

#include "kernels/cpu/operands_seen.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_f32.cpp"
#include "hwy/foreach_target.h"
// After foreach_target, which defines the target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
constexpr int64_t kLanes = hn::MaxLanes(D());
constexpr int64_t kWidth = 2 * kLanes;  // columns of a panel
// Rows at a time: their sums, two vectors each, leave registers for two of b and one of a.
constexpr int kRows = kLanes == 16 ? 12 : 6;
constexpr int64_t kDepth = 256;     // of a panel: 16 KB in vectors of 8
constexpr int64_t kRowBlock = 120;  // of a: what all panels meet, 120 KB

// ---- Panels: (k, kWidth), one after the other, zeros beyond n ----

// From b (k, n).
void CopyColumns(const float* b, int64_t stride, int64_t depth, int64_t columns, float* panel) {
  const D d;
  if (columns == kWidth) {
    for (int64_t p = 0; p < depth; ++p, b += stride, panel += kWidth) {
      hn::Store(hn::LoadU(d, b), d, panel);
      hn::Store(hn::LoadU(d, b + kLanes), d, panel + kLanes);
    }
    return;
  }
  for (int64_t p = 0; p < depth; ++p, b += stride, panel += kWidth) {
    std::copy_n(b, columns, panel);
    std::fill_n(panel + columns, kWidth - columns, 0.0f);
  }
}

// From b (n, k), four columns by four rows at a time.
void TransposeColumns(const float* b, int64_t stride, int64_t depth, int64_t columns, float* panel) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d64;
  const int64_t whole_columns = columns / 4 * 4, whole_depth = depth / 4 * 4;
  for (int64_t column = 0; column < whole_columns; column += 4) {
    const float* from = b + column * stride;
    float* to = panel + column;
    for (int64_t p = 0; p < whole_depth; p += 4, from += 4, to += 4 * kWidth) {
      const auto v0 = hn::LoadU(d, from), v1 = hn::LoadU(d, from + stride);
      const auto v2 = hn::LoadU(d, from + 2 * stride), v3 = hn::LoadU(d, from + 3 * stride);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
      hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + kWidth);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 2 * kWidth);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 3 * kWidth);
    }
  }
  for (int64_t column = 0; column < kWidth; ++column) {
    const int64_t done = column < whole_columns ? whole_depth : 0;
    for (int64_t p = done; p < depth; ++p)
      panel[p * kWidth + column] = column < columns ? b[column * stride + p] : 0.0f;
  }
}

void PackBlock(const GemmF32& gemm, const float* b, int64_t first_k, int64_t depth, float* panels) {
  for (int64_t n = 0; n < gemm.n; n += kWidth, panels += depth * kWidth) {
    const int64_t columns = std::min(kWidth, gemm.n - n);
    if (gemm.b_transposed)
      TransposeColumns(b + n * gemm.k + first_k, gemm.k, depth, columns, panels);
    else
      CopyColumns(b + first_k * gemm.n + n, gemm.n, depth, columns, panels);
  }
}

// ---- Products ----

// c (R, kWidth), rows c_stride apart, = or += a (R, depth) · panel.
template <int R>
HWY_INLINE void MultiplyRows(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT panel,
                             int64_t depth, bool add, float* c, int64_t c_stride) {
  const D d;
  hn::Vec<D> sums[R][2];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) sums[r][v] = add ? hn::LoadU(d, c + r * c_stride + v * kLanes) : hn::Zero(d);
#pragma GCC unroll 4
  for (int64_t p = 0; p < depth; ++p) {
    const auto b0 = hn::Load(d, panel + p * kWidth), b1 = hn::Load(d, panel + p * kWidth + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const auto x = hn::Set(d, a[r * a_stride + p]);
      sums[r][0] = hn::MulAdd(x, b0, sums[r][0]);
      sums[r][1] = hn::MulAdd(x, b1, sums[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) hn::StoreU(sums[r][v], d, c + r * c_stride + v * kLanes);
}

// The same for fewer columns than a panel has.
template <int R>
void MultiplyRowsOfSome(const float* a, int64_t a_stride, const float* panel, int64_t depth, bool add,
                        float* c, int64_t c_stride, int64_t columns) {
  if (columns == kWidth) return MultiplyRows<R>(a, a_stride, panel, depth, add, c, c_stride);
  alignas(64) float tile[R * kWidth] = {};
  if (add)
    for (int r = 0; r < R; ++r) std::copy_n(c + r * c_stride, columns, tile + r * kWidth);
  MultiplyRows<R>(a, a_stride, panel, depth, add, tile, kWidth);
  for (int r = 0; r < R; ++r) std::copy_n(tile + r * kWidth, columns, c + r * c_stride);
}

// The rows that are left, R or fewer.
template <int R>
void MultiplyRest(int64_t rows, const float* a, int64_t a_stride, const float* panel, int64_t depth, bool add,
                  float* c, int64_t c_stride, int64_t columns) {
  if constexpr (R > 0) {
    if (rows == R) return MultiplyRowsOfSome<R>(a, a_stride, panel, depth, add, c, c_stride, columns);
    MultiplyRest<R - 1>(rows, a, a_stride, panel, depth, add, c, c_stride, columns);
  }
}

// A block of rows times all panels.
void MultiplyBlock(const GemmF32& gemm, int64_t rows, const float* a, const float* panel, int64_t depth,
                   bool add, float* c) {
  for (int64_t n = 0; n < gemm.n; n += kWidth, panel += depth * kWidth) {
    const int64_t columns = std::min(kWidth, gemm.n - n);
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows)
      MultiplyRowsOfSome<kRows>(a + row * gemm.k, gemm.k, panel, depth, add, c + row * gemm.n + n, gemm.n,
                                columns);
    MultiplyRest<kRows - 1>(rows - row, a + row * gemm.k, gemm.k, panel, depth, add, c + row * gemm.n + n,
                            gemm.n, columns);
  }
}

void Multiply(const GemmF32& gemm, const float* a, const float* b, float* c, float* panels) {
  for (int64_t k = 0; k < gemm.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, gemm.k - k);
    PackBlock(gemm, b, k, depth, panels);
    for (int64_t row = 0; row < gemm.m; row += kRowBlock)
      MultiplyBlock(gemm, std::min(kRowBlock, gemm.m - row), a + row * gemm.k + k, panels, depth,
                    gemm.accumulate || k > 0, c + row * gemm.n);
  }
}

size_t ScratchBytes(const GemmF32& gemm) {
  const int64_t padded = (gemm.n + kWidth - 1) / kWidth * kWidth;
  return static_cast<size_t>(padded * std::min(kDepth, gemm.k)) * sizeof(float);
}

}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wi::cpu {

HWY_EXPORT(Multiply);
HWY_EXPORT(ScratchBytes);

size_t GemmF32::scratch_bytes() const { return HWY_DYNAMIC_DISPATCH(ScratchBytes)(*this); }

void GemmF32::run(const float* a, const float* b, float* c, std::byte* scratch) const {
  const auto bytes = [](int64_t rows, int64_t columns) {
    return static_cast<size_t>(rows * columns) * sizeof(float);
  };
  reads(a, bytes(m, k)), reads(b, bytes(k, n)), writes(c, bytes(m, n));
  HWY_DYNAMIC_DISPATCH(Multiply)(*this, a, b, c, reinterpret_cast<float*>(scratch));
}

}  // namespace wi::cpu
#endif
