// Picks the next token from logits: greedy, or temperature with top-k, top-p, min-p and a repetition
// penalty. Deterministic for a seed; copied with a fork and saved with a session.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace wi {

struct SamplingParams {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1;
  int32_t repetition_window = 64;
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params = {});
  // logits (vocab); recent: the session's tokens, newest last. Allocates nothing after the first call.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> recent);
  const SamplingParams& params() const { return params_; }
  uint64_t state() const { return state_; }
  void set_state(uint64_t state) { state_ = state; }

 private:
  SamplingParams params_;
  uint64_t state_;
  std::vector<std::pair<float, int32_t>> candidates_;
};

}  // namespace wi
