// Tokens that the CUDA kernels pick, on random logits and settings, against the CPU's sampler: the same ones. And what they
// say of a row's log-probabilities.
#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/cuda/cuda.h"
#include "src/sampling/logprob.h"
#include "src/sampling/sampler.h"
#include "tests/support/device_memory.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

using Logits = std::vector<float>;

// What the device says of rows of as many logits each.
std::vector<SampledRow> sampled(DeviceStream& stream, const std::vector<Logits>& rows,
                                const std::vector<SamplingRow>& by) {
  Logits all;
  for (const Logits& row : rows) all.insert(all.end(), row.begin(), row.end());
  const auto count = static_cast<int64_t>(rows.size()), vocab = static_cast<int64_t>(rows[0].size());
  const DeviceArray<float> logits(stream, all);
  const DeviceArray<SamplingRow> by_there(stream, by);
  const DeviceArray<std::byte> workspace(stream, cuda::sample_workspace(count, vocab));
  const DeviceArray<SampledRow> out(stream, rows.size());
  assert_cuda(cuda::sample(stream, {logits, count, vocab, by_there, out}, workspace));
  return out.to_host();
}

bool has_a_token(const Logits& logits) {
  return std::any_of(logits.begin(), logits.end(), [](float logit) { return logit > -kInf; });
}
float best_of(const Logits& logits) {
  float best = -kInf;
  for (const float logit : logits) best = logit > best ? logit : best;
  return best;
}
uint64_t weight_at_one(const Logits& logits) {
  std::vector<uint64_t> weights(logits.size());
  token_weights(logits.data(), static_cast<int64_t>(logits.size()), best_of(logits), 1, weights.data());
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

// Also with ties, at the cuts too, and with numbers that are none.
Logits random_logits(size_t count, std::mt19937_64& random) {
  constexpr float kSpreads[] = {0.01f, 1, 3, 10, 0}, kBroken[] = {kNan, -kInf, -0.0f, 0, -3e38f, 3e38f, kInf};
  const float spread = kSpreads[random() % 5];
  Logits logits = random_floats(count, random);
  const bool ties = random() % 2;
  for (float& logit : logits) logit = ties ? std::round(logit * spread * 2) / 2 : logit * spread;
  for (uint64_t broken = random() % 4; broken > 0; --broken) logits[random() % count] = kBroken[random() % 7];
  if (random() % 12 == 0)  // all but a few are ruled out
    for (float& logit : logits)
      if (random() % 50) logit = random() % 2 ? -kInf : kNan;
  return logits;
}

SamplingParams random_settings(std::mt19937_64& random) {
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  SamplingParams params;
  params.temperature = one_of({0, 1e-40f, 0.01f, 0.7f, 1, 1, 5, 1e6f, 3e38f});
  params.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 5, 40, 999, 5000}));
  params.top_p = one_of({1, 1, 0.999f, 0.9f, 0.5f, 0.01f, 1e-7f, 0});
  params.min_p = one_of({0, 0, 1e-20f, 1e-6f, 0.05f, 0.5f, 1});
  params.seed = random();
  return params;
}

// Rows of a batch, each with settings of its own, as the CPU's sampler picks them one by one.
void check_rows(DeviceStream& stream, size_t rows, size_t vocab, std::mt19937_64& random) {
  std::vector<Logits> logits;
  std::vector<Sampler> samplers;
  std::vector<SamplingRow> by;
  for (size_t row = 0; row < rows; ++row) {
    logits.push_back(random_logits(vocab, random));
    samplers.emplace_back(random_settings(random));
    by.push_back(samplers.back().for_device().row);
  }
  const std::vector<SampledRow> out = sampled(stream, logits, by);
  SamplerScratch scratch;
  for (size_t row = 0; row < rows; ++row) {
    if (!has_a_token(logits[row])) {
      assert_int_equal(out[row].token, -1);
      assert_true(out[row].best == -kInf);
      continue;
    }
    const SamplingParams& params = samplers[row].params();
    const Sampler::Choice want = samplers[row].sample(logits[row], scratch);
    if (out[row].token != want.token)
      fail_because(
          "row %zu of %zu, %zu logits, temperature %g, top_k %d, top_p %g, min_p %g: %d, the CPU's %d", row,
          rows, vocab, double{params.temperature}, params.top_k, double{params.top_p}, double{params.min_p},
          out[row].token, want.token);
    assert_true(samplers[row].for_device().state == want.state);
    const float best = best_of(logits[row]);
    assert_true(out[row].best == best);
    if (std::isfinite(best)) assert_true(out[row].sum == weight_at_one(logits[row]));
  }
}

