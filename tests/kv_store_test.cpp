// The KV store alone, for hosts with their own model code: what it attends equals a plain softmax over what
// was appended, however it was appended, sealed, forked or cut.
#include "src/kv_store.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;
using test::runtime;

namespace {

constexpr int32_t kLayers = 2, kKvHeads = 2, kGroup = 3, kDim = 32;
constexpr int32_t kWidth = kKvHeads * kDim, kQueryWidth = kKvHeads * kGroup * kDim;

KvStoreParams store_params(const char* policy, float budget) {
  KvStoreParams params;
  params.shape = {kLayers, kKvHeads, kDim, DType::f32};
  params.query_heads = kKvHeads * kGroup;
  params.policy = find_policy(runtime()->backend, policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.policy_params.budget = budget;
  if (budget >= 1) params.policy_params.estimation = 0;
  return params;
}

std::vector<float> normals(size_t count, uint64_t salt) {
  std::mt19937_64 random(test::seed() + salt);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Data {
  std::vector<float> keys[kLayers], values[kLayers];
  explicit Data(size_t tokens, uint64_t salt = 0) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      keys[layer] = normals(tokens * kWidth, salt + 10 * layer + 1);
      values[layer] = normals(tokens * kWidth, salt + 10 * layer + 2);
    }
  }
  void append(KvStore& store, int64_t first, int64_t count) const {
    for (int32_t layer = 0; layer < kLayers; ++layer)
      store.append(layer, count, keys[layer].data() + first * kWidth, values[layer].data() + first * kWidth);
  }
};

// Plain softmax attention in f64 over the first `tokens`, and its LSE.
void reference(const Data& data, int32_t layer, int64_t tokens, const float* query, double* out,
               double* lse) {
  for (int32_t head = 0; head < kKvHeads * kGroup; ++head) {
    const int32_t kv_head = head / kGroup;
    std::vector<double> scores(static_cast<size_t>(tokens));
    double top = -INFINITY, sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (int32_t d = 0; d < kDim; ++d)
        dot += double{query[head * kDim + d]} *
               double{data.keys[layer][static_cast<size_t>(t * kWidth + kv_head * kDim + d)]};
      scores[static_cast<size_t>(t)] = dot / std::sqrt(double{kDim});
      top = std::max(top, scores[static_cast<size_t>(t)]);
    }
    for (double score : scores) sum += std::exp(score - top);
    for (int32_t d = 0; d < kDim; ++d) {
      double value = 0;
      for (int64_t t = 0; t < tokens; ++t)
        value += std::exp(scores[static_cast<size_t>(t)] - top) / sum *
                 double{data.values[layer][static_cast<size_t>(t * kWidth + kv_head * kDim + d)]};
      out[head * kDim + d] = value;
    }
    lse[head] = top + std::log(sum);
  }
}

// Largest difference to the reference over a few queries.
double error_of(KvStore& store, const Data& data, int32_t layer, int64_t tokens) {
  constexpr int64_t kRows = 3;
  const std::vector<float> queries = normals(kRows * kQueryWidth, 77);
  std::vector<float> out(kRows * kQueryWidth), lse(kRows * kKvHeads * kGroup);
  store.attend(layer, kRows, queries.data(), nullptr, out.data(), lse.data());
  double worst = 0;
  std::vector<double> expected(kQueryWidth), expected_lse(kKvHeads * kGroup);
  for (int64_t row = 0; row < kRows; ++row) {
    reference(data, layer, tokens, queries.data() + row * kQueryWidth, expected.data(), expected_lse.data());
    for (int32_t i = 0; i < kQueryWidth; ++i)
      worst = std::max(worst, std::abs(expected[static_cast<size_t>(i)] -
                                       double{out[static_cast<size_t>(row * kQueryWidth + i)]}));
    for (int32_t h = 0; h < kKvHeads * kGroup; ++h)
      worst = std::max(worst, std::abs(expected_lse[static_cast<size_t>(h)] -
                                       double{lse[static_cast<size_t>(row * kKvHeads * kGroup + h)]}));
  }
  return worst;
}

constexpr double kF32 = 1e-4;  // f32 sums over a thousand tokens against f64

void attend_equals_softmax_over_what_was_appended(void**) {
  const Data data(1000);
  for (const char* policy : {"full", "wave", "streaming", "blocks"}) {
    for (int64_t step : {int64_t{1000}, int64_t{137}, int64_t{1}}) {
      KvStore store(runtime(), store_params(policy, 1));
      const int64_t tokens = step == 1 ? 70 : 1000;
      for (int64_t first = 0; first < tokens; first += step)
        data.append(store, first, std::min(step, tokens - first));
      for (int32_t layer = 0; layer < kLayers; ++layer)
        assert_true(error_of(store, data, layer, tokens) < kF32);
      store.seal();
      assert_int_equal(store.stats().segments > 0, tokens > 4 + 64 + 64);
      for (int32_t layer = 0; layer < kLayers; ++layer)
        assert_true(error_of(store, data, layer, tokens) < kF32);
    }
  }
}

