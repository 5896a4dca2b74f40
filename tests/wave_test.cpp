// The wave policy from end to end on one KV head: equality with dense attention where it must be equal, the
// estimate against its definition, coverage, and recall and output error on three kinds of keys.
#include "kernels/cpu/policy/wave.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "lookups.h"
#include "test.h"
#include "tests/support/counted_stream.h"
#include "tests/support/fewer.h"

namespace {

using namespace wi;
using namespace wi::test;

struct Scene {
  Scene(Keys kind, int32_t group, DType kv, PolicyParams params, std::vector<int32_t> segments,
        uint64_t salt = 0, int32_t head_dim = 64)
      : cache(cpu::wave_policy, params, kv, head_dim), dim(static_cast<size_t>(head_dim)) {
    std::mt19937_64 random(seed() + salt);
    for (int32_t tokens : segments) {
      // Tokens with like keys tend to have like values; half of each is its own.
      std::vector<float> keys = draw(kind, tokens, head_dim, random),
                         values = draw(Keys::uniform, tokens, head_dim, random);
      for (size_t i = 0; i < keys.size(); i++) values[i] = 0.5f * values[i] + 0.5f * keys[i];
      cache.seal(keys, values);
    }
    steady_keys = rounded(draw(kind, 68, head_dim, random), kv);
    steady_values = rounded(draw(Keys::uniform, 68, head_dim, random), kv);
    steady_key_bytes = to_kv(steady_keys, kv);
    steady_value_bytes = to_kv(steady_values, kv);
    steady = {steady_key_bytes.data(), steady_value_bytes.data(), 68};
    all_keys = rounded(cache.keys, kv), all_values = rounded(cache.values, kv);
    all_keys.insert(all_keys.end(), steady_keys.begin(), steady_keys.end());
    all_values.insert(all_values.end(), steady_values.begin(), steady_values.end());
    std::normal_distribution<float> normal;
    std::vector<float> query(static_cast<size_t>(group) * dim);
    const size_t near = random() % (cache.keys.size() / dim) * dim;
    for (size_t i = 0; i < query.size(); i++) query[i] = 0.7f * cache.keys[near + i % dim] + normal(random);
    lookup = std::make_unique<TestLookup>(cache, query);
    lookup->lookup.steady = &steady;
    lookup->lookup.steady_count = 1;
  }
  LookupArgs args() {
    return lookup_args(cache, &lookup->lookup, 1, static_cast<int32_t>(lookup->lse.size()));
  }
  Reference dense(size_t head) const {
    return reference_attention(lookup->query.data() + head * dim, all_keys, all_values, cache.head_dim);
  }

  Cache cache;
  size_t dim;
  std::vector<float> steady_keys, steady_values, all_keys, all_values;
  AlignedBytes steady_key_bytes, steady_value_bytes;
  KvRun steady;
  std::unique_ptr<TestLookup> lookup;
};

// f32 sums of some thousand terms.
constexpr double kRounding = 1e-5;

PolicyParams all_retrieved() {
  PolicyParams params;
  params.budget = 1;
  params.estimation = -1;
  return params;
}

void check_all_retrieved(Scene& scene) {
  ThreadStream stream(2);
  decode_lookups(*stream, cpu::wave_policy, scene.args());
  for (size_t h = 0; h < scene.lookup->lse.size(); h++) {
    const Reference dense = scene.dense(h);
    assert_true(relative_error(scene.lookup->out.data() + h * scene.dim, dense.out.data(), scene.dim) <
                kRounding);
    assert_true(std::abs(double(scene.lookup->lse[h]) - dense.lse) <
                kRounding * std::max(1.0, std::abs(dense.lse)));
  }
  assert_true(scene.lookup->lookup.counters->estimated_coverage_sum == 1 &&
              scene.lookup->lookup.counters->certified_coverage_sum == 1);
}

void all_retrieved_equals_dense_attention(void**) {
  test::for_each_simd([](const char*) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
        for (int32_t group : test::some_of({1, 3, 4, 8})) {
          Scene scene(kind, group, kv, all_retrieved(), {2048, 700, 33});
          check_all_retrieved(scene);
        }
  });
}

struct Coverage {
  double truth, estimated, by_centroids;  // the last: of one from the centroids alone
};

