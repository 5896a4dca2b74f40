// Six rows times a panel of 64 columns at a time: 24 sums, four vectors of b and one of a are 29 of the 32
// registers. A step is a pair of inputs, which lie beside each other in a and in the packing of b, so nothing
// is moved about. Highway 1.0 knows no such instruction; these are the compiler's intrinsics.
#include "kernels/cpu/bundled/gemm_bf16.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>

namespace wi::cpu {
namespace {

#define WI_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int64_t kRows = 6;
constexpr int kVectors = GemmBf16::kWidth / 16;

// A tile of rows of a, and where it goes.
struct RowTile {
  const uint16_t* a;
  float* c;
  int64_t k, n;     // strides of a and c
  int64_t columns;  // of this panel: 64, or what is left
  bool add;
};

WI_AVX512_BF16 inline __m512bh pair_of(const uint16_t* a, int64_t count) {
  uint32_t pair = 0;
  std::memcpy(&pair, a, static_cast<size_t>(count) * sizeof(uint16_t));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
}

template <int R>
WI_AVX512_BF16 void multiply_rows(const RowTile& tile, const uint16_t* panel) {
  __mmask16 wanted[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t columns = std::clamp<int64_t>(tile.columns - 16 * v, 0, 16);
    wanted[v] = static_cast<__mmask16>((1u << columns) - 1);
  }
  __m512 sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] =
          tile.add ? _mm512_maskz_loadu_ps(wanted[v], tile.c + r * tile.n + 16 * v) : _mm512_setzero_ps();

  const auto step = [&](int64_t k, int64_t count) WI_AVX512_BF16 {
    const uint16_t* row = panel + k * GemmBf16::kWidth;
    __m512bh b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(row + 32 * v));
    for (int r = 0; r < R; ++r) {
      const __m512bh a = pair_of(tile.a + r * tile.k + k, count);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], a, b[v]);
    }
  };
  const int64_t even = tile.k / 2 * 2;
  for (int64_t k = 0; k < even; k += 2) step(k, 2);
  if (even < tile.k) step(even, 1);

  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      _mm512_mask_storeu_ps(tile.c + r * tile.n + 16 * v, wanted[v], sums[r][v]);
}

// The rows that are left, R or fewer.
template <int R>
void multiply_rest(int64_t rows, const RowTile& tile, const uint16_t* panel) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_rows<R>(tile, panel);
    multiply_rest<R - 1>(rows, tile, panel);
  }
}

}  // namespace

bool GemmBf16::supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw");
}

void GemmBf16::run(const uint16_t* a, const uint16_t* b, float* c) const {
  assert(packing.width == kWidth);
  const int64_t k = packing.k, n = packing.n;
  for (int64_t column = 0; column < n; column += kWidth, b += packing.padded_k() * kWidth) {
    const int64_t columns = std::min(kWidth, n - column);
    int64_t row = 0;
    for (; row + kRows <= m; row += kRows)
      multiply_rows<kRows>({a + row * k, c + row * n + column, k, n, columns, accumulate}, b);
    multiply_rest<kRows - 1>(m - row, {a + row * k, c + row * n + column, k, n, columns, accumulate}, b);
  }
}

}  // namespace wi::cpu

#else

namespace wi::cpu {

bool GemmBf16::supported() { return false; }
void GemmBf16::run(const uint16_t*, const uint16_t*, float*) const { assert(!"supported()"); }

}  // namespace wi::cpu
#endif
