// The sampler's cuts, its distribution against the softmax, ties, broken logits, and that it allocates once.
#include "src/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <random>

#include "kernels/token_weights.h"
#include "src/sampling/sampler_fields.h"
#include "src/tokenizer/vocabulary.h"
#include "tests/support/fewer.h"
#include "tests/support/kernels.h"
#include "tests/test.h"

namespace {
size_t allocations = 0;
}
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace wi {
namespace {

using Logits = std::vector<float>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr int kDraws = 20'000;

// Takes the token, as a session does.
int32_t next(Sampler& sampler, const Logits& logits, const std::vector<int32_t>& recent = {}) {
  static SamplerScratch scratch;
  const size_t window = std::min(recent.size(), static_cast<size_t>(sampler.looks_back()));
  scratch.recent.assign(recent.end() - static_cast<std::ptrdiff_t>(window), recent.end());
  const Sampler::Choice choice = sampler.sample(logits, scratch);
  sampler.set_state(choice.state);
  return choice.token;
}

int32_t next(const SamplingParams& params, const Logits& logits, const std::vector<int32_t>& recent = {}) {
  Sampler sampler(params);
  return next(sampler, logits, recent);
}

std::vector<int> draw(const SamplingParams& params, const Logits& logits,
                      const std::vector<int32_t>& recent = {}) {
  Sampler sampler(params);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(next(sampler, logits, recent))];
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
  assert_int_equal(next({}, {1, 3, 2, 3}), 1);
  assert_int_equal(next({}, {kNan, -5, kNan}), 1);
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
  for (int i = 0; i < 1000; ++i) assert_true(kept[static_cast<size_t>(next(sampler, logits))]);
}

// As many logits as a model may have, which weigh as much as they can; a cut leaves the lower half.
void the_largest_vocabulary_is_drawn_from(void**) {
  const Logits logits(size_t{kMostWeighed}, 1.0f);
  assert_true(kMostWeighed >= limits::kVocab);
  const auto in_lower_half = [&](const SamplingParams& params, int draws) {
    Sampler sampler(params);
    int lower = 0;
    for (int i = 0; i < draws; ++i) lower += next(sampler, logits) < kMostWeighed / 2;
    return lower;
  };
  const int lower = in_lower_half(warm(), 60);
  assert_true(lower > 0 && lower < 60);
  SamplingParams half = warm();
  half.top_p = 0.5f;
  assert_int_equal(in_lower_half(half, 6), 6);
  half = warm();
  half.top_k = kMostWeighed / 2;
  assert_int_equal(in_lower_half(half, 6), 6);
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

// ---- a plain sampler ----

// Sorts all tokens, cuts one after the other, and draws as the sampler does: from whole weights, in order of tokens.
int32_t plain_choice(const SamplingParams& params, const Logits& logits) {
  struct Token {
    float logit;
    int32_t id;
    uint64_t weight;
  };
  std::vector<Token> tokens;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -kInf) tokens.push_back({logits[i], static_cast<int32_t>(i), 0});
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  const auto top_k = static_cast<size_t>(params.top_k);
  if (top_k > 0 && top_k < tokens.size()) tokens.resize(top_k);
  for (Token& token : tokens)
    token_weights(&token.logit, 1, tokens[0].logit, params.temperature, &token.weight);
  const double least = static_cast<double>(params.min_p) * static_cast<double>(kBestWeight);
  std::erase_if(tokens, [&](const Token& token) {
    return token.weight == 0 || static_cast<double>(token.weight) < least;
  });
  const auto sum = [&] {
    uint64_t all = 0;
    for (const Token& token : tokens) all += token.weight;
    return all;
  };
  const double wanted = std::ceil(static_cast<double>(params.top_p) * static_cast<double>(sum()));
  uint64_t reached = 0;
  size_t kept = 0;
  while (kept < tokens.size() && (kept == 0 || static_cast<double>(reached) < wanted))
    reached += tokens[kept++].weight;
  tokens.resize(kept);
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  uint64_t z = params.seed + 0x9E3779B97F4A7C15u;  // splitmix64's first
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  __extension__ using Wide = unsigned __int128;
  auto left = static_cast<uint64_t>(static_cast<Wide>(z) * sum() >> 64);
  for (const Token& token : tokens) {
    if (left < token.weight) return token.id;
    left -= token.weight;
  }
  return -1;
}

void cuts_are_those_of_a_sampler_that_sorts_everything(void**) {
  std::mt19937_64 random(test::seed());
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  const int cases = test::few_or(300, 3000);
  for (int i = 0; i < cases; ++i) {
    Logits logits(1 + random() % (random() % 8 ? 1500 : 40));
    const float deviation = one_of({0.01f, 1, 3, 10});
    for (float& logit : logits) logit = std::normal_distribution<float>(0, deviation)(random);
    if (random() % 2)  // ties, also at the cuts
      for (float& logit : logits) logit = std::round(logit * 2) / 2;
    for (uint64_t broken = random() % 4; broken > 0; --broken)
      logits[random() % logits.size()] = one_of({kNan, -kInf, -0.0f, 0, -3e38f, 3e38f, kInf});
    if (std::none_of(logits.begin(), logits.end(), [](float logit) { return logit > -kInf; })) continue;
    SamplingParams params;
    params.temperature = one_of({0.01f, 0.7f, 1, 5, 1e6f});
    params.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 5, 40, 999, 5000}));
    params.top_p = one_of({1, 1, 0.999f, 0.9f, 0.5f, 0.01f, 0});
    params.min_p = one_of({0, 0, 1e-6f, 0.05f, 0.5f, 1});
    params.seed = random();
    if (next(params, logits) != plain_choice(params, logits)) {
      print_error("case %d: %zu logits, temperature %g, top_k %d, top_p %g, min_p %g: %d, want %d\n", i,
                  logits.size(), double{params.temperature}, params.top_k, double{params.top_p},
                  double{params.min_p}, next(params, logits), plain_choice(params, logits));
      _fail(__FILE__, __LINE__);
    }
  }
}

