// The wave policy's select against a plain reference: ranks, budget, zones, target coverage.
#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/cpu/policy/wave.h"
#include "lookups.h"
#include "test.h"
#include "tests/support/fewer.h"

namespace {

using namespace wi;
using namespace wi::test;

struct Scene {
  Scene(Keys kind, int32_t group, DType kv, PolicyParams params = {},
        std::vector<int32_t> segments = {2048, 700, 33}, int32_t head_dim = 64)
      : cache(cpu::wave_policy, params, kv, head_dim), dim(static_cast<size_t>(head_dim)) {
    std::mt19937_64 random(seed() + static_cast<uint64_t>(group));
    for (int32_t tokens : segments)
      cache.seal(draw(kind, tokens, head_dim, random), draw(Keys::uniform, tokens, head_dim, random));
    std::normal_distribution<float> normal;
    std::vector<float> query(static_cast<size_t>(group) * dim);
    // Near some key, as a query that looks for something is.
    const size_t near = random() % (cache.keys.size() / dim) * dim;
    for (size_t i = 0; i < query.size(); i++) query[i] = cache.keys[near + i % dim] + normal(random);
    lookup = std::make_unique<TestLookup>(cache, query);
    steady_keys = to_kv(draw(kind, 68, head_dim, random), kv);
    steady = {steady_keys.data(), steady_keys.data(), 68};
    lookup->lookup.steady = &steady;
    lookup->lookup.steady_count = 1;
  }
  LookupArgs args() {
    return lookup_args(cache, &lookup->lookup, 1, static_cast<int32_t>(lookup->lse.size()));
  }

  Cache cache;
  size_t dim;
  std::unique_ptr<TestLookup> lookup;
  AlignedBytes steady_keys;
  KvRun steady;
};

// Flat number of a partition.
int32_t number(const Lookup& lookup, PartitionRef ref) {
  int32_t at = ref.partition;
  for (int32_t s = 0; s < ref.segment; s++) at += lookup.segments[s].partitions;
  return at;
}
std::vector<int32_t> sizes_of(const Lookup& lookup) {
  std::vector<int32_t> sizes;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    const cpu::WaveIndex index = cpu::wave_view(lookup.segments[s].index);
    sizes.insert(sizes.end(), index.sizes, index.sizes + index.clusters);
  }
  return sizes;
}

std::vector<double> spreads_of(const Lookup& lookup) {
  std::vector<double> spreads;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    const cpu::WaveIndex index = cpu::wave_view(lookup.segments[s].index);
    for (int32_t c = 0; c < index.clusters; c++)
      spreads.push_back(double(cpu::wave_spread(index.extents[c])));
  }
  return spreads;
}

// Ranks by definition, in f64. A second look is taken at the first by the first rank, of `looked` tokens.
struct Ranks {
  std::vector<double> scores, doubts;  // (partitions, group); by how much a score may be off, since queries
                                       // are rounded to integers of a 32,639th of their largest number (half
                                       // a step for each number of the centroid)
  std::vector<double> first, second;   // (partitions)
  double threshold = INFINITY;         // the lowest first rank of those looked at twice
};

// (partitions, group) logarithms to the sum over the group of their softmax among `of`, or among all.
std::vector<double> softmax_sums(const std::vector<double>& best, size_t group, const std::vector<bool>& of) {
  const size_t count = best.size() / group;
  std::vector<double> ranks(count);
  for (size_t h = 0; h < group; h++) {
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++)
      if (of[i]) max = std::max(max, best[i * group + h]);
    for (size_t i = 0; i < count; i++)
      if (of[i]) sum += std::exp(best[i * group + h] - max);
    for (size_t i = 0; i < count; i++) ranks[i] += std::exp(best[i * group + h] - max) / sum;
  }
  return ranks;
}

