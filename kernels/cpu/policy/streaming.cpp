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

void select_one(Lookup& lookup) {
  lookup.retrieved_count = lookup.estimated_count = 0;
  int64_t tokens = 0;
  for (int32_t s = lookup.segment_count - 1; s >= 0; s--) {
    for (int32_t p = lookup.segments[s].partitions - 1; p >= 0 && tokens < lookup.zones.budget; p--) {
      lookup.retrieved[lookup.retrieved_count++] = {.segment = s, .partition = p};
      tokens += page_tokens(lookup.segments[s], p);
    }
  }
  count_zones(lookup, tokens);
}

void select(const Stream&, const LookupArgs& args) {
  for (int32_t i = 0; i < args.count; i++) select_one(args.lookups[i]);
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