// Off by at most 1e-8 of itself (the series) and one half (rounding); x, rounded to f32, is what both weigh.
void weights_are_exponentials_and_the_same_for_every_instruction_set(void**) {
  std::mt19937_64 random(test::seed());
  Logits logits = {0, -0.0f, kNan, -kInf, -3e38f, -29.2f, -29.0f, -31, -1e-30f};
  while (logits.size() < 700) logits.push_back(-std::uniform_real_distribution<float>(0, 33)(random));
  for (const float temperature : {1.0f, 0.3f, 40.0f}) {
    const auto count = static_cast<int64_t>(logits.size());
    const auto blocks = static_cast<size_t>(logit_blocks(count));
    std::vector<uint64_t> weights(logits.size()), sums(blocks);
    std::vector<float> bests(blocks);
    token_weights(logits.data(), count, 0, temperature, weights.data());
    best_of_blocks(logits.data(), count, bests.data());
    for (size_t i = 0; i < logits.size(); ++i) {
      const double x = static_cast<double>(logits[i] / temperature);
      const double want = std::isnan(x) ? 0 : static_cast<double>(kBestWeight) * std::exp(x);
      assert_true(std::abs(static_cast<double>(weights[i]) - want) <= 0.5 + 1e-8 * want);
      uint64_t alone = 0;
      token_weights(&logits[i], 1, 0, temperature, &alone);
      assert_true(alone == weights[i]);
    }
    for (size_t block = 0; block < blocks; ++block) {
      const size_t first = block * kLogitBlock, end = std::min(first + kLogitBlock, logits.size());
      float best = -kInf;
      for (size_t i = first; i < end; ++i) {
        if (logits[i] > best) best = logits[i];
        sums[block] += weights[i];
      }
      assert_true(bests[block] == best);
    }
    test::for_each_simd([&](const char*) {
      std::vector<uint64_t> here(logits.size()), sums_here(blocks);
      std::vector<float> bests_here(blocks);
      token_weights(logits.data(), count, 0, temperature, here.data());
      best_of_blocks(logits.data(), count, bests_here.data());
      weights_of_blocks(logits.data(), count, bests_here.data(), 0, temperature, sums_here.data());
      assert_true(here == weights && sums_here == sums && bests_here == bests);
    });
  }
  const Logits infinite = {kInf, 5, kInf, kNan};
  uint64_t weights[4];
  token_weights(infinite.data(), 4, kInf, 1, weights);
  assert_true(weights[0] == kBestWeight && weights[1] == 0 && weights[2] == kBestWeight && weights[3] == 0);
}

void broken_logits_still_give_a_token(void**) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params = warm(temperature);
    params.top_p = 0.9f;
    params.min_p = 0.1f;
    params.repetition_penalty = 1.5f;
    for (const Logits& logits : {Logits{kInf, kNan}, Logits{1e38f, -1e38f}, Logits{0}}) {
      const int32_t token = next(params, logits, {0, 1});
      assert_in_range(token, 0, logits.size() - 1);
    }
  }
  expect_shares(draw(warm(), {kNan, 0, kNan, 0}), {0, 1, 0, 1});
  expect_shares(draw(warm(), {kInf, 5, kInf}), {1, 0, 1});
}

