// The sampler's cuts, its distribution against the softmax, ties, broken logits, and that it allocates once.
#include "src/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <random>

#include "test.h"

namespace {
size_t allocations = 0;
}
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace wi {
namespace {

using Logits = std::vector<float>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr int kDraws = 20'000;

std::vector<int> draw(const SamplingParams& params, const Logits& logits,
                      const std::vector<int32_t>& recent = {}) {
  Sampler sampler(params);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.sample(logits, recent))];
  return counts;
}

SamplingParams warm(float temperature = 1) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = test::seed();
  return params;
}

// Every share within five standard deviations of its probability.
void expect_shares(const std::vector<int>& counts, const std::vector<double>& weights) {
  double total = 0;
  for (double weight : weights) total += weight;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / total, allowed = 5 * std::sqrt(kDraws * p * (1 - p));
    assert_true(std::abs(counts[i] - kDraws * p) <= allowed);
  }
}

void greedy_takes_the_best_and_the_lower_of_two(void**) {
  assert_int_equal(Sampler().sample(Logits{1, 3, 2, 3}, {}), 1);
  assert_int_equal(Sampler().sample(Logits{kNan, -5, kNan}, {}), 1);
}

void draws_follow_the_softmax(void**) {
  const Logits logits = {0, 1, 2, -1, 0.5f};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    std::vector<double> weights;
    for (float logit : logits) weights.push_back(std::exp(logit / temperature));
    expect_shares(draw(warm(temperature), logits), weights);
  }
}

void top_k_keeps_k_and_the_lower_of_equals(void**) {
  SamplingParams params = warm();
  params.top_k = 2;
  expect_shares(draw(params, {1, 2, 1, 1}), {std::exp(-1.0), 1, 0, 0});
}

void top_p_keeps_the_fewest_that_reach_it(void**) {
  SamplingParams params = warm();
  params.top_p = 0.75f;
  const Logits logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  expect_shares(draw(params, logits), {0, 0.5, 0, 0.25});
  params.top_p = 0;
  expect_shares(draw(params, logits), {0, 1, 0, 0});
}

void top_p_is_the_same_over_a_large_vocabulary(void**) {
  std::mt19937 random(static_cast<unsigned>(test::seed()));
  Logits logits(5000);
  for (float& logit : logits)
    logit = std::normal_distribution<float>(0, 0.3f)(random);  // flat: thousands are kept
  std::vector<std::pair<double, size_t>> sorted;
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    total += sorted.emplace_back(std::exp(double(logits[i])), i).first;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<bool> kept(logits.size());
  double reached = 0;
  // One rank on either side of the cut may fall differently: weights are floats there.
  for (const auto& [weight, i] : sorted) {
    if (reached > (0.8 + 1e-3) * total) break;
    kept[i] = true;
    reached += weight;
  }
  SamplingParams params = warm();
  params.top_p = 0.8f;
  Sampler sampler(params);
  for (int i = 0; i < 1000; ++i) assert_true(kept[static_cast<size_t>(sampler.sample(logits, {}))]);
}

void min_p_drops_what_is_far_below_the_best(void**) {
  SamplingParams params = warm();
  params.min_p = 0.3f;
  expect_shares(draw(params, {0, std::log(0.2f), std::log(0.5f)}), {1, 0, 0.5});
}

void repetition_is_penalised_once_within_the_window(void**) {
  SamplingParams params = warm();
  params.repetition_penalty = 2;
  params.repetition_window = 3;
  expect_shares(draw(params, {2, 2, -1}, {0, 1, 1, 2}), {std::exp(2.0), std::exp(1.0), std::exp(-2.0)});
  expect_shares(draw(params, {2, 2, -1}, {-7, 99}), {std::exp(2.0), std::exp(2.0), std::exp(-1.0)});
}

void broken_logits_still_give_a_token(void**) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params = warm(temperature);
    params.top_p = 0.9f;
    params.min_p = 0.1f;
    params.repetition_penalty = 1.5f;
    for (const Logits& logits :
         {Logits{kNan, kNan}, Logits{-kInf, -kInf}, Logits{kInf, kNan}, Logits{1e38f, -1e38f}, Logits{0}}) {
      const int32_t token = Sampler(params).sample(logits, std::vector<int32_t>{0, 1});
      assert_in_range(token, 0, logits.size() - 1);
    }
  }
  expect_shares(draw(warm(), {kNan, 0, kNan, 0}), {0, 1, 0, 1});
  expect_shares(draw(warm(), {kInf, 5, kInf}), {1, 0, 1});
}

void the_same_state_gives_the_same_tokens(void**) {
  const Logits logits = {0, 0.5f, 1, 0.2f};
  Sampler first(warm()), second(warm());
  for (int i = 0; i < 100; ++i) assert_int_equal(first.sample(logits, {}), second.sample(logits, {}));
  Sampler later(warm());
  later.set_state(first.state());
  for (int i = 0; i < 100; ++i) assert_int_equal(first.sample(logits, {}), later.sample(logits, {}));
}

void a_warm_sampler_allocates_nothing(void**) {
  SamplingParams params = warm();
  params.top_k = 50;
  params.top_p = 0.9f;
  params.min_p = 0.01f;
  params.repetition_penalty = 1.1f;
  Sampler sampler(params);
  Logits logits(4096);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 37) * 0.1f;
  const std::vector<int32_t> recent = {1, 2, 3};
  sampler.sample(logits, recent);
  const size_t before = allocations;
  for (int i = 0; i < 50; ++i) sampler.sample(logits, recent);
  assert_int_equal(allocations, before);
}

void bad_parameters_are_refused_by_name(void**) {
  const auto with = [](auto change) {
    SamplingParams params;
    change(params);
    Sampler sampler(params);
  };
  assert_error(WI_E_ARGUMENT, "temperature", with([](SamplingParams& p) { p.temperature = -1; }));
  assert_error(WI_E_ARGUMENT, "temperature", with([](SamplingParams& p) { p.temperature = kNan; }));
  assert_error(WI_E_ARGUMENT, "top_k", with([](SamplingParams& p) { p.top_k = -1; }));
  assert_error(WI_E_ARGUMENT, "top_p", with([](SamplingParams& p) { p.top_p = 1.5f; }));
  assert_error(WI_E_ARGUMENT, "min_p", with([](SamplingParams& p) { p.min_p = kNan; }));
  assert_error(WI_E_ARGUMENT, "repetition_penalty",
               with([](SamplingParams& p) { p.repetition_penalty = 0; }));
  assert_error(WI_E_ARGUMENT, "repetition_window", with([](SamplingParams& p) { p.repetition_window = -1; }));
  assert_error(WI_E_ARGUMENT, "logits is empty", Sampler().sample({}, {}));
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(greedy_takes_the_best_and_the_lower_of_two),
      cmocka_unit_test(draws_follow_the_softmax),
      cmocka_unit_test(top_k_keeps_k_and_the_lower_of_equals),
      cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
      cmocka_unit_test(top_p_is_the_same_over_a_large_vocabulary),
      cmocka_unit_test(min_p_drops_what_is_far_below_the_best),
      cmocka_unit_test(repetition_is_penalised_once_within_the_window),
      cmocka_unit_test(broken_logits_still_give_a_token),
      cmocka_unit_test(the_same_state_gives_the_same_tokens),
      cmocka_unit_test(a_warm_sampler_allocates_nothing),
      cmocka_unit_test(bad_parameters_are_refused_by_name),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
