// Bias and callback, repetition penalty, temperature, top-k, min-p and top-p in that order. Ties go to the lower token,
// NaN is never picked. Each cut leaves a prefix of the tokens in order of their logits, of which nothing is sorted: where
// it ends is found among the few that may be there. What is left is drawn from in order of tokens; weights are whole
// numbers (kernels/token_weights.h), so that no sum depends on its order.
#include "src/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/token_weights.h"
#include "src/host_process.h"

namespace wi {
namespace {

using Logits = std::span<const float>;

constexpr float kNever = -std::numeric_limits<float>::infinity();

Logits changed_by_host(Logits logits, const SamplingParams& params, std::vector<float>& changed);
Logits penalised(Logits logits, std::vector<int32_t>& recent, float penalty, std::vector<float>& changed);
float best_of(Logits logits, SamplerScratch& scratch);
int32_t first_that_is(float best, Logits logits, const SamplerScratch& scratch);
int32_t draw_from_all(Logits logits, float best, float temperature, uint64_t random, SamplerScratch& scratch);
void take_candidates(Logits logits, float best, const SamplingParams& params, SamplerScratch& scratch);
int32_t draw_from_candidates(uint64_t random, const SamplerScratch& scratch);
uint64_t next_random(uint64_t& state);

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

void check_bias(const SamplingParams& params, int32_t vocab) {
  for (size_t i = 0; i < params.logit_bias.size(); ++i) {
    const int32_t token = params.logit_bias[i].token;
    check(token >= 0 && token < vocab, WI_E_ARGUMENT, "logit_bias[", i, "].token is ", token,
          ", must be in [0, ", vocab, ")");
  }
}

namespace {
bool changes_logits(const SamplingParams& params) {
  return !params.logit_bias.empty() || params.logits_callback || params.repetition_penalty != 1;
}
bool has_cuts(const SamplingParams& params) {
  return params.top_k > 0 || params.min_p > 0 || params.top_p < 1;
}
}  // namespace

void SamplerScratch::reserve(const SamplingParams& params, size_t vocab) {
  const auto blocks = static_cast<size_t>(logit_blocks(static_cast<int64_t>(vocab)));
  bests.reserve(blocks), sums.reserve(blocks), thresholds.reserve(blocks);
  if (changes_logits(params)) logits.reserve(vocab);
  if (params.repetition_penalty != 1)
    recent.reserve(std::min(static_cast<size_t>(params.repetition_window), vocab));
  if (params.temperature <= 0 || !has_cuts(params)) return;
  tokens.reserve(vocab), token_logits.reserve(vocab), weights.reserve(vocab);
  places.reserve(vocab), place_weights.reserve(vocab);
}

Sampler::Choice Sampler::sample(std::span<const float> logits, SamplerScratch& scratch) const {
  check(!logits.empty(), WI_E_ARGUMENT, "logits is empty");
  const SamplingParams& params = *params_;
  scratch.reserve(params, logits.size());
  Logits changed = changed_by_host(logits, params, scratch.logits);
  float best = best_of(changed, scratch);
  if (best == kNever) [[unlikely]] {
    check(best_of(logits, scratch) == kNever, WI_E_STATE,
          "no token is left to sample: logit_bias or logits_callback forbid all ", logits.size());
    fail(WI_E_STATE, "no token is left to sample: all ", logits.size(), " logits are NaN or -infinity");
  }
  if (params.repetition_penalty != 1 && !scratch.recent.empty()) {
    const int32_t unpenalised = first_that_is(best, changed, scratch);
    changed = penalised(changed, scratch.recent, params.repetition_penalty, scratch.logits);
    best = best_of(changed, scratch);
    if (best == kNever) return {unpenalised, state_};  // products that f32 does not hold
  }
  if (params.temperature <= 0) return {first_that_is(best, changed, scratch), state_};

  uint64_t state = state_;
  const uint64_t random = next_random(state);
  if (!has_cuts(params)) return {draw_from_all(changed, best, params.temperature, random, scratch), state};
  take_candidates(changed, best, params, scratch);
  return {draw_from_candidates(random, scratch), state};
}

Sampler::ForDevice Sampler::for_device() const {
  const SamplingParams& params = *params_;
  ForDevice out{{}, state_};
  if (changes_logits(params)) return out;
  out.row.picks = 1;
  if (params.temperature <= 0) return out;
  out.row.temperature = params.temperature;
  out.row.top_k = params.top_k;
  out.row.top_p = params.top_p;
  out.row.lightest = weight_share(params.min_p, kBestWeight);
  out.row.random = next_random(out.state);
  return out;
}

namespace {

int64_t count_of(Logits logits) { return static_cast<int64_t>(logits.size()); }

Logits block_of(Logits logits, size_t block) {
  const size_t first = block * size_t{kLogitBlock};
  return logits.subspan(first, std::min<size_t>(kLogitBlock, logits.size() - first));
}

// The host has the last word: its callback sees the bias, and what it writes goes on to the penalty.
Logits changed_by_host(Logits logits, const SamplingParams& params, std::vector<float>& changed) {
  if (params.logit_bias.empty() && !params.logits_callback) return logits;
  changed.assign(logits.begin(), logits.end());
  for (const wi_logit_bias& one : params.logit_bias)
    if (static_cast<size_t>(one.token) < changed.size()) changed[static_cast<size_t>(one.token)] += one.bias;
  if (params.logits_callback) {
    const DefaultFloats floats;  // the callback may leave others
    const int32_t ended = params.logits_callback(params.logits_user, changed.data(), changed.size());
    check(ended == 0, WI_E_CANCELLED, "logits_callback returned ", ended);
  }
  return changed;
}

// Once for each token that occurs, however often (CTRL's rule).
Logits penalised(Logits logits, std::vector<int32_t>& recent, float penalty, std::vector<float>& changed) {
  if (logits.data() != changed.data()) changed.assign(logits.begin(), logits.end());
  std::sort(recent.begin(), recent.end());
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const int32_t token : recent) {
    if (token < 0 || static_cast<size_t>(token) >= changed.size()) continue;
    float& logit = changed[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return changed;
}

// The highest logit, and each block's in scratch.bests.
float best_of(Logits logits, SamplerScratch& scratch) {
  scratch.bests.resize(static_cast<size_t>(logit_blocks(count_of(logits))));
  best_of_blocks(logits.data(), count_of(logits), scratch.bests.data());
  return *std::max_element(scratch.bests.begin(), scratch.bests.end());
}

int32_t first_that_is(float best, Logits logits, const SamplerScratch& scratch) {
  const auto block = std::find(scratch.bests.begin(), scratch.bests.end(), best) - scratch.bests.begin();
  const auto first = logits.begin() + block * kLogitBlock;
  return static_cast<int32_t>(std::find(first, logits.end(), best) - logits.begin());
}

// ---- drawing ----

uint64_t sum_of(std::span<const uint64_t> weights) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  return sum;
}

// The place of which the weights up to it are the first to exceed `left`, which becomes what is left before it.
size_t place_of(std::span<const uint64_t> weights, uint64_t& left) {
  size_t at = 0;
  while (left >= weights[at]) left -= weights[at++];
  return at;
}

void sum_blocks(Logits logits, float best, float temperature, SamplerScratch& scratch) {
  scratch.sums.resize(scratch.bests.size());
  weights_of_blocks(logits.data(), count_of(logits), scratch.bests.data(), best, temperature,
                    scratch.sums.data());
}

int32_t draw_from_all(Logits logits, float best, float temperature, uint64_t random,
                      SamplerScratch& scratch) {
  sum_blocks(logits, best, temperature, scratch);
  uint64_t left = draw_below(sum_of(scratch.sums), random);
  const size_t block = place_of(scratch.sums, left);
  const Logits of = block_of(logits, block);
  uint64_t weights[kLogitBlock];
  token_weights(of.data(), count_of(of), best, temperature, weights);
  return static_cast<int32_t>(block * size_t{kLogitBlock} + place_of({weights, of.size()}, left));
}

int32_t draw_from_candidates(uint64_t random, const SamplerScratch& scratch) {
  uint64_t left = draw_below(sum_of(scratch.weights), random);
  return scratch.tokens[place_of(scratch.weights, left)];
}

// ---- candidates ----

// Those with at least `least`, which is not -infinity.
void take_from(float least, Logits logits, SamplerScratch& scratch) {
  for (size_t block = 0; block < scratch.bests.size(); ++block) {
    if (scratch.bests[block] < least) continue;
    const Logits of = block_of(logits, block);
    for (size_t i = 0; i < of.size(); ++i) {
      if (!(of[i] >= least)) continue;
      scratch.tokens.push_back(static_cast<int32_t>(block * size_t{kLogitBlock} + i));
      scratch.token_logits.push_back(of[i]);
    }
  }
}

// Those that weigh at least `least`, which is not 0.
void take_heavy(uint64_t least, Logits logits, float best, float temperature, SamplerScratch& scratch) {
  uint64_t weights[kLogitBlock];
  for (size_t block = 0; block < scratch.sums.size(); ++block) {
    if (scratch.sums[block] < least) continue;
    const Logits of = block_of(logits, block);
    token_weights(of.data(), count_of(of), best, temperature, weights);
    for (size_t i = 0; i < of.size(); ++i) {
      if (weights[i] < least) continue;
      scratch.tokens.push_back(static_cast<int32_t>(block * size_t{kLogitBlock} + i));
      scratch.token_logits.push_back(of[i]);
      scratch.weights.push_back(weights[i]);
    }
  }
}

// Below it there are fewer than k, by logits of blocks' bests: none of k best tokens is.
float least_of_best(size_t k, SamplerScratch& scratch) {
  std::vector<float>& best = scratch.thresholds;
  best.assign(scratch.bests.begin(), scratch.bests.end());
  if (k > best.size()) return -std::numeric_limits<float>::max();
  const auto kth = best.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(best.begin(), kth, best.end(), std::greater<>());
  return std::max(*kth, -std::numeric_limits<float>::max());
}

// Logits as whole numbers, in the same order.
int64_t place_of(float logit) {
  const auto bits = std::bit_cast<int32_t>(logit + 0.0f);  // -0 is 0
  return bits ^ (bits >> 31 & INT32_MAX);
}

// The candidates' logits in so many steps of the same width; an infinite one is on the last.
class Steps {
 public:
  static constexpr size_t kCount = 1024;
  explicit Steps(Logits logits) {
    const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
    low_ = finite(*low);
    const double width = finite(*high) - low_;
    scale_ = width > 0 ? (kCount - 1) / width : 0;
  }
  size_t operator()(float logit) const { return static_cast<size_t>((finite(logit) - low_) * scale_); }