// Estimates by definition, in f64, from the zones that select made.
Coverage check_estimate(Scene& scene) {
  const int32_t head_dim = scene.cache.head_dim;
  const size_t dim = scene.dim;
  const DType kv = scene.cache.kv;
  const double scale = 1 / std::sqrt(double(head_dim));
  scene.lookup->lookup.coverage_head = static_cast<int32_t>(scene.lookup->lse.size() / 2);
  ThreadStream stream(1);
  decode_lookups(*stream, cpu::wave_policy, scene.args());
  const Lookup& lookup = scene.lookup->lookup;
  double coverage = 0, jensen = 0, certified = 0, least_certified = 0, truth = 0;
  for (size_t h = 0; h < scene.lookup->lse.size(); h++) {
    const float* query = scene.lookup->query.data() + h * dim;
    const Reference dense = scene.dense(h);
    std::vector<float> keys = scene.steady_keys, values = scene.steady_values;
    std::set<std::pair<int32_t, int32_t>> retrieved, estimated;
    for (int32_t i = 0; i < lookup.retrieved_count; i++) {
      const PartitionRef ref = lookup.retrieved[i];
      retrieved.insert({ref.segment, ref.partition});
      std::vector<float> rows(static_cast<size_t>(lookup.runs[i].tokens) * dim);
      cpu::from_kv(lookup.runs[i].keys, kv, rows.data(), static_cast<int64_t>(rows.size()));
      keys.insert(keys.end(), rows.begin(), rows.end());
      cpu::from_kv(lookup.runs[i].values, kv, rows.data(), static_cast<int64_t>(rows.size()));
      values.insert(values.end(), rows.begin(), rows.end());
    }
    for (int32_t i = 0; i < lookup.estimated_count; i++) {
      estimated.insert({lookup.estimated[i].segment, lookup.estimated[i].partition});
    }
    const Reference exact = reference_attention(query, keys, values, head_dim);
    double norm = 0;
    for (size_t i = 0; i < dim; i++) norm += double(query[i]) * double(query[i]);
    norm = std::sqrt(norm);
    double missing = 0, at_centroids = 0, most = 0, mass = 1;  // in units of exp(exact.lse)
    std::vector<double> out = exact.out;
    std::vector<float> centroid(dim), mean(dim);
    for (int32_t s = 0; s < lookup.segment_count; s++) {
      const cpu::WaveIndex index = cpu::wave_view(lookup.segments[s].index);
      for (int32_t c = 0; c < index.clusters; c++) {
        if (retrieved.count({s, c})) continue;
        const size_t at = static_cast<size_t>(c) * row_bytes(kv, head_dim);
        cpu::wave_centroid(index, c, head_dim, centroid.data());
        cpu::from_kv(index.value_means + at, kv, mean.data(), head_dim);
        double score = 0;
        for (size_t i = 0; i < dim; i++) score += double(query[i]) * double(centroid[i]);
        const double above = mass_above_centroid(norm, double(cpu::wave_spread(index.extents[c])), head_dim);
        at_centroids += index.sizes[c] * std::exp(score * scale - exact.lse);
        missing += index.sizes[c] * std::exp(score * scale + above - exact.lse);
        most += index.sizes[c] *
                std::exp((score + norm * double(cpu::wave_radius(index.extents[c]))) * scale - exact.lse);
        if (!estimated.count({s, c})) continue;
        const double weight =
            index.sizes[c] * std::exp(score * scale + double(cpu::kWaveForMeanValue) * above - exact.lse);
        mass += weight;
        for (size_t i = 0; i < dim; i++) out[i] += weight * double(mean[i]);
      }
    }
    for (double& x : out) x /= mass;
    assert_true(relative_error(scene.lookup->out.data() + h * dim, out.data(), dim) < 2 * kRounding);
    const double lse = exact.lse + std::log(mass);
    assert_true(std::abs(double(scene.lookup->lse[h]) - lse) < kRounding * std::max(1.0, std::abs(lse)));
    if (static_cast<int32_t>(h) != lookup.coverage_head) continue;
    coverage = 1 / (1 + missing);
    jensen = 1 / (1 + at_centroids);
    certified = 1 / (1 + most);
    least_certified = 1 / (1 + 1.062 * most);  // its exp is up to 6.2 % too high
    truth = std::exp(exact.lse - dense.lse);
  }
  assert_true(std::abs(lookup.counters->estimated_coverage_sum - coverage) < 1e-4);
  assert_true(lookup.counters->certified_coverage_sum < certified + 1e-5);
  assert_true(lookup.counters->certified_coverage_sum > least_certified - 1e-5);
  assert_true(certified <= truth + 1e-6);
  return {truth, coverage, jensen};
}