void small_budgets_stay_near_and_read_less(void**) {
  const Data data(4000);
  KvStoreParams params = store_params("wave", 0.1f);
  params.policy_params.estimation = 1;  // nothing is dropped
  KvStore store(runtime(), params);
  data.append(store, 0, 4000);
  store.seal();
  // Random keys have no clusters to find, so this is the estimate's worst case; the LSE is off the most.
  const double error = error_of(store, data, 0, 4000);
  std::printf("error at a tenth of the tokens, unclustered keys: %.3f\n", error);
  assert_true(error < 0.5);
  const wi_session_stats stats = store.stats();
  assert_true(stats.kv_bytes_read < 3 * 4000 * uint64_t{kKvHeads} * 2 * kDim * 4 / 2);
  assert_true(stats.certified_coverage <= stats.estimated_coverage + 1e-6 && stats.estimated_coverage < 1);
}

// Or over its end, or where the sums are.
void attention_may_go_where_its_queries_are(void**) {
  const Data data(3000);
  for (const char* policy : {"wave", "full"}) {
    KvStore store(runtime(), store_params(policy, 0.1f));
    data.append(store, 0, 3000);
    store.seal();
    for (const int64_t rows : {1, 3, 20}) {
      const size_t count = static_cast<size_t>(rows) * kQueryWidth;
      const std::vector<float> queries = normals(count, 5);
      std::vector<float> out(count), place(2 * count), at(count);
      store.attend(1, rows, queries.data(), nullptr, out.data(), nullptr);
      for (const size_t behind : {size_t{0}, size_t{7}, count - 1}) {
        std::copy(queries.begin(), queries.end(), place.begin());
        store.attend(1, rows, place.data(), nullptr, place.data() + behind, nullptr);
        assert_true(std::equal(out.begin(), out.end(), place.begin() + static_cast<ptrdiff_t>(behind)));
      }
      std::copy(queries.begin(), queries.end(), place.begin());
      store.attend(1, rows, place.data(), nullptr, at.data(), place.data());
      assert_true(at == out);
    }
  }
}

// Two KV heads: two workers take one each, through all stages; seven do one stage after the other together.
void lookups_give_the_same_bits_one_by_one_and_all_at_once(void**) {
  const Data data(3000);
  for (const char* policy : {"wave", "blocks", "full"}) {
    const std::vector<float> query = normals(kQueryWidth, 5);
    std::vector<std::vector<float>> outs;
    std::vector<wi_session_stats> stats;
    for (int32_t threads : {1, 2, 7}) {
      RuntimeParams params;
      params.threads = threads;
      params.kv_budget_bytes = uint64_t{1} << 28;
      KvStore store(test::create_runtime(params), store_params(policy, 0.1f));
      data.append(store, 0, 3000);
      store.seal();
      outs.emplace_back(kQueryWidth + kKvHeads * kGroup);
      store.attend(1, 1, query.data(), nullptr, outs.back().data(), outs.back().data() + kQueryWidth);
      assert_true(outs.back() == outs.front());
      stats.push_back(store.stats());
      assert_int_equal(stats.back().kv_bytes_read, stats.front().kv_bytes_read);
      assert_int_equal(stats.back().index_bytes_read, stats.front().index_bytes_read);
      assert_int_equal(stats.back().retrieved_tokens, stats.front().retrieved_tokens);
      assert_int_equal(stats.back().buffer_hits, stats.front().buffer_hits);
      assert_true(stats.back().certified_coverage == stats.front().certified_coverage);
      assert_true(stats.back().attend_ns > 0);
    }
  }
}

void layers_may_run_ahead_of_each_other(void**) {
  const Data data(300);
  KvStore store(runtime(), store_params("full", 1));
  assert_error(WI_E_STATE, "layer 0 has no tokens", error_of(store, data, 0, 0));
  store.append(0, 200, data.keys[0].data(), data.values[0].data());
  assert_true(error_of(store, data, 0, 200) < kF32);
  assert_int_equal(store.stats().tokens, 0);
  assert_error(WI_E_STATE, "append to every layer first", store.seal());
  store.append(1, 200, data.keys[1].data(), data.values[1].data());
  assert_int_equal(store.stats().tokens, 200);
  store.seal();
  assert_true(error_of(store, data, 1, 200) < kF32);
}

