// Six rows times four vectors of columns at a time: 24 sums, four vectors of b and one of a are 29 of the 32
// registers. A step is a pair of inputs, which lie beside each other in a and in the packing of b, so nothing
// is moved about. Highway 1.0 knows no such instruction; these are the compiler's intrinsics.
#include "kernels/cpu/gemm_bf16.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
namespace wi::cpu {
namespace {

constexpr int64_t kRows = 6;

// A tile of rows of a, and where it goes.
struct RowTile {
  const uint16_t* a;
  float* c;
  int64_t k, n;     // strides of a and c
  int64_t columns;  // of this panel: 64, or what is left
  bool add;
};

#if defined(__x86_64__)
#define WI_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
constexpr int kVectors = GemmBf16::kWidth / 16;

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

bool are_slow() { return __builtin_cpu_is("intel"); }
bool has_instructions() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw");
}

#else
// +crypto: what other kernels are compiled with, else the compiler's intrinsics would not be inlined here.
#define WI_ARM_BF16 __attribute__((target("arch=armv8.2-a+bf16+crypto")))
constexpr int kVectors = 4;
constexpr int64_t kColumns = 4 * kVectors;  // of the panel's 64

// One row's columns that there are, from or to memory.
struct Columns {
  float of[kColumns] = {};
  void copy(float* to, const float* from, int64_t count) const {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  }
};

template <int R>
WI_ARM_BF16 void multiply_columns(const RowTile& tile, const uint16_t* panel, int64_t first) {
  const int64_t wanted = std::min(kColumns, tile.columns - first);
  float32x4_t sums[R][kVectors];
  for (int r = 0; r < R; ++r) {
    Columns before;
    if (tile.add) before.copy(before.of, tile.c + r * tile.n + first, wanted);
    for (int v = 0; v < kVectors; ++v) sums[r][v] = vld1q_f32(before.of + 4 * v);
  }

  const auto step = [&](int64_t k, int64_t count) WI_ARM_BF16 {
    const uint16_t* row = panel + k * GemmBf16::kWidth + 2 * first;
    bfloat16x8_t b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = vreinterpretq_bf16_u16(vld1q_u16(row + 8 * v));
    for (int r = 0; r < R; ++r) {
      uint32_t pair = 0;
      std::memcpy(&pair, tile.a + r * tile.k + k, static_cast<size_t>(count) * sizeof(uint16_t));
      const bfloat16x8_t a = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = vbfdotq_f32(sums[r][v], a, b[v]);
    }
  };
  const int64_t even = tile.k / 2 * 2;
  for (int64_t k = 0; k < even; k += 2) step(k, 2);
  if (even < tile.k) step(even, 1);

  for (int r = 0; r < R; ++r) {
    Columns after;
    for (int v = 0; v < kVectors; ++v) vst1q_f32(after.of + 4 * v, sums[r][v]);
    after.copy(tile.c + r * tile.n + first, after.of, wanted);
  }
}

template <int R>
void multiply_rows(const RowTile& tile, const uint16_t* panel) {
  for (int64_t first = 0; first < tile.columns; first += kColumns) multiply_columns<R>(tile, panel, first);
}

bool are_slow() { return false; }
bool has_instructions() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16, which old headers lack
  return getauxval(AT_HWCAP2) & kBf16;
}
#endif

// The rows that are left, R or fewer.
template <int R>
void multiply_rest(int64_t rows, const RowTile& tile, const uint16_t* panel) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_rows<R>(tile, panel);
    multiply_rest<R - 1>(rows, tile, panel);
  }
}

}  // namespace

bool GemmBf16::supported() { return has_instructions(); }
bool GemmBf16::fast() { return has_instructions() && !are_slow(); }

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
bool GemmBf16::fast() { return false; }
void GemmBf16::run(const uint16_t*, const uint16_t*, float*) const { assert(!"supported()"); }

}  // namespace wi::cpu
#endif
