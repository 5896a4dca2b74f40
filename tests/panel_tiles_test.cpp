// Panels of quantised weights by products of tiles against the same by vectors, bit for bit: with plain tiles, on every
// processor. (matmul_test does so with the processor's own, where there are such.)
#include <memory>
#include <random>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/panel_tiles-inl.h"
#include "tests/support/plain_tiles.h"
#include "tests/support/weights.h"
#include "tests/test.h"

HWY_BEFORE_NAMESPACE();
namespace wi::cpu::HWY_NAMESPACE {
namespace {

using test::PlainTiles;

// A chunk's activations of some rows, as matmul_decode makes them.
struct Rows {
  Rows(std::mt19937_64& random, int count, int groups, bool largest) {
    const auto all = static_cast<size_t>(count);
    quants.resize(all * kChunk);
    split.resize(all * kSplitRow + kSplitRoom);
    sums.resize(all * kChunkSums);
    sum_pairs.resize(all * kChunkSums);
    group_sums.resize(all * kChunkGroups);
    offsets.resize(all * kChunkGroups);
    scales.resize(all);
    for (size_t r = 0; r < all; ++r) {
      scales[r] = 1e-4f + 1e-6f * static_cast<float>(random() % 1000);
      for (int i = 0; i < groups * 32; ++i) {
        int32_t q = static_cast<int32_t>(random() % (2 * kLargestQuant + 1)) - kLargestQuant;
        if (largest) q = q < 0 ? -kLargestQuant : kLargestQuant;
        const auto group = static_cast<size_t>(i / 32);
        const size_t in_order = group * 32 + static_cast<size_t>(i % 32 / 2 + i % 2 * 16);
        quants[r * kChunk + in_order] = static_cast<int16_t>(q);
        const int32_t high = (q + 128) >> 8;
        split[r * kSplitRow + static_cast<size_t>(i)] = static_cast<int8_t>(high);
        split[r * kSplitRow + kChunk + static_cast<size_t>(i)] = static_cast<int8_t>(q - 256 * high);
        sums[r * kChunkSums + static_cast<size_t>(i / 16)] += q;
        sums[r * kChunkSums + 16 + group] += q;
      }
      split_sums(sums.data() + r * kChunkSums, 16, sum_pairs.data() + r * kChunkSums);
      split_sums(sums.data() + r * kChunkSums + 16, 8, sum_pairs.data() + r * kChunkSums + 16);
      for (size_t group = 0; group < kChunkGroups; ++group) {
        const int32_t sum = sums[r * kChunkSums + 16 + group];
        group_sums[r * kChunkGroups + group] = static_cast<float>(sum);
        offsets[r * kChunkGroups + group] = -kTurnedBias * sum;
      }
    }
  }
  static void split_sums(const int32_t* sums, int count, int32_t* pairs) {
    for (int i = 0; i < count; ++i) {
      const auto high = static_cast<int16_t>(sums[i] >> kSumShift);
      const auto low = static_cast<int16_t>(sums[i] - high * (1 << kSumShift));
      auto* const to = reinterpret_cast<char*>(pairs) + 2 * i;
      std::memcpy(to, &high, sizeof high);
      std::memcpy(to + 2 * count, &low, sizeof low);
    }
  }
  PanelRows all() const {
    return {quants.data(), sums.data(),  group_sums.data(), offsets.data(),
            scales.data(), split.data(), sum_pairs.data()};
  }
  std::vector<int16_t> quants;
  std::vector<int32_t> sums, sum_pairs, offsets;
  std::vector<float> group_sums, scales;
  std::vector<int8_t> split;
};

template <class Q>
void check_format(std::mt19937_64& random, DType type) {
  const auto panel = std::make_unique<Panel>();
  for (int count = 1; count <= kMostTileRows; ++count)
    for (const bool largest : {false, true}) {
      const int groups = kHasBlocks256<Q> ? 8 : 1 + static_cast<int>(random() % 8);
      const std::vector<std::byte> weights = test::random_weights(type, kPanel * groups * 32, random);
      const Rows rows(random, count, groups, largest);
      const PanelOutputs outputs{reinterpret_cast<const uint8_t*>(weights.data()),
                                 static_cast<int64_t>(row_bytes(type, groups * 32))};
      std::vector<float> wanted(static_cast<size_t>(count * kPanel));
      for (float& sum : wanted) sum = static_cast<float>(random() % 1000) / 100;
      std::vector<float> got = wanted;
      NextPanel none{};

      FillPanel<Q>(outputs, groups, count, *panel);
      int64_t row = 0;
      MultiplyRowsOfPanel<Q, 1>(*panel, groups, count, row, rows.all(), wanted.data(), none);

      FillTilePanel<Q>(outputs, groups, *panel);
      PlainTiles::shape(PanelTileShapes<Q>(count));
      MultiplyTilePanel<Q, PlainTiles>(*panel, groups, rows.all(), count, got.data(), none);
      PlainTiles::release();
      assert_memory_equal(got.data(), wanted.data(), wanted.size() * sizeof(float));
    }
}

void tiles_give_every_formats_sums_bit_for_bit(void**) {
  std::mt19937_64 random(test::seed());
  check_format<Q8_0>(random, DType::q8_0);
  check_format<Q4_0>(random, DType::q4_0);
  check_format<Q4_1>(random, DType::q4_1);
  check_format<Q5_0>(random, DType::q5_0);
  check_format<Q5_1>(random, DType::q5_1);
  check_format<Q2K>(random, DType::q2_k);
  check_format<Q3K>(random, DType::q3_k);
  check_format<Q4K>(random, DType::q4_k);
  check_format<Q5K>(random, DType::q5_k);
  check_format<Q6K>(random, DType::q6_k);
}

}  // namespace
}  // namespace wi::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(wi::cpu::HWY_NAMESPACE::tiles_give_every_formats_sums_bit_for_bit),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