void estimate_merges_as_defined_and_bounds_hold(void**) {
  test::for_each_simd([](const char*) {
    double off = 0, off_by_jensen = 0;
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
        for (int32_t group : test::some_of({1, 2, 3, 4, 7, 8})) {
          Scene scene(kind, group, kv, {}, {2048, 700, 33}, static_cast<uint64_t>(group));
          const Coverage coverage = check_estimate(scene);
          off += std::abs(coverage.estimated - coverage.truth);
          off_by_jensen += std::abs(coverage.by_centroids - coverage.truth);
        }
    std::printf("coverage off by %g, by the centroids alone %g\n", off, off_by_jensen);
    assert_true(off < 0.5 * off_by_jensen);
  });
}

// Of those that models have. Some are no whole number of vectors, or of the index's blocks.
void both_hold_for_every_size_of_head(void**) {
  test::for_each_simd([](const char*) {
    int32_t group = 1;
    for (int32_t head_dim : test::some_of({80, 96, 112, 120, 128, 192, 256}))
      for (DType kv : {DType::f32, DType::f16, DType::bf16}) {
        const std::vector<int32_t> segments = {900, 33};
        Scene retrieved(Keys::clustered, group, kv, all_retrieved(), segments, 0, head_dim);
        check_all_retrieved(retrieved);
        Scene estimated(Keys::clustered, group, kv, {}, segments, 0, head_dim);
        check_estimate(estimated);
        group = group % 8 + 1;
      }
  });
}

void huge_scores_leave_everything_finite(void**) {
  for (float factor : {30.0f, 1000.0f}) {
    Scene scene(Keys::clustered, 4, DType::f16, {}, {1500});
    for (float& x : scene.lookup->query) x *= factor;
    ThreadStream stream(1);
    decode_lookups(*stream, cpu::wave_policy, scene.args());
    for (float x : scene.lookup->out) assert_true(std::isfinite(x));
    for (float x : scene.lookup->lse) assert_true(std::isfinite(x));
    const Lookup& lookup = scene.lookup->lookup;
    assert_true(lookup.counters->estimated_coverage_sum >= 0 && lookup.counters->estimated_coverage_sum <= 1);
    assert_true(lookup.counters->certified_coverage_sum >= 0 &&
                lookup.counters->certified_coverage_sum <= lookup.counters->estimated_coverage_sum);
  }
}

void steps_give_the_same_bits_for_any_workers(void**) {
  std::vector<std::unique_ptr<Scene>> scenes;
  std::vector<std::vector<float>> expected;
  for (int workers : {1, 2, 5}) {
    std::vector<Lookup> lookups;
    for (uint64_t i = 0; i < 6; i++) {
      if (workers == 1)
        scenes.push_back(std::make_unique<Scene>(Keys::clustered, 4, DType::f16, PolicyParams{},
                                                 std::vector<int32_t>{1500, 1024}, i));
      lookups.push_back(scenes[i]->lookup->lookup);
    }
    LookupArgs args = scenes[0]->args();
    args.lookups = lookups.data();
    args.count = 6;
    ThreadStream stream(workers);
    decode_lookups(*stream, cpu::wave_policy, args);
    for (size_t i = 0; i < 6; i++) {
      if (workers == 1) expected.push_back(scenes[i]->lookup->out);
      assert_memory_equal(scenes[i]->lookup->out.data(), expected[i].data(), 256 * sizeof(float));
    }
  }
}

// Two lookups, whose segments and heads more workers share; of a group of seven heads, so that its blocks differ.
void few_lookups_make_tasks_for_many_workers(void**) {
  std::vector<std::unique_ptr<Scene>> scenes;
  for (uint64_t i = 0; i < 2; i++)
    scenes.push_back(std::make_unique<Scene>(Keys::clustered, 7, DType::f16, PolicyParams{},
                                             std::vector<int32_t>{3000, 2900, 2800, 600}, i));
  for_each_simd([&](const char*) {
    std::vector<std::vector<float>> outs, lses;
    std::vector<LookupCounters> counters;
    for (int workers : {1, 2, 3, 16}) {
      std::vector<Lookup> lookups = {scenes[0]->lookup->lookup, scenes[1]->lookup->lookup};
      LookupArgs args = scenes[0]->args();
      args.lookups = lookups.data();
      args.count = 2;
      CountedStream counted(workers);
      decode_lookups(counted.stream(), cpu::wave_policy, args);
      for (size_t i = 0; i < 2; i++) {
        const TestLookup& lookup = *scenes[i]->lookup;
        if (workers == 1) {
          outs.push_back(lookup.out);
          lses.push_back(lookup.lse);
          counters.push_back(lookup.counters);
        }
        assert_memory_equal(lookup.out.data(), outs[i].data(), outs[i].size() * sizeof(float));
        assert_memory_equal(lookup.lse.data(), lses[i].data(), lses[i].size() * sizeof(float));
        assert_true(lookup.counters.index_bytes_read == counters[i].index_bytes_read);
        assert_true(lookup.counters.certified_coverage_sum == counters[i].certified_coverage_sum);
        assert_true(lookup.counters.estimated_coverage_sum == counters[i].estimated_coverage_sum);
        assert_int_equal(lookup.counters.coverage_count, 1);
      }
      // Scores, where lookups are shared; ranks; attention; estimates.
      assert_int_equal(counted.tasks().size(), workers > 4 ? 4 : 3);
      assert_int_equal(counted.tasks().front(), workers > 4 ? 4 : 2);
      assert_true(workers > 2 ? counted.tasks().back() >= 4 : counted.tasks().back() == 2);
    }
  });
}

