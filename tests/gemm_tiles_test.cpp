// What gemm_tiles.cpp does with a processor's tiles, done with plain ones on every processor; and where there are such
// tiles, that they give the same bits.
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/gemm_tiles-inl.h"
#include "tests/test.h"

using namespace wi;
using cpu::GemmTiles;
using cpu::Packing;
using cpu::TileShapes;

namespace {

float wide(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// As Intel's manual has them, but for numbers too small to be normal, which nobody makes here.
struct Plain {
  struct Tile {
    std::array<std::array<std::byte, 64>, 16> rows;
  };
  static inline std::array<Tile, 8> tiles;
  static inline TileShapes shapes;
  static inline bool shaped = false;

  static void shape(const TileShapes& wanted) {
    assert_true(wanted.palette == 1 && wanted.start_row == 0);
    shapes = wanted;
    tiles = {};
    shaped = true;
  }
  static void release() {
    assert_true(shaped);
    shaped = false;
  }
  template <int kTile>
  static void clear() {
    assert_true(shaped && shapes.rows[kTile] > 0);
    tiles[kTile] = {};
  }
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    clear<kTile>();
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(tiles[kTile].rows[r].data(), static_cast<const std::byte*>(from) + r * stride, 64);
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    for (int r = 0; r < shapes.rows[kTile]; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles[kTile].rows[r].data(), 64);
  }
  template <int kSum, int kLeft, int kRight>
  static void multiply() {
    assert_int_equal(shapes.rows[kSum], shapes.rows[kLeft]);
    assert_int_equal(shapes.rows[kRight], 16);
    for (int r = 0; r < shapes.rows[kSum]; ++r) {
      const auto a = numbers<uint16_t, 32>(kLeft, r);
      auto sums = numbers<float, 16>(kSum, r);
      for (size_t c = 0; c < 16; ++c) {
        float even = 0, odd = 0;
        for (int pair = 0; pair < 16; ++pair) {
          const auto b = numbers<uint16_t, 32>(kRight, pair);
          even = std::fma(wide(a[2 * static_cast<size_t>(pair)]), wide(b[2 * c]), even);
          odd = std::fma(wide(a[2 * static_cast<size_t>(pair) + 1]), wide(b[2 * c + 1]), odd);
        }
        sums[c] += even + odd;
      }
      std::memcpy(tiles[kSum].rows[r].data(), sums.data(), 64);
    }
  }
  template <class T, size_t kCount>
  static std::array<T, kCount> numbers(int tile, int row) {
    std::array<T, kCount> out;
    std::memcpy(out.data(), tiles[tile].rows[row].data(), sizeof out);
    return out;
  }
};

struct Shape {
  int64_t m, n, k;
};

std::vector<uint16_t> random_bf16(std::mt19937_64& random, int64_t count) {
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (auto& number : out)  // ±[2⁻⁴, 4)
    number = static_cast<uint16_t>((random() & 1) << 15 | (123 + random() % 6) << 7 | (random() & 127));
  return out;
}

// b (k, n) in the packing, by its own words.
std::vector<uint16_t> packed(const Packing& packing, const std::vector<uint16_t>& b) {
  std::vector<uint16_t> out(packing.elements());
  for (int64_t k = 0; k < packing.k; ++k)
    for (int64_t n = 0; n < packing.n; ++n) {
      const int64_t panel = n / packing.width * packing.width * packing.padded_k();
      const int64_t at = panel + k / 2 * 2 * packing.width + n % packing.width * 2 + k % 2;
      out[static_cast<size_t>(at)] = b[static_cast<size_t>(k * packing.n + n)];
    }
  return out;
}

void check_shape(std::mt19937_64& random, const Shape& shape, bool accumulate) {
  const auto [m, n, k] = shape;
  const Packing packing{k, n, GemmTiles::kWidth};
  const std::vector<uint16_t> a = random_bf16(random, m * k), b = random_bf16(random, k * n);
  const std::vector<uint16_t> panels = packed(packing, b);
  std::vector<float> before(static_cast<size_t>(m * n), 77);
  if (accumulate)
    for (float& number : before) number = static_cast<float>(random() % 64) - 32;

  const GemmTiles product{packing, m, accumulate};
  std::vector<float> plain = before;
  cpu::multiply_tiles<Plain>(product, a.data(), panels.data(), plain.data());
  assert_false(Plain::shaped);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = static_cast<size_t>(i * n + j);
      double want = accumulate ? double{before[at]} : 0, magnitude = std::abs(want);
      for (int64_t l = 0; l < k; ++l) {
        const double term =
            double{wide(a[static_cast<size_t>(i * k + l)])} * wide(b[static_cast<size_t>(l * n + j)]);
        want += term;
        magnitude += std::abs(term);
      }
      // Each of up to k / 2 + 2 sums rounds by 2⁻²⁴ of what it has come to.
      const double bound = (static_cast<double>(k) / 2 + 2) * 0x1p-24 * magnitude;
      if (std::abs(plain[at] - want) <= bound) continue;
      std::printf("(%lld, %lld, %lld)%s, row %lld, column %lld: %g, want %g\n", (long long)m, (long long)n,
                  (long long)k, accumulate ? " added" : "", (long long)i, (long long)j, plain[at], want);
      assert_true(false);
    }
  if (!GemmTiles::supported()) return;
  std::vector<float> real = before;
  product.run(a.data(), panels.data(), real.data());
  assert_memory_equal(real.data(), plain.data(), plain.size() * sizeof(float));
}

void every_shape_is_the_sum_of_its_products(void**) {
  std::mt19937_64 random(test::seed());
  if (!GemmTiles::supported()) std::printf("no tiles here: plain ones only\n");
  for (const bool accumulate : {false, true}) {
    for (const Shape shape : {Shape{1, 1, 1}, Shape{32, 32, 32}, Shape{16, 16, 31}, Shape{17, 33, 33},
                              Shape{64, 64, 64}, Shape{31, 48, 96}, Shape{33, 15, 2}, Shape{5, 80, 80}})
      check_shape(random, shape, accumulate);
    for (int i = 0; i < 60; ++i)
      check_shape(random,
                  {1 + static_cast<int64_t>(random() % 70), 1 + static_cast<int64_t>(random() % 100),
                   1 + static_cast<int64_t>(random() % 150)},
                  accumulate);
  }
}

// A row's sums do not depend on how many rows there are.
void a_rows_sums_are_its_own(void**) {
  if (!GemmTiles::supported()) skip();
  std::mt19937_64 random(test::seed() + 1);
  constexpr int64_t kM = 70, kN = 90, kK = 200;
  const Packing packing{kK, kN, GemmTiles::kWidth};
  const std::vector<uint16_t> a = random_bf16(random, kM * kK);
  const std::vector<uint16_t> panels = packed(packing, random_bf16(random, kK * kN));
  std::vector<float> all(kM * kN), one(kN);
  GemmTiles{packing, kM, false}.run(a.data(), panels.data(), all.data());
  for (int64_t row = 0; row < kM; ++row) {
    GemmTiles{packing, 1, false}.run(a.data() + row * kK, panels.data(), one.data());
    assert_memory_equal(one.data(), all.data() + row * kN, kN * sizeof(float));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_shape_is_the_sum_of_its_products),
      cmocka_unit_test(a_rows_sums_are_its_own),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