Ranks reference_ranks(Scene& scene, float looked_share) {
  const Lookup& lookup = scene.lookup->lookup;
  const size_t group = scene.lookup->lse.size();
  const DType kv = scene.args().kv;
  Ranks out;
  std::vector<double> best, best_along;
  const int32_t head_dim = scene.cache.head_dim;
  const size_t dim = scene.dim;
  const double scale = 1 / std::sqrt(double(head_dim));
  std::vector<float> row(dim), axis(dim);
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    const cpu::WaveIndex index = cpu::wave_view(lookup.segments[s].index);
    for (int32_t c = 0; c < index.clusters; c++) {
      cpu::wave_centroid(index, c, head_dim, row.data());
      cpu::from_kv(index.axes + static_cast<size_t>(c) * row_bytes(kv, head_dim), kv, axis.data(), head_dim);
      for (size_t h = 0; h < group; h++) {
        const float* query = scene.lookup->query.data() + h * dim;
        double score = 0, squares = 0, length = 0, largest = 0, along = 0;
        for (size_t i = 0; i < dim; i++) {
          score += double(query[i]) * double(row[i]);
          along += double(query[i]) * double(axis[i]);
          squares += double(query[i]) * double(query[i]);
          length += std::abs(double(row[i]) - double(index.centre[i]));
          largest = std::max(largest, std::abs(double(query[i])));
        }
        out.scores.push_back(score * scale);
        out.doubts.push_back(0.51 * largest / 32639 * length * scale);
        best.push_back(score * scale + double(cpu::kWaveBestAbove) * std::sqrt(squares) *
                                           double(cpu::wave_radius(index.extents[c])) / head_dim);
        const double across = squares * double(index.residuals[c]) * double(index.residuals[c]);
        best_along.push_back(score * scale +
                             double(cpu::kWaveBestAlong) * std::sqrt(along * along + across) * scale);
      }
    }
  }
  const size_t count = best.size() / group;
  out.first = softmax_sums(best, group, std::vector<bool>(count, true));
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return out.first[a] > out.first[b]; });
  const std::vector<int32_t> sizes = sizes_of(lookup);
  const double looked = std::ceil(double(looked_share * static_cast<float>(lookup.indexed_tokens)));
  std::vector<bool> twice(count);
  double tokens = 0;
  for (size_t i : order) {
    if (tokens >= looked) break;
    tokens += sizes[i];
    twice[i] = true;
    out.threshold = out.first[i];
  }
  out.second = softmax_sums(best_along, group, twice);
  return out;
}

// Each exp of a rank is up to 6.2 % above the true one, and so is what a head's are divided by: of two
// partitions whose ranks come from different heads, the ratio may be off by both. And which ones are looked
// at twice, of those about as good as the last of them, changes a little what all are divided by.
constexpr double kRankSlack = 1.0621 * 1.0621;
constexpr double kSecondSlack = kRankSlack * 1.1;

// Whether partition a surely comes after b.
bool after(const Ranks& ranks, size_t a, size_t b) {
  const auto maybe_twice = [&](size_t i) { return ranks.first[i] * kRankSlack >= ranks.threshold; };
  const auto surely_twice = [&](size_t i) { return ranks.first[i] > ranks.threshold * kRankSlack; };
  if (surely_twice(a) && surely_twice(b)) return ranks.second[a] * kSecondSlack < ranks.second[b];
  if (!maybe_twice(a) && !maybe_twice(b)) return ranks.first[a] * kRankSlack < ranks.first[b];
  return !maybe_twice(a) && surely_twice(b);
}

// Everything that holds of any selection: each partition in one zone, lists in order of place, counts,
// tokens, no partition in an earlier zone than one that comes before it.
void check_zones(Scene& scene, const Ranks& ranks) {
  const Lookup& lookup = scene.lookup->lookup;
  const std::vector<int32_t> sizes = sizes_of(lookup);
  std::vector<int> zone(sizes.size(), 2);
  int64_t tokens = 0;
  const auto enter = [&](const PartitionRef* list, int32_t count, int which) {
    for (int32_t i = 0; i < count; i++) {
      const size_t at = static_cast<size_t>(number(lookup, list[i]));
      assert_true(zone[at] == 2 && (i == 0 || number(lookup, list[i - 1]) < number(lookup, list[i])));
      zone[at] = which;
      if (which == 0) tokens += sizes[at];
    }
  };
  enter(lookup.retrieved, lookup.retrieved_count, 0);
  enter(lookup.estimated, lookup.estimated_count, 1);
  assert_int_equal(tokens, lookup.counters->retrieved_tokens);
  assert_int_equal(lookup.retrieved_count + lookup.estimated_count + lookup.counters->dropped,
                   lookup.partition_count);
  for (size_t a = 0; a < zone.size(); a++)
    for (size_t b = 0; b < zone.size(); b++)
      if (zone[a] < zone[b]) assert_false(after(ranks, a, b));
}

