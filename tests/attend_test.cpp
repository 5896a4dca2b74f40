// attend against softmax attention in f64: head dims, groups, runs, types, chunks, every instruction set.
#include "lookups.h"
#include "test.h"
#include "tests/support/counted_stream.h"
#include "tests/support/edged.h"
#include "tests/support/fewer.h"

namespace {

using namespace wi;
using namespace wi::test;

struct Problem {
  int32_t head_dim, group;
  DType kv;
  std::vector<int64_t> steady, runs;  // tokens of each
};

// Rounding of f32 sums of this length; the types' own rounding is in the reference too.
constexpr double kTolerance = 2e-5;

struct Built {
  explicit Built(const Problem& problem, uint64_t salt = 0, float key_scale = 1) {
    std::mt19937_64 random(seed() + salt);
    std::normal_distribution<float> normal;
    const auto fill = [&](int64_t tokens, std::vector<KvRun>& list) {
      std::vector<float> k(static_cast<size_t>(tokens * problem.head_dim)), v(k.size());
      for (float& x : k) x = key_scale * normal(random);
      for (float& x : v) x = normal(random);
      for (const std::vector<float>* of : {&k, &v}) {
        const AlignedBytes stored = to_kv(*of, problem.kv);
        bytes.emplace_back(stored.data(), stored.data() + stored.size());
      }
      list.push_back({bytes[bytes.size() - 2].data(), bytes.back().data(), tokens});
      k = rounded(k, problem.kv), v = rounded(v, problem.kv);
      keys.insert(keys.end(), k.begin(), k.end());
      values.insert(values.end(), v.begin(), v.end());
    };
    bytes.reserve(2 * (problem.steady.size() + problem.runs.size()));
    for (int64_t tokens : problem.steady) fill(tokens, steady);
    for (int64_t tokens : problem.runs) fill(tokens, runs);
    query.resize(static_cast<size_t>(problem.group * problem.head_dim));
    for (float& x : query) x = normal(random);
    out.assign(query.size(), NAN);
    lse.assign(static_cast<size_t>(problem.group), NAN);
    lookup.query = query.data();
    lookup.steady = steady.data();
    lookup.steady_count = static_cast<int32_t>(steady.size());
    lookup.runs = runs.data();
    lookup.run_count = static_cast<int32_t>(runs.size());
    lookup.out = out.data();
    lookup.lse = lse.data();
    lookup.counters = &counters;
    args = {.lookups = &lookup,
            .count = 1,
            .group = problem.group,
            .head_dim = problem.head_dim,
            .kv = problem.kv,
            .scale = 1 / std::sqrt(static_cast<float>(problem.head_dim))};
  }

  std::vector<Edged<std::byte>> bytes;
  std::vector<float> keys, values;
  Edged<float> query, out, lse;
  std::vector<KvRun> steady, runs;
  LookupCounters counters;
  Lookup lookup;
  LookupArgs args;
};

void check(const Problem& problem, const char* target, float key_scale = 1) {
  Built built(problem, 0, key_scale);
  ThreadStream stream(1);
  cpu::attend(*stream, built.args);
  for (int32_t h = 0; h < problem.group; h++) {
    const size_t at = static_cast<size_t>(h * problem.head_dim);
    const Reference expected =
        reference_attention(built.query.data() + at, built.keys, built.values, problem.head_dim);
    const double error = relative_error(built.out.data() + at, expected.out.data(), expected.out.size());
    const double lse_error = std::abs(double(built.lse[static_cast<size_t>(h)]) - expected.lse);
    if (!(error < kTolerance) || !(lse_error < kTolerance * std::max(1.0, std::abs(expected.lse)))) {
      std::printf("%s: head_dim %d group %d %s head %d: error %g, lse error %g\n", target, problem.head_dim,
                  problem.group, format_of(problem.kv).name, h, error, lse_error);
      assert_true(false);
    }
  }
}

void attend_equals_softmax_for_every_dim_group_and_type(void**) {
  test::for_each_simd([](const char* target) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (int32_t head_dim : test::some_of({8, 24, 32, 40, 64, 72, 80, 96, 112, 120, 128, 192, 256}))
        for (int32_t group : test::some_of({1, 2, 3, 4, 5, 6, 7, 8, 9}))
          check({head_dim, group, kv, {4, 67}, {16, 1, 33, 7, 64, 100}}, target);
  });
}

