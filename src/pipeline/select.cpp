// Select: the policy ranks the partitions of every lane's segments and splits them into zones.
#include "src/pipeline/pipeline.h"

namespace wi {

void select(const Backend&, const Stream& stream, Lanes& lanes, StepStats& stats) {
  StageTimer timer(stats.select_ns);
  lanes.policy().select(stream, lanes.args());
  const LanesArgs args = lanes.args();
  for (int32_t i = 0; i < args.lane_count; ++i) {
    const Lane& lane = args.lanes[i];
    StepStats& own = lanes.stats_of(i);
    own.retrieved_tokens += static_cast<uint64_t>(lane.retrieved_tokens);
    own.estimated_clusters += static_cast<uint64_t>(lane.estimated_count);
    own.dropped_clusters += static_cast<uint64_t>(lane.dropped_count);
    if (lanes.policy().index_bytes_read)
      own.index_bytes_read += static_cast<uint64_t>(lanes.policy().index_bytes_read(lane, args));
  }
}

}  // namespace wi