// The retrieved partitions any of which may be the last that was taken.
std::vector<size_t> possibly_last(const Lookup& lookup, const Ranks& ranks) {
  std::vector<size_t> retrieved, out;
  for (int32_t i = 0; i < lookup.retrieved_count; i++)
    retrieved.push_back(static_cast<size_t>(number(lookup, lookup.retrieved[i])));
  for (size_t a : retrieved)
    if (std::none_of(retrieved.begin(), retrieved.end(), [&](size_t b) { return after(ranks, b, a); }))
      out.push_back(a);
  return out;
}

void check_default_selection(Scene& scene) {
  ThreadStream stream(1);
  select_lookups(*stream, cpu::wave_policy, scene.args());
  const Ranks ranks = reference_ranks(scene, cpu::kWaveLooks * 0.018f);
  const Lookup& lookup = scene.lookup->lookup;
  const size_t heads = scene.lookup->lse.size(), count = ranks.first.size();
  for (size_t i = 0; i < ranks.scores.size(); i++) {
    const double score = ranks.scores[i], got = double(lookup.scores[i % heads * count + i / heads]);
    assert_true(std::abs(score - got) < ranks.doubts[i] + 1e-5 * std::max(1.0, std::abs(score)));
  }
  check_zones(scene, ranks);
  const int64_t budget = static_cast<int64_t>(std::ceil(0.018f * static_cast<float>(lookup.indexed_tokens)));
  const std::vector<int32_t> sizes = sizes_of(lookup);
  int32_t last = 0;
  for (size_t at : possibly_last(lookup, ranks)) last = std::max(last, sizes[at]);
  assert_true(lookup.counters->retrieved_tokens >= budget &&
              lookup.counters->retrieved_tokens - last < budget);
  assert_int_equal(lookup.estimated_count, std::lround(0.232f * static_cast<float>(lookup.partition_count)));
}

void select_ranks_and_splits_as_the_reference_does(void**) {
  test::for_each_simd([](const char*) {
    for (DType kv : {DType::f32, DType::f16, DType::bf16})
      for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
        for (int32_t group : test::some_of({1, 2, 3, 4, 5, 7, 8})) {
          Scene scene(kind, group, kv);
          check_default_selection(scene);
        }
  });
}

// Of those that models have. Some are no whole number of vectors, or of the index's blocks.
void select_does_so_for_every_size_of_head(void**) {
  test::for_each_simd([](const char*) {
    int32_t group = 1;
    for (int32_t head_dim : test::some_of({80, 96, 112, 120, 128, 192, 256}))
      for (DType kv : {DType::f32, DType::f16, DType::bf16}) {
        Scene scene(Keys::clustered, group, kv, {}, {900, 33}, head_dim);
        check_default_selection(scene);
        group = group % 8 + 1;
      }
  });
}

void budgets_from_nothing_to_everything_are_respected(void**) {
  for (float budget : test::some_of({0.0f, 1e-6f, 0.1f, 0.5f, 0.999f, 1.0f, 2.0f}))
    for (float estimation : {-1.0f, 0.0f, 0.3f, 1.0f}) {
      PolicyParams params;
      params.budget = budget;
      params.estimation = estimation;
      Scene scene(Keys::clustered, 4, DType::f16, params);
      ThreadStream stream(1);
      select_lookups(*stream, cpu::wave_policy, scene.args());
      check_zones(scene, reference_ranks(scene, static_cast<float>(cpu::kWaveLooks) * budget));
      const Lookup& lookup = scene.lookup->lookup;
      if (budget == 0) assert_int_equal(lookup.retrieved_count, 0);
      if (budget >= 1) assert_int_equal(lookup.counters->retrieved_tokens, lookup.indexed_tokens);
      if (estimation <= 0) assert_int_equal(lookup.estimated_count, 0);
      if (estimation == 1) assert_int_equal(lookup.counters->dropped, 0);
      assert_true(static_cast<float>(lookup.counters->retrieved_tokens) >=
                  std::min(1.0f, budget) * static_cast<float>(lookup.indexed_tokens) - 1);
    }
}

