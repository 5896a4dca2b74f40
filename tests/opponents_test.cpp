// The policies that the others are measured against, streaming and blocks: what they retrieve, that they keep
// to the budget, that everything retrieved is dense attention, and which index bytes they let in.
#include <algorithm>
#include <set>

#include "lookups.h"
#include "test.h"

namespace {

using namespace wi;
using namespace wi::test;

constexpr int32_t kPage = 16;

struct Scene {
  Scene(const Policy& policy, int32_t group, DType kv, float budget, int32_t dim = 64,
        std::vector<int32_t> segments = {2048, 700, 33}, Keys kind = Keys::clustered)
      : cache(policy, params_with(budget), kv, dim) {
    std::mt19937_64 random(seed() + static_cast<uint64_t>(group * dim));
    for (int32_t tokens : segments)
      cache.seal(draw(kind, tokens, dim, random), draw(Keys::uniform, tokens, dim, random), 64);
    std::normal_distribution<float> normal;
    std::vector<float> query(static_cast<size_t>(group * dim));
    for (float& x : query) x = normal(random);
    lookup = std::make_unique<TestLookup>(cache, query);
    const std::vector<float> one(static_cast<size_t>(dim), 0.0f);
    steady_bytes = to_kv(one, kv);
    steady = {steady_bytes.data(), steady_bytes.data(), 1};
    lookup->lookup.steady = &steady;
    lookup->lookup.steady_count = 1;
  }
  static PolicyParams params_with(float budget) {
    PolicyParams params;
    params.budget = budget;
    return params;
  }
  LookupArgs args() {
    return lookup_args(cache, &lookup->lookup, 1, static_cast<int32_t>(lookup->lse.size()));
  }
  const Lookup& run() {
    ThreadStream stream(1);
    decode_lookups(*stream, cache.policy, args());
    return lookup->lookup;
  }
  std::set<int32_t> positions() const { return retrieved_positions(lookup->lookup); }

  Cache cache;
  std::unique_ptr<TestLookup> lookup;
  AlignedBytes steady_bytes;
  KvRun steady;
};

const Policy* const kOpponents[] = {&cpu::streaming_policy, &cpu::blocks_policy};

void budget_is_held_to_within_a_page(void**) {
  for (const Policy* policy : kOpponents)
    for (float budget : {0.0f, 1e-6f, 0.009f, 0.018f, 0.3f, 0.999f, 1.0f}) {
      Scene scene(*policy, 4, DType::f16, budget);
      const Lookup& lookup = scene.run();
      const int64_t wanted =
          budget >= 1 ? lookup.indexed_tokens
                      : static_cast<int64_t>(std::ceil(budget * static_cast<float>(lookup.indexed_tokens)));
      assert_true(lookup.counters->retrieved_tokens >= wanted &&
                  lookup.counters->retrieved_tokens < wanted + kPage);
      assert_int_equal(scene.positions().size(), lookup.counters->retrieved_tokens);
      assert_int_equal(lookup.estimated_count, 0);
      assert_int_equal(lookup.retrieved_count + lookup.counters->dropped, lookup.partition_count);
    }
}

void everything_retrieved_equals_dense_attention(void**) {
  test::for_each_simd([](const char*) {
    for (const Policy* policy : kOpponents)
      for (DType kv : {DType::f32, DType::f16, DType::bf16})
        for (int32_t group : {1, 3, 4, 8}) {
          Scene scene(*policy, group, kv, 1);
          scene.run();
          std::vector<float> keys = rounded(scene.cache.keys, kv), values = rounded(scene.cache.values, kv);
          keys.resize(keys.size() + 64), values.resize(values.size() + 64);  // the steady token
          for (size_t h = 0; h < static_cast<size_t>(group); h++) {
            const Reference dense = reference_attention(&scene.lookup->query[h * 64], keys, values, 64);
            // f32 sums of some thousand terms.
            assert_true(relative_error(&scene.lookup->out[h * 64], dense.out.data(), 64) < 1e-5);
            assert_true(std::abs(double(scene.lookup->lse[h]) - dense.lse) <
                        1e-5 * std::max(1.0, std::abs(dense.lse)));
          }
        }
  });
}

void streaming_retrieves_the_newest_tokens(void**) {
  Scene scene(cpu::streaming_policy, 4, DType::f16, 0.1f);
  const Lookup& lookup = scene.run();
  const std::set<int32_t> positions = scene.positions();
  assert_int_equal(*positions.rbegin(), lookup.indexed_tokens - 1);
  assert_int_equal(*positions.begin(), lookup.indexed_tokens - lookup.counters->retrieved_tokens);
}

void bound_of_a_page_is_never_under_a_score_in_it(void**) {
  test::for_each_simd([](const char*) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
        for (int32_t dim : {8, 64, 72, 128})
          for (int32_t group : {1, 3, 5}) {
            Scene scene(cpu::blocks_policy, group, kv, 0.1f, dim, {160, 33}, kind);
            const Lookup& lookup = scene.run();
            const std::vector<float> keys = rounded(scene.cache.keys, kv);
            int32_t page = 0;
            int64_t token = 0;
            for (const SegmentView& segment : scene.cache.views)
              for (int32_t p = 0; p < segment.partitions; p++, page++) {
                for (int32_t t = segment.offsets[p]; t < segment.offsets[p + 1]; t++, token++)
                  for (int32_t h = 0; h < group; h++) {
                    double score = 0, size = 0;
                    for (int32_t i = 0; i < dim; i++) {
                      const double term = double(scene.lookup->query[static_cast<size_t>(h * dim + i)]) *
                                          double(keys[static_cast<size_t>(token * dim + i)]);
                      score += term, size += std::abs(term);
                    }
                    const double bound = double(lookup.scores[h * lookup.partition_count + page]);
                    // The bound is an f32 sum; its rounding goes with the size of the terms.
                    assert_true(bound * std::sqrt(double(dim)) >= score - 1e-5 * size);
                  }
              }
          }
  });
}

