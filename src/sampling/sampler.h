// Picks the next token from logits: greedy, or temperature with top-k, top-p, min-p and a repetition
// penalty, after a bias and a callback of the host's. Deterministic for a seed; copied with a fork and saved
// with a session.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/token_weights.h"
#include "src/error.h"
#include "src/sampling/stop_strings.h"

namespace wi {

struct SamplingParams {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1;
  int32_t repetition_window = 64;
  uint64_t seed = 0;
  int32_t top_logprobs = 0;
  std::vector<wi_logit_bias> logit_bias;
  wi_logits_callback logits_callback = nullptr;  // this and its argument are not saved
  void* logits_user = nullptr;
  StopStrings stops;
};

constexpr int32_t kMostTopLogprobs = 64;
constexpr size_t kMostStops = 64, kLongestStop = 1024;

// Throws `code` naming the first field out of its range as prefix + field.
void check_sampling(const SamplingParams& params, wi_status code, const char* prefix);
// That its bias is of a model's tokens, of which there are so many. Throws WI_E_ARGUMENT.
void check_bias(const SamplingParams& params, int32_t vocab);

// What samplers work in, kept from one token to the next. Of a vocabulary's size at most.
struct SamplerScratch {
  // So that sampling from so many logits allocates nothing.
  void reserve(const SamplingParams& params, size_t vocab);
  std::vector<int32_t> recent;    // the newest tokens; to be filled where looks_back() says so
  std::vector<float> logits;      // biased and penalised
  std::vector<float> bests;       // of blocks
  std::vector<uint64_t> sums;     // of blocks' weights
  std::vector<float> thresholds;  // of blocks
  // Candidates, by token.
  std::vector<int32_t> tokens;
  std::vector<float> token_logits;
  std::vector<uint64_t> weights;
  // Those among which a cut falls.
  std::vector<int64_t> places;
  std::vector<uint64_t> place_weights;
  size_t bytes() const {
    return recent.size() * sizeof(int32_t) +
           (logits.size() + bests.size() + thresholds.size() + token_logits.size()) * sizeof(float) +
           tokens.size() * sizeof(int32_t) +
           (sums.size() + weights.size() + places.size() + place_weights.size()) * sizeof(uint64_t);
  }
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params = {});

  struct Choice {
    int32_t token;
    uint64_t state;  // of the random numbers, once the token is taken
  };
  // Changes nothing: set_state(choice.state) takes the token. logits (vocab), at most kMostWeighed of
  // kernels/token_weights.h. Throws WI_E_STATE if no token is left, WI_E_CANCELLED if the callback ends the
  // call. Allocates nothing once `scratch` is warm.
  Choice sample(std::span<const float> logits, SamplerScratch& scratch) const;
  // By what a device picks the token that sample() would from the same logits, and the state that is to be set with it.
  // Where bias, callback or penalty have a say it does not.
  struct ForDevice {
    SamplingRow row;
    uint64_t state;
  };
  ForDevice for_device() const;
  int64_t looks_back() const { return params_->repetition_penalty == 1 ? 0 : params_->repetition_window; }
  const SamplingParams& params() const { return *params_; }
  uint64_t state() const { return state_; }
  void set_state(uint64_t state) { state_ = state; }

 private:
  std::shared_ptr<const SamplingParams> params_;  // of forks, too
  uint64_t state_;
};

}  // namespace wi
