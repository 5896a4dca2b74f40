#include "src/policy_params.h"

#include "src/repeats.h"
#include "src/store/sequence.h"

namespace wi {

void check_policy_params(const PolicyParams& p, wi_status code, const char* prefix) {
  constexpr int32_t kMostSegmentTokens = 1 << 20;
  const auto segment = [&](const char* name, int32_t value) {
    check(value >= kBlockTokens && value <= kMostSegmentTokens && value % kBlockTokens == 0, code, prefix,
          name, " is ", value, ", must be a multiple of ", kBlockTokens, " in [", kBlockTokens, ", ",
          kMostSegmentTokens, "]");
  };
  const auto range = [&](const char* name, int32_t value, int32_t least, int32_t most) {
    check(value >= least && value <= most, code, prefix, name, " is ", value, ", must be in [", least, ", ",
          most, "]");
  };
  const auto share = [&](const char* name, float value) {  // NaN is none
    check(value > 0 && value <= 1, code, prefix, name, " is ", value, ", must be in (0, 1]");
  };
  segment("segment_tokens", p.segment_tokens);
  segment("decode_segment_tokens", p.decode_segment_tokens);
  range("tokens_per_centroid", p.tokens_per_centroid, 1, 1024);
  range("max_cluster_tokens", p.max_cluster_tokens, 1, kMostSegmentTokens);
  range("kmeans_iterations", p.kmeans_iterations, 1, 100);
  range("local_window", p.local_window, 0, kMostSegmentTokens);
  share("budget", p.budget);
  check(p.estimation >= 0 && p.estimation <= 1, code, prefix, "estimation is ", p.estimation,
        ", must be at most 1 (negative: none)");
  check(p.target_mass >= 0 && p.target_mass < 1, code, prefix, "target_mass is ", p.target_mass,
        ", must be in [0, 1)");
  share("budget_floor", p.budget_floor);
  share("budget_ceiling", p.budget_ceiling);
  check(p.budget_floor <= p.budget_ceiling, code, prefix, "budget_floor is ", p.budget_floor,
        ", more than budget_ceiling, which is ", p.budget_ceiling);
  range("repeats", p.repeats, 0, kMostRepeats);
}

bool same_index(const PolicyParams& a, const PolicyParams& b) {
  return a.segment_tokens == b.segment_tokens && a.decode_segment_tokens == b.decode_segment_tokens &&
         a.tokens_per_centroid == b.tokens_per_centroid && a.kmeans_iterations == b.kmeans_iterations &&
         a.max_cluster_tokens == b.max_cluster_tokens;
}

}  // namespace wi