// As many query heads to a KV head as no model has: the same as that many rows of one each.
void a_group_may_be_of_any_size(void**) {
  constexpr int32_t kHeads = 1000, kSize = 16;
  constexpr int64_t kTokens = 600;
  for (const char* policy : {"full", "wave"}) {
    KvStoreParams params = store_params(policy, 1);
    params.shape = {1, 1, kSize, DType::f32};
    params.query_heads = kHeads;
    KvStore grouped(runtime(), params);
    params.query_heads = 1;
    KvStore alone(runtime(), params);
    const std::vector<float> keys = normals(kTokens * kSize, 1), values = normals(kTokens * kSize, 2),
                             queries = normals(kHeads * kSize, 3);
    std::vector<float> out(queries.size()), wanted(queries.size()), lse(kHeads), wanted_lse(kHeads);
    for (KvStore* store : {&grouped, &alone}) {
      store->append(0, kTokens, keys.data(), values.data());
      store->seal();
    }
    grouped.attend(0, 1, queries.data(), nullptr, out.data(), lse.data());
    alone.attend(0, kHeads, queries.data(), nullptr, wanted.data(), wanted_lse.data());
    for (size_t i = 0; i < out.size(); ++i) assert_true(std::abs(out[i] - wanted[i]) < kF32);
    for (size_t i = 0; i < lse.size(); ++i) assert_true(std::abs(lse[i] - wanted_lse[i]) < kF32);
  }
  // Where only a part is read, heads vote about which.
  KvStoreParams params = store_params("wave", 0.05f);
  params.shape = {1, 1, kSize, DType::f32};
  params.query_heads = kHeads;
  KvStore store(runtime(), params);
  const std::vector<float> rows = normals(kTokens * kSize, 1), queries = normals(kHeads * kSize, 3);
  store.append(0, kTokens, rows.data(), rows.data());
  store.seal();
  std::vector<float> out(queries.size(), NAN);
  store.attend(0, 1, queries.data(), nullptr, out.data(), nullptr);
  for (const float x : out) assert_true(std::isfinite(x));
}

// A host that forks between two layers of a chunk: each of the two goes on with the layers that lack it.
void a_fork_between_layers_goes_on_where_it_was(void**) {
  const Data data(500), other(500, 100);
  KvStore store(runtime(), store_params("wave", 1));
  data.append(store, 0, 300);
  store.seal();
  store.append(0, 200, data.keys[0].data() + 300 * kWidth, data.values[0].data() + 300 * kWidth);
  const auto fork = store.fork();
  assert_int_equal(fork->stats().tokens, 300);
  assert_error(WI_E_STATE, "layer", fork->seal());
  fork->append(1, 200, other.keys[1].data() + 300 * kWidth, other.values[1].data() + 300 * kWidth);
  store.append(1, 200, data.keys[1].data() + 300 * kWidth, data.values[1].data() + 300 * kWidth);
  Data mixed = data;
  for (auto [to, from] : {std::pair(&mixed.keys[1], &other.keys[1]), {&mixed.values[1], &other.values[1]}})
    std::copy(from->begin() + 300 * kWidth, from->end(), to->begin() + 300 * kWidth);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    assert_true(error_of(store, data, layer, 500) < kF32);
    assert_true(error_of(*fork, mixed, layer, 500) < kF32);
  }
  for (KvStore* one : {&store, fork.get()}) {
    assert_int_equal(one->stats().tokens, 500);
    one->seal();
  }
  // What only one layer has goes with a cut, of the one that is cut alone.
  const auto again = store.fork();
  again->append(0, 1, data.keys[0].data(), data.values[0].data());
  const auto uneven = again->fork();
  again->truncate(500);
  again->seal();
  assert_error(WI_E_STATE, "layer", uneven->seal());
}

void forks_diverge_and_cuts_go_back(void**) {
  const Data data(900), other(900, 500);
  KvStore store(runtime(), store_params("wave", 1));
  data.append(store, 0, 700);
  store.seal();
  auto fork = store.fork();
  other.append(*fork, 700, 100);
  data.append(store, 700, 200);
  for (int32_t layer = 0; layer < kLayers; ++layer) assert_true(error_of(store, data, layer, 900) < kF32);
  Data mixed = data;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    std::copy(other.keys[layer].begin() + 700 * kWidth, other.keys[layer].end(),
              mixed.keys[layer].begin() + 700 * kWidth);
    std::copy(other.values[layer].begin() + 700 * kWidth, other.values[layer].end(),
              mixed.values[layer].begin() + 700 * kWidth);
  }
  for (int32_t layer = 0; layer < kLayers; ++layer) assert_true(error_of(*fork, mixed, layer, 800) < kF32);
  for (int64_t kept : {int64_t{650}, int64_t{300}, int64_t{4}, int64_t{2}}) {
    store.truncate(kept);
    assert_true(error_of(store, data, 1, kept) < kF32);
  }
  assert_error(WI_E_ARGUMENT, "tokens is 3, the store has 2", store.truncate(3));
}

