// The streaming policy: the first tokens and a window of the newest ones (StreamingLLM), an opponent to
// measure the others against. Of the sealed past it retrieves the newest pages that the budget pays for,
// whatever the query looks for, and estimates nothing.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/pages.h"

namespace wi::cpu {
namespace {

size_t index_capacity(const PolicyParams&, int32_t, int32_t, DType) { return 0; }

IndexResult index(const Stream&, int, const IndexArgs& args) {
  keep_order(args);
  return {.partitions = page_count(args.tokens), .index_bytes = 0};
}

void select_lane(Lane& lane) {
  lane.retrieved_count = lane.estimated_count = 0;
  lane.retrieved_tokens = 0;
  for (int32_t s = lane.segment_count - 1; s >= 0; s--) {
    for (int32_t p = lane.segments[s].partitions - 1; p >= 0 && lane.retrieved_tokens < lane.zones.budget;
         p--) {
      lane.retrieved[lane.retrieved_count++] = {.segment = s, .partition = p};
      lane.retrieved_tokens += page_tokens(lane.segments[s], p);
    }
  }
  lane.dropped_count = lane.partition_count - lane.retrieved_count;
}

void select(const Stream&, const LanesArgs& args) {
  for (int32_t i = 0; i < args.lane_count; i++) select_lane(args.lanes[i]);
}

bool index_valid(const void*, size_t bytes, int32_t partitions, int32_t tokens, int32_t, DType) {
  return bytes == 0 && partitions == page_count(tokens);
}

}  // namespace

constinit const Policy streaming_policy = {
    .name = "streaming",
    .most_partitions = most_pages,
    .index_capacity = index_capacity,
    .index = index,
    .cut = nullptr,
    .partition_offsets = page_offsets,
    .select = select,
    .estimate = nullptr,
    .index_valid = index_valid,
    .description = "Reads the first and the newest tokens only (StreamingLLM)",
};

}  // namespace wi::cpu