// More query heads to a KV head than the kernels take at once.
void attend_takes_large_groups(void**) {
  test::for_each_simd([](const char* target) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (int32_t group : test::some_of({10, 11, 12, 13, 14, 15, 16, 71, 600}))
        check({group > 16 ? 64 : 128, group, kv, {4, 67}, {16, 1, 33}}, target);
  });
}

void attend_spans_chunks_and_ragged_runs(void**) {
  test::for_each_simd([](const char* target) {
    check({64, 4, DType::f16, {4, 64}, {8192, 1024, 37}}, target);
    check({128, 2, DType::bf16, {1}, {4095}}, target);
    check({64, 1, DType::f32, {}, {4096, 1}}, target);
    std::vector<int64_t> clusters;
    for (int64_t i = 0; i < 700; i++) clusters.push_back(i * 7 % 31);  // some are empty
    check({64, 4, DType::f16, {4, 64}, clusters}, target);
  });
}

void attend_reads_nothing_before_its_operands(void**) {
  const EdgeBefore before;
  test::for_each_simd([](const char* target) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (int32_t head_dim : test::some_of({8, 24, 72, 80, 128, 256}))
        check({head_dim, 5, kv, {4, 67}, {16, 1, 33}}, target);
  });
}

void attend_keeps_large_scores_finite(void**) {
  test::for_each_simd([](const char* target) { check({64, 4, DType::f32, {4}, {300}}, target, 40); });
}

void attend_of_one_token_is_its_value(void**) {
  test::for_each_simd([](const char* target) { check({64, 4, DType::f32, {1}, {}}, target); });
}

void attend_of_nothing_is_zero_with_lse_minus_infinity(void**) {
  Built built({64, 3, DType::f16, {}, {}});
  ThreadStream stream(1);
  cpu::attend(*stream, built.args);
  for (float x : built.out) assert_true(x == 0);
  for (float x : built.lse) assert_true(x == -INFINITY);
}

void attend_gives_the_same_bits_for_any_workers_and_company(void**) {
  std::vector<std::unique_ptr<Built>> lookups;
  for (int i = 0; i < 5; i++) {
    lookups.push_back(std::make_unique<Built>(Problem{64, 4, DType::f16, {4, 64}, {5000 * i + 3, 17}},
                                              static_cast<uint64_t>(i)));
    ThreadStream stream(1);
    cpu::attend(*stream, lookups.back()->args);
  }
  for (int workers : {1, 2, 3, 7}) {
    std::vector<Lookup> together;
    std::vector<std::vector<float>> out(5, std::vector<float>(4 * 64)), lse(5, std::vector<float>(4));
    for (size_t i = 0; i < 5; i++) {
      together.push_back(lookups[i]->lookup);
      together[i].out = out[i].data();
      together[i].lse = lse[i].data();
    }
    LookupArgs args = lookups[0]->args;
    args.lookups = together.data();
    args.count = 5;
    ThreadStream stream(workers);
    cpu::attend(*stream, args);
    for (size_t i = 0; i < 5; i++) {
      assert_memory_equal(out[i].data(), lookups[i]->out.data(), out[i].size() * sizeof(float));
      assert_memory_equal(lse[i].data(), lookups[i]->lse.data(), lse[i].size() * sizeof(float));
    }
  }
}

void a_lookup_of_some_thousand_tokens_makes_tasks_for_many_workers(void**) {
  Built built({64, 7, DType::f16, {4, 8000}, {}});
  CountedStream counted(16);
  cpu::attend(counted.stream(), built.args);
  assert_int_equal(counted.tasks().size(), 1);
  assert_int_equal(counted.tasks()[0], 8);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(attend_equals_softmax_for_every_dim_group_and_type),
      cmocka_unit_test(attend_takes_large_groups),
      cmocka_unit_test(attend_spans_chunks_and_ragged_runs),
      cmocka_unit_test(attend_reads_nothing_before_its_operands),
      cmocka_unit_test(attend_keeps_large_scores_finite),
      cmocka_unit_test(attend_of_one_token_is_its_value),
      cmocka_unit_test(attend_of_nothing_is_zero_with_lse_minus_infinity),
      cmocka_unit_test(attend_gives_the_same_bits_for_any_workers_and_company),
      cmocka_unit_test(a_lookup_of_some_thousand_tokens_makes_tasks_for_many_workers),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