void equal_ranks_go_to_the_lower_partition(void**) {
  PolicyParams params;
  params.budget = 0.25f;
  Scene scene(Keys::clustered, 4, DType::f16, params);
  std::fill(scene.lookup->query.begin(), scene.lookup->query.end(), 0.0f);  // every score is 0
  ThreadStream stream(1);
  select_lookups(*stream, cpu::wave_policy, scene.args());
  const Lookup& lookup = scene.lookup->lookup;
  for (int32_t i = 0; i < lookup.retrieved_count; i++)
    assert_int_equal(number(lookup, lookup.retrieved[i]), i);
  for (int32_t i = 0; i < lookup.estimated_count; i++) {
    assert_int_equal(number(lookup, lookup.estimated[i]), lookup.retrieved_count + i);
  }
}

void wanted_tokens_are_retrieved_whatever_their_rank(void**) {
  for (float target : {0.0f, 0.5f}) {
    PolicyParams params;
    params.budget = 0.1f;
    params.target_mass = target;
    Scene scene(Keys::clustered, 4, DType::f16, params);
    Lookup& lookup = scene.lookup->lookup;
    ThreadStream stream(1);
    select_lookups(*stream, cpu::wave_policy, scene.args());
    const std::set<int32_t> before = retrieved_positions(lookup);
    // Two that were left out, at either end of a segment, and one that is there anyway.
    std::vector<WantedTokens> wanted;
    const int32_t first[] = {0, lookup.segments[0].tokens};  // positions
    for (int32_t s : {0, 1}) {
      const int32_t tokens = lookup.segments[s].tokens;
      int32_t left_out = s == 0 ? 0 : tokens - 1;
      while (before.count(first[s] + left_out)) left_out += s == 0 ? 1 : -1;
      assert_in_range(left_out, 0, tokens - 1);
      wanted.push_back({s, left_out, left_out + 1});
    }
    lookup.wanted = wanted.data();
    lookup.wanted_count = static_cast<int32_t>(wanted.size());
    select_lookups(*stream, cpu::wave_policy, scene.args());
    const std::set<int32_t> after = retrieved_positions(lookup);
    for (const WantedTokens& one : wanted) assert_true(after.count(first[one.segment] + one.begin));
    assert_int_equal(lookup.retrieved_count + lookup.estimated_count + lookup.counters->dropped,
                     lookup.partition_count);
  }
}

void wanted_tokens_take_at_most_half_of_the_budget(void**) {
  PolicyParams params;
  params.budget = 0.1f;
  Scene scene(Keys::clustered, 4, DType::f16, params);
  Lookup& lookup = scene.lookup->lookup;
  ThreadStream stream(1);
  select_lookups(*stream, cpu::wave_policy, scene.args());
  const std::set<int32_t> before = retrieved_positions(lookup);
  const std::vector<WantedTokens> wanted = {{0, 0, lookup.segments[0].tokens},
                                            {1, 0, lookup.segments[1].tokens}};
  lookup.wanted = wanted.data();
  lookup.wanted_count = 2;
  select_lookups(*stream, cpu::wave_policy, scene.args());
  size_t kept = 0;
  for (int32_t position : retrieved_positions(lookup)) kept += before.count(position);
  // What ranks best without being wanted has the other half, but for a cluster that was wanted, too.
  assert_true(static_cast<double>(kept) >=
              0.5 * static_cast<double>(before.size()) - params.max_cluster_tokens);
  assert_true(lookup.counters->retrieved_tokens <
              static_cast<int64_t>(before.size()) + params.max_cluster_tokens);
}