// Rank by definition, in f64: the softmax of the bounds summed over the group.
void blocks_retrieves_the_pages_with_the_highest_bounds(void**) {
  test::for_each_simd([](const char*) {
    for (int32_t group : {1, 2, 3, 4, 7}) {
      Scene scene(cpu::blocks_policy, group, DType::f16, 0.1f);
      const Lookup& lookup = scene.run();
      std::vector<double> ranks(static_cast<size_t>(lookup.partition_count));
      for (int32_t h = 0; h < group; h++) {
        const float* bounds = lookup.scores + h * lookup.partition_count;
        const double highest = double(*std::max_element(bounds, bounds + lookup.partition_count));
        double sum = 0;
        for (size_t i = 0; i < ranks.size(); i++) sum += std::exp(double(bounds[i]) - highest);
        for (size_t i = 0; i < ranks.size(); i++) ranks[i] += std::exp(double(bounds[i]) - highest) / sum;
      }
      double lowest = INFINITY;
      std::set<size_t> taken;
      for (int32_t i = 0; i < lookup.retrieved_count; i++) {
        const int32_t before[] = {0, 128, 128 + 44};  // pages of the segments before
        const size_t at =
            static_cast<size_t>(before[lookup.retrieved[i].segment] + lookup.retrieved[i].partition);
        assert_true(ranks[at] <= lowest * (1 + 1e-4));  // f32 ranks differ by rounding
        lowest = std::min(lowest, ranks[at]);
        taken.insert(at);
      }
      for (size_t i = 0; i < ranks.size(); i++)
        if (!taken.count(i)) assert_true(ranks[i] <= lowest * (1 + 1e-4));
    }
  });
}

void not_a_number_selects_within_bounds(void**) {
  for (float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
    Scene scene(cpu::blocks_policy, 4, DType::f16, 0.018f);
    scene.lookup->query[70] = bad;
    const Lookup& lookup = scene.run();
    assert_int_equal(scene.positions().size(), lookup.counters->retrieved_tokens);
  }
}

void index_valid_knows_its_own_and_refuses_the_rest(void**) {
  assert_true(cpu::streaming_policy.index_valid(nullptr, 0, 44, 700, 64, DType::f16));
  assert_false(cpu::streaming_policy.index_valid(nullptr, 0, 43, 700, 64, DType::f16));
  assert_false(cpu::streaming_policy.index_valid(nullptr, 64, 44, 700, 64, DType::f16));

  Scene scene(cpu::blocks_policy, 1, DType::f16, 0.1f, 64, {700});
  const Cache::Segment& segment = *scene.cache.segments[0];
  const auto valid = cpu::blocks_policy.index_valid;
  const std::byte* bytes = segment.index.data();
  const size_t size = segment.index_bytes;
  assert_true(valid(bytes, size, 44, 700, 64, DType::f16));
  assert_false(valid(nullptr, 0, 44, 700, 64, DType::f16));
  assert_false(valid(bytes, size - 1, 44, 700, 64, DType::f16));
  assert_false(valid(bytes, size, 43, 700, 64, DType::f16));
  assert_false(valid(bytes, size, 44, 699, 64, DType::f16));
  assert_false(valid(bytes, size, 44, 700, 128, DType::f16));
  assert_false(valid(bytes, size, 44, 700, 64, DType::bf16));
  AlignedBytes damaged(size);
  for (size_t at = 0; at < 64; at++) {
    std::copy_n(bytes, size, damaged.data());
    damaged.data()[at] ^= std::byte{1};
    assert_false(valid(damaged.data(), size, 44, 700, 64, DType::f16));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(budget_is_held_to_within_a_page),
      cmocka_unit_test(everything_retrieved_equals_dense_attention),
      cmocka_unit_test(streaming_retrieves_the_newest_tokens),
      cmocka_unit_test(bound_of_a_page_is_never_under_a_score_in_it),
      cmocka_unit_test(blocks_retrieves_the_pages_with_the_highest_bounds),
      cmocka_unit_test(not_a_number_selects_within_bounds),
      cmocka_unit_test(index_valid_knows_its_own_and_refuses_the_rest),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
