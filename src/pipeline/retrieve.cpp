// Retrieve: the partitions that were selected, as runs of keys and values in the fast tier. Without a GPU
// host memory is the fast tier, so every partition is a hit and is read where it lies.
#include "src/pipeline/pipeline.h"

namespace wi {

void retrieve(const Stream& stream, const LanePart& part) {
  StageTimer timer(part.times.retrieve_ns);
  const LanesArgs& args = part.args;
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  stream.each(args.lane_count, [&](int64_t i, int) {
    Lane& lane = args.lanes[i];
    for (int32_t r = 0; r < lane.retrieved_count; ++r)
      lane.runs[r] = lane.segments[lane.retrieved[r].segment].run(lane.retrieved[r].partition, bytes);
    lane.run_count = lane.retrieved_count;
  });
}

}  // namespace wi
