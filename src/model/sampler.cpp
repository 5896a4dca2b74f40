// Repetition penalty, temperature, top-k, min-p and top-p in that order over one array of (logit, token),
// which is all the memory a sampler holds. Ties go to the lower token, NaN is never picked.
#include "src/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/error.h"

namespace wi {
namespace {

using Candidate = std::pair<float, int32_t>;
using Candidates = std::vector<Candidate>;

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool better(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

void penalise(Candidates& candidates, std::span<const float> logits, std::span<const int32_t> recent,
              const SamplingParams& params);
void keep_best(Candidates& candidates, int32_t top_k);
void to_weights(Candidates& candidates, float temperature);
void keep_nucleus(Candidates& candidates, float top_p);
double total(const Candidates& candidates);
double next_uniform(uint64_t& state);

}  // namespace

Sampler::Sampler(const SamplingParams& params) : params_(params), state_(params.seed) {
  const auto in = [](float value, float low, float high) { return value >= low && value <= high; };
  constexpr float kMost = std::numeric_limits<float>::max();
  check(in(params.temperature, 0, kMost), WI_E_ARGUMENT, "temperature is ", params.temperature,
        ", must be 0 or more");
  check(params.top_k >= 0, WI_E_ARGUMENT, "top_k is ", params.top_k, ", must be 0 or more");
  check(in(params.top_p, 0, 1), WI_E_ARGUMENT, "top_p is ", params.top_p, ", must be in [0, 1]");
  check(in(params.min_p, 0, 1), WI_E_ARGUMENT, "min_p is ", params.min_p, ", must be in [0, 1]");
  check(in(params.repetition_penalty, 0, kMost) && params.repetition_penalty > 0, WI_E_ARGUMENT,
        "repetition_penalty is ", params.repetition_penalty, ", must be above 0");
  check(params.repetition_window >= 0, WI_E_ARGUMENT, "repetition_window is ", params.repetition_window,
        ", must be 0 or more");
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> recent) {
  check(!logits.empty(), WI_E_ARGUMENT, "logits is empty");
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_[i] = {std::isnan(logits[i]) ? kNever : logits[i], static_cast<int32_t>(i)};
  penalise(candidates_, logits, recent, params_);
  if (params_.temperature <= 0)
    return std::min_element(candidates_.begin(), candidates_.end(), better)->second;

  keep_best(candidates_, params_.top_k);
  to_weights(candidates_, params_.temperature);
  const float floor = params_.min_p;
  std::erase_if(candidates_, [&](const Candidate& one) { return one.first <= 0 || one.first < floor; });
  keep_nucleus(candidates_, params_.top_p);
  double left = next_uniform(state_) * total(candidates_);
  for (const Candidate& candidate : candidates_) {
    left -= candidate.first;
    if (left < 0) return candidate.second;
  }
  return candidates_.back().second;
}

namespace {

// Once for each token that occurs, however often (CTRL's rule): one that no longer equals its logit is done.
void penalise(Candidates& candidates, std::span<const float> logits, std::span<const int32_t> recent,
              const SamplingParams& params) {
  if (params.repetition_penalty == 1) return;
  for (int32_t token : recent.last(std::min(recent.size(), static_cast<size_t>(params.repetition_window)))) {
    if (token < 0 || static_cast<size_t>(token) >= candidates.size()) continue;
    float& logit = candidates[static_cast<size_t>(token)].first;
    if (logit != logits[static_cast<size_t>(token)]) continue;
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
}

void keep_best(Candidates& candidates, int32_t top_k) {
  if (top_k == 0 || static_cast<size_t>(top_k) >= candidates.size()) return;
  const auto end = candidates.begin() + top_k;
  std::nth_element(candidates.begin(), end, candidates.end(), better);
  candidates.erase(end, candidates.end());
  std::sort(candidates.begin(), candidates.end(), better);  // nth_element's own order is no standard's
}

// Logits to exp((logit - best) / temperature): the best weighs 1.
void to_weights(Candidates& candidates, float temperature) {
  const float best = std::min_element(candidates.begin(), candidates.end(), better)->first;
  // With an infinite best, only those that equal it count.
  for (Candidate& one : candidates)
    one.first = std::isfinite(best) ? std::exp((one.first - best) / temperature)
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
  for (const Candidate& one : candidates) sum += one.first;
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
