#include "src/sampling/logprob.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace wi {

double log_sum_of(const SampledRow& row) {
  if (std::isinf(row.best)) return static_cast<double>(row.best);
  return static_cast<double>(row.best) + std::log(std::ldexp(static_cast<double>(row.sum), -kWeightBits));
}

float log_probability(float logit, double log_sum) {
  if (std::isnan(logit) || std::isinf(logit))  // an infinite logit's share is all, or that of its equals
    return logit > 0 ? 0 : -std::numeric_limits<float>::infinity();
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

// The list stays sorted; few logits of a vocabulary ever enter it.
void best_log_probabilities(std::span<const float> logits, double log_sum, size_t most,
                            std::vector<wi_token_logprob>& out) {
  out.clear();
  if (most == 0) return;
  out.reserve(most);
  float least = -std::numeric_limits<float>::infinity();  // that still enters
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (!(logit > least) && (out.size() == most || std::isnan(logit))) continue;
    if (out.size() == most) out.pop_back();
    const auto at =
        std::find_if(out.begin(), out.end(), [&](const auto& one) { return one.logprob < logit; });
    out.insert(at, {static_cast<int32_t>(i), logit});
    if (out.size() == most) least = out.back().logprob;
  }
  for (wi_token_logprob& one : out) one.logprob = log_probability(one.logprob, log_sum);
}

}  // namespace wi