void picks_the_token_that_the_cpu_picks(void**) {
  const uint64_t shapes = few_or(40u, 250u);
  for (uint64_t shape = 0; shape < shapes; ++shape) {
    std::mt19937_64 random(seed() * 1000 + shape);
    cuda_emulation::reset(random());
    {
      DeviceStream stream;
      const size_t most = random() % 4 ? 700 : 6000;
      check_rows(stream, 1 + random() % 3, 1 + random() % most, random);
    }
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

// A block of threads has several of a row's blocks of logits to each thread.
void picks_of_large_vocabularies_as_the_cpu(void**) {
  for (const size_t vocab : some_of<size_t>({128'256, 151'936, 260'000, 262'145 + 17})) {
    std::mt19937_64 random(seed() + vocab);
    cuda_emulation::reset(random());
    {
      DeviceStream stream;
      check_rows(stream, few_or(2u, 5u), vocab, random);
    }
    assert_string_equal(cuda_emulation::report().c_str(), "");
  }
}

// As many logits as a model may have, which weigh as much as they can: 2^63 together.
void picks_of_the_largest_vocabulary_as_the_cpu(void**) {
  const std::vector<Logits> logits = {Logits(size_t{kMostWeighed}, 1.0f)};
  SamplingParams settings[3];
  settings[1].top_p = 0.5f;
  settings[2].top_k = kMostWeighed / 2, settings[2].top_p = 0.999f;
  SamplerScratch scratch;
  for (SamplingParams& params : std::span(settings).last(few_or(1u, 3u))) {
    params.temperature = 1;
    params.seed = seed();
    DeviceStream stream;
    const Sampler sampler(params);
    const SampledRow out = sampled(stream, logits, {sampler.for_device().row})[0];
    assert_int_equal(out.token, sampler.sample(logits[0], scratch).token);
    assert_true(out.sum == kBestWeight * uint64_t{kMostWeighed});
  }
}

// Many random numbers for one row: each of the tokens that a cut leaves comes, and at the same numbers.
void draws_what_the_cpu_draws_from_what_is_left(void**) {
  std::mt19937_64 random(seed());
  Logits logits = random_floats(700, random);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;
  SamplingParams settings[4];
  settings[1].top_k = 7;
  settings[2].top_p = 0.6f;
  settings[3].top_k = 30, settings[3].min_p = 0.3f, settings[3].top_p = 0.9f;
  for (SamplingParams& params : settings) {
    params.temperature = 2;
    DeviceStream stream;
    constexpr size_t kRows = 40;
    std::vector<SamplingRow> by;
    std::vector<int32_t> want;
    SamplerScratch scratch;
    Sampler sampler(params);
    for (size_t i = 0; i < kRows; ++i) {
      sampler.set_state(random());
      by.push_back(sampler.for_device().row);
      want.push_back(sampler.sample(logits, scratch).token);
    }
    const std::vector<SampledRow> out = sampled(stream, std::vector<Logits>(kRows, logits), by);
    for (size_t i = 0; i < kRows; ++i) assert_int_equal(out[i].token, want[i]);
    std::sort(want.begin(), want.end());
    assert_true(std::unique(want.begin(), want.end()) - want.begin() >= 3);
  }
}

// Beside a best logit of 0 a row's sum is that and the other's weight: every bit of it.
void weights_are_the_cpus_to_the_bit(void**) {
  std::mt19937_64 random(seed());
  Logits others = {0, -0.0f, kNan, -kInf, -3e38f, -29.2f, -29.0f, -31, -1e-30f, -1e-42f};
  const size_t count = few_or(60u, 300u);
  while (others.size() < count) others.push_back(-std::uniform_real_distribution<float>(0, 32)(random));
  std::vector<Logits> rows;
  for (const float other : others) rows.push_back({0, other});
  DeviceStream stream;
  const std::vector<SampledRow> out = sampled(stream, rows, std::vector<SamplingRow>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    uint64_t want = 0;
    token_weights(&others[i], 1, 0, 1, &want);
    if (out[i].sum - kBestWeight != want)
      fail_because("a logit of %.9g weighs %llu, the CPU's %llu", static_cast<double>(others[i]),
                   static_cast<unsigned long long>(out[i].sum - kBestWeight),
                   static_cast<unsigned long long>(want));
  }
}

// Off by the rounding of differences to f32, and by half of 2^-41 for each logit. The CPU's own sum is of f32 numbers.
void log_probabilities_are_the_models(void**) {
  std::mt19937_64 random(seed());
  for (const size_t vocab : some_of<size_t>({1, 2, 300, 5000, 40'000}))
    for (const float spread : {0.01f, 2.0f, 12.0f}) {
      Logits logits = random_floats(vocab, random);
      for (float& logit : logits) logit *= spread;
      logits[random() % vocab] += spread;
      DeviceStream stream;
      const SampledRow out = sampled(stream, {logits}, {{}})[0];
      assert_int_equal(out.token, -1);  // nobody asked
      double sum = 0;
      const double best = best_of(logits);
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
      const double want = best + std::log(sum), found = log_sum_of(out);
      if (!(std::abs(found - want) <= 1e-6))
        fail_because("%zu logits: log sum %.9f, is %.9f", vocab, found, want);
      with_workers(1, [&](const Stream& host) {
        const double here = cpu_backend().log_sum_exp(host, logits.data(), static_cast<int64_t>(vocab));
        assert_true(std::abs(found - here) <= 2e-6);
      });
    }
}

void infinite_logits_are_as_the_cpus(void**) {
  DeviceStream stream;
  const Logits all = {1, kInf, 2, kInf, kNan}, none = {-kInf, kNan, -kInf, kNan, -kInf};
  const std::vector<SampledRow> out = sampled(stream, {all, none}, std::vector<SamplingRow>(2, {.picks = 1}));
  assert_int_equal(out[0].token, 1);
  assert_int_equal(out[1].token, -1);
  assert_true(log_probability(all[1], log_sum_of(out[0])) == 0);
  assert_true(log_probability(all[0], log_sum_of(out[0])) == -kInf);
  assert_true(log_sum_of(out[1]) == -kInf);
}

// A host's bias, callback or penalty changes logits that the device has not seen.
void what_the_host_has_a_say_in_is_not_picked(void**) {
  SamplingParams plain;
  plain.temperature = 1;
  assert_int_equal(Sampler(plain).for_device().row.picks, 1);
  SamplingParams changed[3] = {plain, plain, plain};
  changed[0].logit_bias = {{0, 1}};
  changed[1].logits_callback = [](void*, float*, uint64_t) { return 0; };
  changed[2].repetition_penalty = 1.1f;
  for (const SamplingParams& params : changed) {
    const Sampler sampler(params);
    assert_int_equal(sampler.for_device().row.picks, 0);
    assert_true(sampler.for_device().state == sampler.state());
  }
}

void what_cannot_be_sampled_is_refused(void**) {
  DeviceStream stream;
  for (const int64_t vocab : {int64_t{0}, kMostWeighed + 1})
    assert_true(cuda::sample(stream, {nullptr, 1, vocab, nullptr, nullptr}, nullptr) ==
                cudaErrorInvalidValue);
  assert_cuda(cuda::sample(stream, {nullptr, 0, 5, nullptr, nullptr}, nullptr));  // no rows are no error
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(picks_the_token_that_the_cpu_picks),
      cmocka_unit_test(picks_of_large_vocabularies_as_the_cpu),
      cmocka_unit_test(picks_of_the_largest_vocabulary_as_the_cpu),
      cmocka_unit_test(draws_what_the_cpu_draws_from_what_is_left),
      cmocka_unit_test(weights_are_the_cpus_to_the_bit),
      cmocka_unit_test(log_probabilities_are_the_models),
      cmocka_unit_test(infinite_logits_are_as_the_cpus),
      cmocka_unit_test(what_the_host_has_a_say_in_is_not_picked),
      cmocka_unit_test(what_cannot_be_sampled_is_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