 private:
  static double finite(float logit) { return std::min(logit, std::numeric_limits<float>::max()); }
  double low_, scale_;
};

template <class Keep>
void keep_if(SamplerScratch& scratch, Keep keep) {
  const bool weighed = !scratch.weights.empty();
  size_t kept = 0;
  for (size_t i = 0; i < scratch.tokens.size(); ++i) {
    const bool here = keep(i);
    scratch.tokens[kept] = scratch.tokens[i];
    scratch.token_logits[kept] = scratch.token_logits[i];
    if (weighed) scratch.weights[kept] = scratch.weights[i];
    kept += here;  // no branch: which are kept is not to be guessed
  }
  scratch.tokens.resize(kept), scratch.token_logits.resize(kept);
  if (weighed) scratch.weights.resize(kept);
}

// Where a prefix ends: the last place in it, and the weight of all that is above.
struct End {
  int64_t place;
  uint64_t above;
};

// Among places and what they weigh, of which some are wanted beside what is above all of them.
End end_among(std::vector<int64_t>& places, std::vector<uint64_t>& weights, uint64_t above, uint64_t wanted) {
  // It is in [low, high): what is above has less than is wanted, with it there is enough.
  int64_t low = *std::min_element(places.begin(), places.end()),
          high = *std::max_element(places.begin(), places.end()) + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    uint64_t from_middle = above;
    for (size_t i = 0; i < places.size(); ++i) from_middle += places[i] >= middle ? weights[i] : 0;
    if (from_middle >= wanted) {
      low = middle;
    } else {
      high = middle;
      above = from_middle;
    }
    size_t kept = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] < low || places[i] >= high) continue;
      places[kept] = places[i], weights[kept] = weights[i];
      ++kept;
    }
    places.resize(kept), weights.resize(kept);
  }
  return {low, above};
}