// Published defaults over 16K tokens, averaged over queries: how many of the 100 heaviest tokens are
// attended exactly, and the error of the output against dense attention.
void recall_and_error_are_bounded_on_every_kind_of_keys(void**) {
  struct Bound {
    Keys kind;
    const char* name;
    double recall, error;
  };
  // Measured recall 0.92, 0.14, 0.21 and error 0.008, 0.70, 0.005 (with centroids in f16 instead of 8 bits:
  // 0.91, 0.13, 0.21 and 0.008, 0.71, 0.005); the bounds leave room for other seeds.
  // Uniform keys have no clusters to find: there the estimate carries the result.
  for (const Bound& bound :
       {Bound{Keys::clustered, "clustered", 0.75, 0.03}, Bound{Keys::uniform, "uniform", 0.08, 0.9},
        Bound{Keys::adversarial, "adversarial", 0.1, 0.03}}) {
    double recall = 0, error = 0, unestimated = 0, coverage = 0, certified = 0;
    constexpr int kQueries = 6;
    for (int q = 0; q < kQueries; q++) {
      Scene scene(bound.kind, 4, DType::f16, {}, {8192, 8192}, static_cast<uint64_t>(q));
      ThreadStream stream(1);
      const LookupArgs args = scene.args();
      select_lookups(*stream, cpu::wave_policy, args);
      retrieve(args);
      cpu::attend(*stream, args);
      const std::vector<float> exact_only = scene.lookup->out;
      cpu::wave_policy.estimate(*stream, args);
      const Lookup& lookup = scene.lookup->lookup;
      std::vector<bool> attended(scene.all_keys.size() / 64);
      for (size_t i = 0; i < 68; i++) attended[attended.size() - 1 - i] = true;
      for (int32_t position : retrieved_positions(lookup)) attended[static_cast<size_t>(position)] = true;
      for (size_t h = 0; h < 4; h++) {
        const Reference dense = scene.dense(h);
        std::vector<size_t> order(dense.weights.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::partial_sort(order.begin(), order.begin() + 100, order.end(),
                          [&](size_t a, size_t b) { return dense.weights[a] > dense.weights[b]; });
        for (size_t i = 0; i < 100; i++) recall += attended[order[i]] / (400.0 * kQueries);
        error += relative_error(scene.lookup->out.data() + h * 64, dense.out.data(), 64) / (4 * kQueries);
        unestimated += relative_error(exact_only.data() + h * 64, dense.out.data(), 64) / (4 * kQueries);
      }
      coverage += lookup.counters->estimated_coverage_sum / kQueries;
      certified += lookup.counters->certified_coverage_sum / kQueries;
    }
    std::printf(
        "%-12s recall@100 %.3f  output error %.4f (%.4f without estimation)  coverage %.3f certified %.3f\n",
        bound.name, recall, error, unestimated, coverage, certified);
    assert_true(recall >= bound.recall);
    assert_true(error <= bound.error);
    assert_true(error <= unestimated * 1.05);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(all_retrieved_equals_dense_attention),
      cmocka_unit_test(estimate_merges_as_defined_and_bounds_hold),
      cmocka_unit_test(both_hold_for_every_size_of_head),
      cmocka_unit_test(huge_scores_leave_everything_finite),
      cmocka_unit_test(steps_give_the_same_bits_for_any_workers),
      cmocka_unit_test(few_lookups_make_tasks_for_many_workers),
      cmocka_unit_test(recall_and_error_are_bounded_on_every_kind_of_keys),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
