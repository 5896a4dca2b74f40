// Bias and callback, repetition penalty, temperature, top-k, min-p and top-p in that order, over one array of
// (logit, token). Ties go to the lower token, NaN is never picked.
#include "src/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace wi {
namespace {

using Candidate = std::pair<float, int32_t>;
using Candidates = std::vector<Candidate>;

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool better(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

std::span<const float> change(std::span<const float> logits, const SamplingParams& params,
                              std::vector<float>& changed);
Candidate best_of(std::span<const float> logits);
void penalise(Candidates& candidates, std::span<const float> logits, std::span<const int32_t> recent,
              float penalty);
void keep_best(Candidates& candidates, int32_t top_k);
void to_weights(Candidates& candidates, float best, float temperature);
void keep_nucleus(Candidates& candidates, float top_p);
double total(const Candidates& candidates);
double next_uniform(uint64_t& state);

}  // namespace

Sampler::Sampler(const SamplingParams& params)
    : params_(std::make_shared<const SamplingParams>(params)), state_(params.seed) {
  check_sampling(params, WI_E_ARGUMENT, "");
}

void check_sampling(const SamplingParams& params, wi_status code, const char* prefix) {
  const auto in = [](float value, float low, float high) { return value >= low && value <= high; };
  constexpr float kMost = std::numeric_limits<float>::max();
  check(in(params.temperature, 0, kMost), code, prefix, "temperature is ", params.temperature,
        ", must be 0 or more");
  check(params.top_k >= 0, code, prefix, "top_k is ", params.top_k, ", must be 0 or more");
  check(in(params.top_p, 0, 1), code, prefix, "top_p is ", params.top_p, ", must be in [0, 1]");
  check(in(params.min_p, 0, 1), code, prefix, "min_p is ", params.min_p, ", must be in [0, 1]");
  check(in(params.repetition_penalty, 0, kMost) && params.repetition_penalty > 0, code, prefix,
        "repetition_penalty is ", params.repetition_penalty, ", must be above 0");
  check(params.repetition_window >= 0, code, prefix, "repetition_window is ", params.repetition_window,
        ", must be 0 or more");
  check(params.top_logprobs >= 0 && params.top_logprobs <= kMostTopLogprobs, code, prefix, "top_logprobs is ",
        params.top_logprobs, ", must be in [0, ", kMostTopLogprobs, "]");
  for (size_t i = 0; i < params.logit_bias.size(); ++i)
    check(!std::isnan(params.logit_bias[i].bias), code, prefix, "logit_bias[", i, "].bias is NaN");
}

Sampler::Choice Sampler::sample(std::span<const float> logits, SamplerScratch& scratch) const {
  check(!logits.empty(), WI_E_ARGUMENT, "logits is empty");
  const SamplingParams& params = *params_;
  const std::span<const float> changed = change(logits, params, scratch.logits);
  Candidate best = best_of(changed);
  if (best.first == kNever) [[unlikely]] {
    check(best_of(logits).first == kNever, WI_E_STATE,
          "no token is left to sample: logit_bias or logits_callback forbid all ", logits.size());
    fail(WI_E_STATE, "no token is left to sample: all ", logits.size(), " logits are NaN or -infinity");
  }
  if (params.temperature <= 0 && params.repetition_penalty == 1) return {best.second, state_};

  Candidates& candidates = scratch.candidates;
  candidates.resize(changed.size());
  for (size_t i = 0; i < changed.size(); ++i)
    candidates[i] = {std::isnan(changed[i]) ? kNever : changed[i], static_cast<int32_t>(i)};
  if (params.repetition_penalty != 1) {
    penalise(candidates, changed, scratch.recent, params.repetition_penalty);
    best = *std::min_element(candidates.begin(), candidates.end(), better);
  }
  if (params.temperature <= 0) return {best.second, state_};

  keep_best(candidates, params.top_k);
  to_weights(candidates, best.first, params.temperature);
  const float floor = params.min_p;
  std::erase_if(candidates, [&](const Candidate& one) { return one.first <= 0 || one.first < floor; });
  keep_nucleus(candidates, params.top_p);
  uint64_t state = state_;
  double left = next_uniform(state) * total(candidates);
  for (const Candidate& candidate : candidates) {
    left -= static_cast<double>(candidate.first);
    if (left < 0) return {candidate.second, state};
  }
  return {candidates.back().second, state};
}

namespace {

// The host has the last word: its callback sees the bias, and what it writes goes on to the penalty.
std::span<const float> change(std::span<const float> logits, const SamplingParams& params,
                              std::vector<float>& changed) {
  if (params.logit_bias.empty() && !params.logits_callback) return logits;
  changed.assign(logits.begin(), logits.end());
  for (const wi_logit_bias& one : params.logit_bias)
    if (static_cast<size_t>(one.token) < changed.size()) changed[static_cast<size_t>(one.token)] += one.bias;
  if (params.logits_callback) {
    const int32_t ended = params.logits_callback(params.logits_user, changed.data(), changed.size());
    check(ended == 0, WI_E_CANCELLED, "logits_callback returned ", ended);
  }
  return changed;
}

Candidate best_of(std::span<const float> logits) {
  Candidate best{kNever, -1};
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > best.first) best = {logits[i], static_cast<int32_t>(i)};
  return best;
}

// Once for each token that occurs, however often (CTRL's rule): one that no longer equals its logit is done.
void penalise(Candidates& candidates, std::span<const float> logits, std::span<const int32_t> recent,
              float penalty) {
  for (int32_t token : recent) {
    if (token < 0 || static_cast<size_t>(token) >= candidates.size()) continue;
    float& logit = candidates[static_cast<size_t>(token)].first;
    if (logit != logits[static_cast<size_t>(token)]) continue;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void keep_best(Candidates& candidates, int32_t top_k) {
  if (top_k == 0 || static_cast<size_t>(top_k) >= candidates.size()) return;
  const auto end = candidates.begin() + top_k;
  std::nth_element(candidates.begin(), end, candidates.end(), better);
  candidates.erase(end, candidates.end());
  std::sort(candidates.begin(), candidates.end(), better);  // nth_element's own order is no standard's
}

// e^x for x up to 0, the same bits on every machine: libm's differ in the last one with what the processor
// has, and that may be another token.
float exp_below(float x) {
  if (!(x > -104)) return 0;                                          // less than f32's smallest number
  const double scaled = static_cast<double>(x) * 1.4426950408889634;  // x / ln 2
  const auto exponent = static_cast<int32_t>(scaled - 0.5);           // rounded, as it is negative
  const double r = (scaled - exponent) * 0.6931471805599453;          // |r| at most ln 2 / 2
  double sum = 1;                                                     // Taylor's series, to 1e-11
  for (int n = 9; n >= 1; --n) sum = 1 + sum * r / n;
  return static_cast<float>(sum * std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52));
}

// Logits to exp((logit - best) / temperature): the best weighs 1.
void to_weights(Candidates& candidates, float best, float temperature) {
  // With an infinite best, only those that equal it count.
  for (Candidate& one : candidates)
    one.first = std::isfinite(best) ? exp_below((one.first - best) / temperature)
                                    : static_cast<float>(one.first == best);
}

// The fewest best candidates that hold top_p of the weight. They are few as a rule, so ever longer prefixes
// are sorted until one is enough, not the whole vocabulary.
void keep_nucleus(Candidates& candidates, float top_p) {
  if (top_p >= 1) return;
  const double wanted = top_p * total(candidates);
  for (size_t sorted = 64;; sorted *= 8) {
    const size_t count = std::min(sorted, candidates.size());
    const auto end = candidates.begin() + static_cast<ptrdiff_t>(count);
    std::partial_sort(candidates.begin(), end, candidates.end(), better);
    double reached = 0;
    size_t kept = 0;
    while (kept < count && (kept == 0 || reached < wanted)) reached += candidates[kept++].first;
    if (reached < wanted && count < candidates.size()) continue;
    candidates.resize(kept);
    return;
  }
}

double total(const Candidates& candidates) {
  double sum = 0;
  for (const Candidate& one : candidates) sum += static_cast<double>(one.first);
  return sum;
}

// splitmix64: its whole state is one word, which a session saves.
double next_uniform(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace
}  // namespace wi
