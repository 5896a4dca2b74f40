// Retrieve: the partitions that were selected, as runs of keys and values in the fast tier. Without a GPU
// host memory is the fast tier, so every partition is a hit and is read where it lies.
#include "src/pipeline/pipeline.h"

namespace wi {

void retrieve(const Stream& stream, const LanePart& part) {
  StageTimer timer(part.times.retrieve_ns);
  const LanesArgs& args = part.args;
  const size_t token_bytes = row_bytes(args.kv, args.head_dim);
  stream.each(args.lane_count, [&](int64_t i, int) {
    Lane& lane = args.lanes[i];
    for (int32_t r = 0; r < lane.retrieved_count; ++r) {
      const SegmentView& segment = lane.segments[lane.retrieved[r].segment];
      int32_t begin, end;
      part.policy.partition_range(segment, lane.retrieved[r].partition, &begin, &end);
      const size_t offset = static_cast<size_t>(begin) * token_bytes;
      lane.runs[r] = {static_cast<const std::byte*>(segment.keys) + offset,
                      static_cast<const std::byte*>(segment.values) + offset, end - begin};
    }
    lane.run_count = lane.retrieved_count;
  });
}

}  // namespace wi