void over_budget_append_changes_nothing(void**) {
  const Data data(1000);
  KvStoreParams params = store_params("wave", 1);
  params.kv_budget_bytes = 300 * params.shape.token_bytes();
  KvStore store(runtime(), params);
  data.append(store, 0, 200);
  assert_error(WI_E_BUDGET, "kv_budget_bytes", data.append(store, 200, 800));
  for (int32_t layer = 0; layer < kLayers; ++layer) assert_true(error_of(store, data, layer, 200) < kF32);
  data.append(store, 200, 20);
  assert_true(error_of(store, data, 0, 220) < kF32);
}

// Though no token goes: what only some layers have does.
void a_cut_to_what_all_layers_have_gives_back_the_rest(void**) {
  const Data data(5000);
  KvStore store(runtime(), store_params("wave", 1));
  data.append(store, 0, 100);
  const uint64_t before = runtime()->pool->used();
  store.append(0, 4900, data.keys[0].data() + 100 * kWidth, data.values[0].data() + 100 * kWidth);
  assert_true(runtime()->pool->used() > before);
  store.truncate(100);
  assert_int_equal(runtime()->pool->used(), before);
  data.append(store, 100, 200);
  assert_true(error_of(store, data, 0, 300) < kF32);
}

#ifndef WI_EMULATED  // less of it would take no more lists than it may
// Of many rows over a long tail some at a time: each has a list of all blocks of it.
void lists_of_what_is_not_sealed_are_bounded(void**) {
  constexpr int64_t kTokens = 32'000, kRows = 2700;
  KvStoreParams store_of = store_params("wave", 1);
  store_of.shape = {1, 4, 16, DType::f32};
  store_of.query_heads = 4;
  RuntimeParams params;
  params.threads = 2;
  const auto own = test::create_runtime(params);
  KvStore store(own, store_of);
  const std::vector<float> zeros(kTokens * 4 * 16);
  store.append(0, kTokens, zeros.data(), zeros.data());
  std::vector<float> out(kRows * 4 * 16), lse(kRows * 4);
  store.attend(0, kRows, zeros.data(), nullptr, out.data(), lse.data());
  assert_in_range(own->scratch_bytes(), 1, uint64_t{100} << 20);
}
#endif

// Of the runtime's budget, which others wait for.
void a_failed_append_gives_its_room_back(void**) {
  RuntimeParams small;
  KvStoreParams params = store_params("wave", 1);
  small.kv_budget_bytes = 300 * params.shape.token_bytes();
  const auto limited = test::create_runtime(small);
  Data data(1000);
  KvStore store(limited, params), other(limited, params);
  data.append(store, 0, 100);
  data.keys[1][1] = NAN;
  store.append(0, 50, data.keys[0].data(), data.values[0].data());  // a layer ahead, whose room stays
  const uint64_t before = limited->pool->used();
  assert_error(WI_E_BUDGET, "of the budget", data.append(store, 100, 800));
  assert_int_equal(limited->pool->used(), before);
  assert_error(WI_E_ARGUMENT, "not finite", store.append(1, 150, data.keys[1].data(), data.values[1].data()));
  assert_int_equal(limited->pool->used(), before);
  data.append(other, 100, 60);
  store.append(1, 50, data.keys[1].data() + kWidth, data.values[1].data() + kWidth);
  assert_int_equal(limited->pool->used(), before + other.stats().kv_bytes);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(attend_equals_softmax_over_what_was_appended),
      cmocka_unit_test(attention_may_go_where_its_queries_are),
      cmocka_unit_test(small_budgets_stay_near_and_read_less),
      cmocka_unit_test(lookups_give_the_same_bits_one_by_one_and_all_at_once),
      cmocka_unit_test(layers_may_run_ahead_of_each_other),
      cmocka_unit_test(a_group_may_be_of_any_size),
      cmocka_unit_test(a_fork_between_layers_goes_on_where_it_was),
      cmocka_unit_test(forks_diverge_and_cuts_go_back),
      cmocka_unit_test(over_budget_append_changes_nothing),
      cmocka_unit_test(a_cut_to_what_all_layers_have_gives_back_the_rest),
#ifndef WI_EMULATED
      cmocka_unit_test(lists_of_what_is_not_sealed_are_bounded),
#endif
      cmocka_unit_test(a_failed_append_gives_its_room_back),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