void not_a_number_selects_within_bounds(void**) {
  for (float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
    Scene scene(Keys::clustered, 4, DType::f16);
    scene.lookup->query[70] = bad;
    ThreadStream stream(1);
    decode_lookups(*stream, cpu::wave_policy, scene.args());
    const Lookup& lookup = scene.lookup->lookup;
    assert_int_equal(lookup.retrieved_count + lookup.estimated_count + lookup.counters->dropped,
                     lookup.partition_count);
  }
}

void target_mass_is_reached_or_the_ceiling_is(void**) {
  for (Keys kind : {Keys::clustered, Keys::uniform, Keys::adversarial})
    for (int32_t group : {1, 4, 7})
      for (float target : {0.5f, 0.9f, 0.99f}) {
        PolicyParams params;
        params.target_mass = target;
        params.budget_ceiling = 0.3f;
        Scene scene(kind, group, DType::f16, params);
        ThreadStream stream(1);
        select_lookups(*stream, cpu::wave_policy, scene.args());
        const Ranks ranks = reference_ranks(scene, params.budget_ceiling);
        check_zones(scene, ranks);

        const Lookup& lookup = scene.lookup->lookup;
        const std::vector<int32_t> sizes = sizes_of(lookup);
        std::vector<float> steady(68 * 64);
        cpu::from_kv(scene.steady.keys, DType::f16, steady.data(), 68 * 64);
        const std::vector<size_t> last = possibly_last(lookup, ranks);
        double least = 1;
        std::vector<double> least_without(last.size(), 1.0);
        const std::vector<double> spreads = spreads_of(lookup);
        for (size_t h = 0; h < static_cast<size_t>(group); h++) {
          const double exact =
              std::exp(reference_attention(scene.lookup->query.data() + h * 64, steady, steady, 64).lse);
          double squares = 0;
          for (size_t i = 0; i < 64; i++) squares += std::pow(double(scene.lookup->query[h * 64 + i]), 2);
          const auto mass_of = [&](size_t at) {
            return sizes[at] * std::exp(ranks.scores[at * static_cast<size_t>(group) + h] +
                                        mass_above_centroid(std::sqrt(squares), spreads[at], 64));
          };
          double all = exact, covered = exact;
          for (size_t i = 0; i < ranks.first.size(); i++) all += mass_of(i);
          for (int32_t i = 0; i < lookup.retrieved_count; i++) {
            const size_t at = static_cast<size_t>(number(lookup, lookup.retrieved[i]));
            covered += mass_of(at);
          }
          least = std::min(least, covered / all);
          for (size_t i = 0; i < last.size(); i++) {
            least_without[i] = std::min(least_without[i], (covered - mass_of(last[i])) / all);
          }
        }
        const double floor = std::ceil(params.budget_floor * static_cast<float>(lookup.indexed_tokens));
        const double ceiling = std::ceil(params.budget_ceiling * static_cast<float>(lookup.indexed_tokens));
        const double tokens = static_cast<double>(lookup.counters->retrieved_tokens);
        assert_true(tokens >= floor && tokens < ceiling + params.max_cluster_tokens);
        assert_true(least >= double(target) * (1 - 1e-4) || tokens >= ceiling);
        // and no further than needed
        assert_true(tokens < floor + params.max_cluster_tokens ||
                    *std::min_element(least_without.begin(), least_without.end()) <
                        double(target) * (1 + 1e-4));
      }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(select_ranks_and_splits_as_the_reference_does),
      cmocka_unit_test(select_does_so_for_every_size_of_head),
      cmocka_unit_test(budgets_from_nothing_to_everything_are_respected),
      cmocka_unit_test(equal_ranks_go_to_the_lower_partition),
      cmocka_unit_test(wanted_tokens_are_retrieved_whatever_their_rank),
      cmocka_unit_test(wanted_tokens_take_at_most_half_of_the_budget),
      cmocka_unit_test(not_a_number_selects_within_bounds),
      cmocka_unit_test(target_mass_is_reached_or_the_ceiling_is),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
