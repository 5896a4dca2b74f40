// What picking a token costs a decode step, by the size of the vocabulary and what is asked for: one thread, but for the
// log-probability, logits as a step has just written them. One JSON object per line. What is drawn is checked against tests' plain sampler
// (sampler_test).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "src/memory/workers.h"
#include "src/sampling/sampler.h"
#include "tests/bench/help.h"

using namespace wi;

namespace {

constexpr const char* kUsage =
    "sample_bench: [--vocab N] [--deviation D] [--rounds N]\n"
    "Times the sampler over logits of a normal distribution and one that is 4 deviations above their "
    "highest:\n"
    "greedy, by temperature, and with each cut; and the log-probability that every token's event has.\n"
    "  --vocab N      logits; without it 32000 and 128256\n"
    "  --deviation D  of logits: 3 is like a model's; with 0.5 nearly all tokens are as likely\n"
    "  --rounds N     the median of so many (301)\n"
    "  --threads N    of the log-probability (1)\n"
    "Example: sample_bench --vocab 151936\n";

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> cases() {
  SamplingParams params;
  std::vector<Case> all = {{"greedy", params}};
  const auto warm = [&](const char* name, auto change) {
    SamplingParams with;
    with.temperature = 0.8f;
    change(with);
    all.push_back({name, with});
  };
  warm("temperature", [](SamplingParams&) {});
  warm("top_k 40", [](SamplingParams& p) { p.top_k = 40; });
  warm("top_p 0.95", [](SamplingParams& p) { p.top_p = 0.95f; });
  warm("min_p 0.05", [](SamplingParams& p) { p.min_p = 0.05f; });
  warm("top_k 40, top_p 0.95, penalty", [](SamplingParams& p) {
    p.top_k = 40;
    p.top_p = 0.95f;
    p.repetition_penalty = 1.1f;
  });
  return all;
}

template <class Work>
double median_us(int rounds, Work&& work) {
  std::vector<double> us;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(us.begin(), us.begin() + rounds / 2, us.end());
  return us[static_cast<size_t>(rounds) / 2];
}

void run(size_t vocab, float deviation, int rounds, int threads) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  logits[vocab / 3] = *std::max_element(logits.begin(), logits.end()) + 4 * deviation;
  const auto print = [&](const char* name, double us) {
    std::printf("{\"vocab\": %zu, \"deviation\": %g, \"sampling\": \"%s\", \"us\": %.1f}\n", vocab,
                static_cast<double>(deviation), name, us);
  };
  for (const Case& one : cases()) {
    Sampler sampler(one.params);
    SamplerScratch scratch;
    print(one.name, median_us(rounds, [&] {
            scratch.recent.assign({1, 5, 9, static_cast<int32_t>(vocab / 3)});
            sampler.set_state(sampler.sample(logits, scratch).state);
          }));
  }
  volatile double sink = 0;
  Workers workers(threads);
  print("log-probability", median_us(rounds, [&] {
          workers.run(nullptr, [&](const Stream& stream) {
            sink = cpu_backend().log_sum_exp(stream, logits.data(), static_cast<int64_t>(vocab));
          });
        }));
}

}  // namespace

int main(int count, char** words) {
  answer_help(count, words, kUsage);
  std::vector<size_t> vocabs = {32000, 128256};
  float deviation = 3;
  int rounds = 301, threads = 1;
  for (int i = 1; i < count; i += 2) {
    const char* const value = i + 1 < count ? words[i + 1] : "";
    const double number = std::atof(value);
    if (!std::strcmp(words[i], "--vocab") && number >= 1)
      vocabs = {static_cast<size_t>(number)};
    else if (!std::strcmp(words[i], "--deviation") && number > 0)
      deviation = static_cast<float>(number);
    else if (!std::strcmp(words[i], "--rounds") && number >= 1)
      rounds = static_cast<int>(number);
    else if (!std::strcmp(words[i], "--threads") && number >= 1)
      threads = static_cast<int>(number);
    else
      return std::fprintf(stderr, "sample_bench: %s %s is not understood\n%s", words[i], value, kUsage), 1;
  }
  for (const size_t vocab : vocabs) run(vocab, deviation, rounds, threads);
  return 0;
}