// Keeps the shortest prefix of the candidates, in order of logits and lower tokens first of equals, whose weights, or
// whose number, reaches `wanted`: all above a logit, and the first of those that have it.
enum class Of { weights, number };
void keep_best(Of unit, uint64_t wanted, SamplerScratch& scratch) {
  const size_t all = scratch.tokens.size();
  const auto weight = [&](size_t i) { return unit == Of::weights ? scratch.weights[i] : 1; };
  // The step in which the prefix ends, by a histogram; above: of what is in higher ones.
  const Steps step_of(scratch.token_logits);
  uint64_t steps[Steps::kCount] = {}, above = 0;
  for (size_t i = 0; i < all; ++i) steps[step_of(scratch.token_logits[i])] += weight(i);
  size_t step = Steps::kCount;
  while (step > 0 && above + steps[step - 1] < wanted) above += steps[--step];
  if (step == 0) return;
  --step;
  scratch.places.clear(), scratch.place_weights.clear();
  for (size_t i = 0; i < all; ++i) {
    if (step_of(scratch.token_logits[i]) != step) continue;
    scratch.places.push_back(place_of(scratch.token_logits[i]));
    scratch.place_weights.push_back(weight(i));
  }
  End end = end_among(scratch.places, scratch.place_weights, above, wanted);
  keep_if(scratch, [&](size_t i) {
    const int64_t place = place_of(scratch.token_logits[i]);
    const bool last = place == end.place && end.above < wanted;
    if (last) end.above += weight(i);
    return place > end.place || last;
  });
}