int32_t forbid_all(void*, float* logits, uint64_t vocab) {
  std::fill_n(logits, vocab, -kInf);
  return 0;
}

void no_token_left_is_an_error_that_says_whose(void**) {
  for (float temperature : {0.0f, 1.0f}) {
    const SamplingParams params = warm(temperature);
    for (const Logits& logits : {Logits{kNan, kNan}, Logits{-kInf, -kInf}, Logits{-kInf, kNan}})
      assert_error(WI_E_STATE, "all 2 logits are NaN or -infinity", next(params, logits));
    SamplingParams biased = params;
    biased.logit_bias = {{0, -kInf}, {1, -kInf}};
    assert_error(WI_E_STATE, "logit_bias or logits_callback forbid all 2", next(biased, {1, 2}));
    assert_int_equal(next(biased, {1, 2, -9}), 2);
    biased.logit_bias.clear();
    biased.logits_callback = forbid_all;
    assert_error(WI_E_STATE, "logit_bias or logits_callback forbid all 2", next(biased, {1, 2}));
  }
}

void bias_adds_up_and_shows_in_the_shares(void**) {
  SamplingParams params = warm();
  params.logit_bias = {{2, 0.5f}, {0, -kInf}, {2, 0.5f}};
  expect_shares(draw(params, {3, 1, 0, 1}), {0, 1, 1, 1});
  params.temperature = 0;
  params.logit_bias = {{1, 100}};
  assert_int_equal(next(params, {3, 1, 0, 1}), 1);
}

// The callback sees the bias, and the penalty what it wrote.
void the_callback_comes_after_bias_and_before_penalty(void**) {
  struct Seen {
    Logits logits;
    int32_t answer;
  } seen{{}, 0};
  SamplingParams params;
  params.logit_bias = {{0, 2}};
  params.repetition_penalty = 4;
  params.logits_user = &seen;
  params.logits_callback = [](void* user, float* logits, uint64_t vocab) {
    auto* self = static_cast<Seen*>(user);
    self->logits.assign(logits, logits + vocab);
    logits[1] = 8;
    return self->answer;
  };
  const Logits logits = {1, 0, 2.5f};
  assert_int_equal(next(params, logits, {1}), 0);  // 3 against 8 / 4
  assert_true((seen.logits == Logits{3, 0, 2.5f}));
  assert_true((logits == Logits{1, 0, 2.5f}));
  assert_int_equal(next(params, logits), 1);
  seen.answer = -7;
  assert_error(WI_E_CANCELLED, "logits_callback returned -7", next(params, logits));
}

void sampling_changes_nothing_until_the_token_is_taken(void**) {
  Sampler sampler(warm());
  SamplerScratch scratch;
  const Logits logits = {0, 0.1f, 0.2f, 0.3f, 0.2f, 0.1f};
  for (int i = 0; i < 100; ++i) {
    const auto first = sampler.sample(logits, scratch), second = sampler.sample(logits, scratch);
    assert_int_equal(first.token, second.token);
    assert_true(first.state == second.state && first.state != sampler.state());
    sampler.set_state(first.state);
  }
}

void a_seed_gives_the_same_tokens_on_every_machine(void**) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.seed = 12345;
  Logits logits(1000);
  uint64_t state = 1;
  for (float& logit : logits) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    logit = static_cast<float>(state >> 40) * 0x1p-21f;  // [0, 8)
  }
  test::for_each_simd([&](const char* simd) {
    Sampler sampler(params);
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < 5000; ++i) {
      hash ^= static_cast<uint64_t>(next(sampler, logits));
      hash *= 1099511628211u;
    }
    if (hash != 0xff6b1d30595df8f8u) {
      print_error("%s: %llx\n", simd, static_cast<unsigned long long>(hash));
      _fail(__FILE__, __LINE__);
    }
  });
}

void the_same_state_gives_the_same_tokens(void**) {
  const Logits logits = {0, 0.5f, 1, 0.2f};
  Sampler first(warm()), second(warm());
  for (int i = 0; i < 100; ++i) assert_int_equal(next(first, logits), next(second, logits));
  Sampler later(warm());
  later.set_state(first.state());
  for (int i = 0; i < 100; ++i) assert_int_equal(next(first, logits), next(later, logits));
}

