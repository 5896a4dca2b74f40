// What a segment takes, in the making and made: the store's own arithmetic, run on numbers alone.
#pragma once

#include <cstdint>

#include "kernels/policy.h"
#include "src/store/segment.h"

namespace wi {

// Of one head's index of a segment, at most.
struct IndexSize {
  uint64_t bytes = 0;
  int32_t partitions = 0;
};
IndexSize index_size(const KvShape& shape, const Policy& policy, const PolicyParams& params, int32_t tokens);
// What making a segment of so many tokens takes at once: itself, and its index twice.
uint64_t making_bytes(const KvShape& shape, const IndexSize& index, int32_t tokens);
// The same of one that goes straight to the slow tier (pipeline/straight.h), of which a few heads are laid out at once.
uint64_t straight_making_bytes(const KvShape& shape, const IndexSize& index, int32_t tokens, int workers);
// What making one beside decode steps (pipeline/building.h) takes on top of making_bytes().
uint64_t building_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                        int32_t tokens, int workers);
// What stays of one beside keys and values.
uint64_t most_index_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                          int32_t tokens);
// (layers, KV heads) that have an index: none in layers with a window.
uint64_t count_indexed_planes(const KvShape& shape);

}  // namespace wi
