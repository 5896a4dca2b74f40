// Attend: exact attention over the steady zone and what was retrieved, then the estimate of the rest merged
// in by LSE (RetroInfer §4.2, tripartite attention).
#include <algorithm>

#include "src/pipeline/pipeline.h"

namespace wi {

void attend(const Backend& backend, const Stream& stream, Lanes& lanes, StepStats& stats) {
  StageTimer timer(stats.attend_ns);
  const LanesArgs args = lanes.args();
  backend.attend(stream, args);
  const size_t token_bytes = 2 * row_bytes(args.kv, args.head_dim);
  for (int32_t i = 0; i < args.lane_count; ++i) {
    const Lane& lane = args.lanes[i];
    int64_t tokens = lane.retrieved_tokens;
    for (int32_t r = 0; r < lane.steady_count; ++r) tokens += lane.steady[r].tokens;
    lanes.stats_of(i).kv_bytes_read += static_cast<uint64_t>(tokens) * token_bytes;
  }
}

void estimate(const Backend&, const Stream& stream, Lanes& lanes, StepStats& stats) {
  const Policy& policy = lanes.policy();
  if (!policy.estimate) return;
  StageTimer timer(stats.estimate_ns);
  const LanesArgs args = lanes.args();
  policy.estimate(stream, args);
  for (int32_t i = 0; i < args.lane_count; ++i) {
    const Lane& lane = args.lanes[i];
    StepStats& own = lanes.stats_of(i);
    own.estimated_coverage_sum += static_cast<double>(lane.estimated_coverage);
    own.certified_coverage_sum += static_cast<double>(lane.certified_coverage);
    own.certified_coverage_min =
        std::min(own.certified_coverage_min, static_cast<double>(lane.certified_coverage));
    own.coverage_count += 1;
  }
}

}  // namespace wi
