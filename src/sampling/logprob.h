// Log-probabilities under a model's own softmax: of one token, and of the best ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/token_weights.h"
#include "src/error.h"

namespace wi {

// The natural log of the sum of all logits' exponentials, by what a device says of them; off by 1e-6 at most, as
// differences of logits are in f32.
double log_sum_of(const SampledRow& row);

// log_sum: of exponentials of all logits. -infinity for a token whose logit is that or NaN.
float log_probability(float logit, double log_sum);

// The `most` likeliest tokens, best first, of equals the lower; fewer if fewer have a number. Room for `most`
// in `out` is kept, so that it is allocated once.
void best_log_probabilities(std::span<const float> logits, double log_sum, size_t most,
                            std::vector<wi_token_logprob>& out);

}  // namespace wi