void a_sampler_comes_back_from_its_bytes_and_from_no_others(void**) {
  SamplingParams params = warm(0.7f);
  params.top_k = 3;
  params.top_p = 0.8f;
  params.min_p = 0.01f;
  params.repetition_penalty = 1.25f;
  params.repetition_window = 9;
  params.top_logprobs = 12;
  params.logit_bias = {{1, -kInf}, {3, 0.5f}};
  params.stops = StopStrings({"a", std::string(kLongestStop, 'b'), std::string("\0\xFF", 2)});
  Sampler sampler(params);
  const Logits logits = {1, 2, 3, 2.5f, 2, 1};
  for (int i = 0; i < 7; ++i) next(sampler, logits);
  const std::string bytes = sampler_fields(sampler);
  Sampler back = sampler_of(bytes, 6);
  assert_true(sampler_fields(back) == bytes);
  assert_true(back.params().stops.strings() == params.stops.strings());
  assert_int_equal(back.params().top_logprobs, 12);
  for (int i = 0; i < 50; ++i) assert_int_equal(next(back, logits), next(sampler, logits));

  for (size_t length = 4; length < bytes.size(); ++length)
    assert_error(WI_E_FORMAT, "bytes early", sampler_of(bytes.substr(0, length), 6));
  assert_error(WI_E_FORMAT, "1 bytes too many", sampler_of(bytes + "x", 6));
  assert_error(WI_E_FORMAT, "logit_bias has token 3", sampler_of(bytes, 3));
  const auto with = [&](size_t at, const char* four) { return std::string(bytes).replace(at, 4, four, 4); };
  assert_error(WI_E_UNSUPPORTED, "version 2", sampler_of(with(0, "\2\0\0\0"), 6));
  assert_error(WI_E_FORMAT, "the file's temperature is nan", sampler_of(with(4, "\0\0\xC0\x7F"), 6));
  assert_error(WI_E_FORMAT, "the file's top_logprobs is ", sampler_of(with(28, "\xFF\xFF\xFF\x7F"), 6));
  assert_error(WI_E_FORMAT, "bytes early", sampler_of(with(48, "\xFF\xFF\xFF\x7F"), INT32_MAX));
  assert_error(WI_E_FORMAT, "stop strings", sampler_of(with(68, "\xFF\xFF\xFF\x7F"), 6));
  assert_error(WI_E_FORMAT, "stop string 0 has 2147483647 bytes",
               sampler_of(with(72, "\xFF\xFF\xFF\x7F"), 6));
}

void a_warm_sampler_allocates_nothing(void**) {
  SamplingParams params = warm();
  params.top_k = 50;
  params.top_p = 0.9f;
  params.min_p = 0.01f;
  params.repetition_penalty = 1.1f;
  params.logit_bias = {{7, 1}};
  Sampler sampler(params);
  Logits logits(4096);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 37) * 0.1f;
  const std::vector<int32_t> recent = {1, 2, 3};
  next(sampler, logits, recent);
  const size_t before = allocations;
  for (int i = 0; i < 50; ++i) next(sampler, logits, recent);
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
  assert_error(WI_E_ARGUMENT, "top_logprobs", with([](SamplingParams& p) { p.top_logprobs = -1; }));
  assert_error(WI_E_ARGUMENT, "logit_bias[1].bias is NaN", with([](SamplingParams& p) {
                 p.logit_bias = {{0, 1}, {1, kNan}};
               }));
  assert_error(WI_E_ARGUMENT, "logits is empty", next({}, {}));
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
      cmocka_unit_test(the_largest_vocabulary_is_drawn_from),
      cmocka_unit_test(min_p_drops_what_is_far_below_the_best),
      cmocka_unit_test(repetition_is_penalised_once_within_the_window),
      cmocka_unit_test(cuts_are_those_of_a_sampler_that_sorts_everything),
      cmocka_unit_test(weights_are_exponentials_and_the_same_for_every_instruction_set),
      cmocka_unit_test(broken_logits_still_give_a_token),
      cmocka_unit_test(no_token_left_is_an_error_that_says_whose),
      cmocka_unit_test(bias_adds_up_and_shows_in_the_shares),
      cmocka_unit_test(the_callback_comes_after_bias_and_before_penalty),
      cmocka_unit_test(sampling_changes_nothing_until_the_token_is_taken),
      cmocka_unit_test(a_seed_gives_the_same_tokens_on_every_machine),
      cmocka_unit_test(the_same_state_gives_the_same_tokens),
      cmocka_unit_test(a_sampler_comes_back_from_its_bytes_and_from_no_others),
      cmocka_unit_test(a_warm_sampler_allocates_nothing),
      cmocka_unit_test(bad_parameters_are_refused_by_name),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
