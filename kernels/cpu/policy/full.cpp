// The full policy: dense attention as the five operations see it. A segment is one partition in its
// original order, every query retrieves all of them, and nothing is estimated. The reference for every
// other policy's accuracy and speed.
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/policy/pages.h"

namespace wi::cpu {
namespace {

int32_t most_partitions(const PolicyParams&, int32_t) { return 1; }

size_t index_capacity(const PolicyParams&, int32_t, int32_t, DType) { return 0; }

IndexResult index(const Stream&, int, const IndexArgs& args) {
  keep_order(args);
  return {.partitions = args.tokens > 0 ? 1 : 0, .index_bytes = 0};
}

void select(const Stream&, const LookupArgs& args) {
  for (int32_t i = 0; i < args.count; i++) {
    Lookup& lookup = args.lookups[i];
    lookup.retrieved_count = lookup.estimated_count = 0;
    for (int32_t s = 0; s < lookup.segment_count; s++)
      for (int32_t p = 0; p < lookup.segments[s].partitions; p++)
        lookup.retrieved[lookup.retrieved_count++] = {.segment = s, .partition = p};
    count_zones(lookup, lookup.indexed_tokens);
  }
}

}  // namespace

constinit const Policy full_policy = {
    .name = "full",
    .most_partitions = most_partitions,
    .index_capacity = index_capacity,
    .index = index,
    .cut = nullptr,
    .partition_offsets = nullptr,
    .select = select,
    .estimate = nullptr,
    .index_valid = nullptr,
    .description = "Reads every token exactly: the reference, and the slowest",
};

void keep_order(const IndexArgs& args) {
  const size_t row = row_bytes(args.kv, args.head_dim);
  std::byte* keys = static_cast<std::byte*>(args.keys);
  std::byte* values = static_cast<std::byte*>(args.values);
  for (int32_t i = 0; i < args.run_count; i++) {
    const size_t bytes = static_cast<size_t>(args.runs[i].tokens) * row;
    std::memcpy(keys, args.runs[i].keys, bytes);
    std::memcpy(values, args.runs[i].values, bytes);
    keys += bytes;
    values += bytes;
  }
  for (int32_t i = 0; i < args.tokens; i++) args.places[i] = i;
}

}  // namespace wi::cpu