void take_candidates(Logits logits, float best, const SamplingParams& params, SamplerScratch& scratch) {
  scratch.tokens.clear(), scratch.token_logits.clear(), scratch.weights.clear();
  const uint64_t lightest = weight_share(params.min_p, kBestWeight);
  const auto k = static_cast<size_t>(params.top_k);
  uint64_t sum = 0;  // of what top_p is a share of
  if (k > 0 && k < logits.size()) {
    take_from(least_of_best(k, scratch), logits, scratch);
    keep_best(Of::number, k, scratch);
    scratch.weights.resize(scratch.tokens.size());
    token_weights(scratch.token_logits.data(), static_cast<int64_t>(scratch.tokens.size()), best,
                  params.temperature, scratch.weights.data());
    keep_if(scratch, [&](size_t i) { return scratch.weights[i] >= lightest; });
    sum = sum_of(scratch.weights);
  } else {
    sum_blocks(logits, best, params.temperature, scratch);
    if (params.min_p > 0) {
      take_heavy(lightest, logits, best, params.temperature, scratch);
      sum = sum_of(scratch.weights);
    } else {  // all that weigh no more than this are together less than what top_p leaves out
      sum = sum_of(scratch.sums);
      const uint64_t light = (sum - weight_share(params.top_p, sum)) / logits.size();
      take_heavy(light + 1, logits, best, params.temperature, scratch);
    }
  }
  if (params.top_p < 1) keep_best(Of::weights, weight_share(params.top_p, sum), scratch);
}

// splitmix64: its whole state is one word, which a session saves.
uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

}  // namespace
}  // namespace wi
