// What gemm_tiles.cpp does with a processor's tiles, done with plain ones on every processor; and where there are such
// tiles, that they give the same bits.
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/gemm_tiles-inl.h"
#include "tests/support/plain_tiles.h"
#include "tests/test.h"

using namespace wi;
using cpu::GemmTiles;
using cpu::Packing;
using test::PlainTiles;
using test::wide_bf16;

namespace {

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
  cpu::multiply_tiles<PlainTiles>(product, a.data(), panels.data(), plain.data());
  assert_false(PlainTiles::shaped);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = static_cast<size_t>(i * n + j);
      double want = accumulate ? double{before[at]} : 0, magnitude = std::abs(want);
      for (int64_t l = 0; l < k; ++l) {
        const double term = double{wide_bf16(a[static_cast<size_t>(i * k + l)])} *
                            wide_bf16(b[static_cast<size_t>(l * n + j)]);
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
  if (!cpu::has_amx_bf16()) return;
  std::vector<float> real = before;
  product.run(a.data(), panels.data(), real.data());
  assert_memory_equal(real.data(), plain.data(), plain.size() * sizeof(float));
}

void every_shape_is_the_sum_of_its_products(void**) {
  std::mt19937_64 random(test::seed());
  if (!cpu::has_amx_bf16()) std::printf("no tiles here: plain ones only\n");
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
  if (!cpu::has_amx_bf16()) skip();
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
