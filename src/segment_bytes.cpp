#include "src/segment_bytes.h"

#include <algorithm>

#include "src/pipeline/straight.h"

namespace wi {
namespace {

// Where tokens lie and partitions begin.
uint64_t order_bytes_of(const KvShape& shape, const IndexSize& index, int32_t tokens) {
  const uint64_t planes = static_cast<uint64_t>(shape.layers) * static_cast<uint64_t>(shape.kv_heads);
  const uint64_t indexed = count_indexed_planes(shape);  // the others are one partition each
  return Segment::order_bytes(shape, tokens,
                              indexed * static_cast<uint64_t>(index.partitions) + planes - indexed);
}

// The indexes' own room.
uint64_t index_room_of(const KvShape& shape, const IndexSize& index) {
  return count_indexed_planes(shape) * ((index.bytes + 63) & ~uint64_t{63});
}

}  // namespace

IndexSize index_size(const KvShape& shape, const Policy& policy, const PolicyParams& params, int32_t tokens) {
  return {policy.index_capacity(params, tokens, shape.head_dim, shape.dtype),
          policy.most_partitions(params, tokens)};
}

uint64_t making_bytes(const KvShape& shape, const IndexSize& index, int32_t tokens) {
  return static_cast<uint64_t>(tokens) * shape.token_bytes() + order_bytes_of(shape, index, tokens) +
         2 * index_room_of(shape, index);
}

uint64_t straight_making_bytes(const KvShape& shape, const IndexSize& index, int32_t tokens, int workers) {
  return making_bytes(shape, index, tokens) - static_cast<uint64_t>(tokens) * shape.token_bytes() +
         straight_bytes(shape, tokens, workers);
}

uint64_t building_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                        int32_t tokens, int workers) {
  if (!policy.pieces || shape.indexed_layers() == 0) return 0;
  IndexArgs sizes{};
  sizes.tokens = tokens;
  sizes.head_dim = shape.head_dim;
  sizes.kv = shape.dtype;
  sizes.params = &params;
  const int64_t planes = int64_t{shape.layers} * shape.kv_heads;
  return static_cast<uint64_t>(std::min<int64_t>(planes, workers)) * (policy.pieces->state_bytes(sizes) + 63);
}

uint64_t most_index_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                          int32_t tokens) {
  const IndexSize index = index_size(shape, policy, params, tokens);
  return order_bytes_of(shape, index, tokens) + index_room_of(shape, index);
}

uint64_t count_indexed_planes(const KvShape& shape) {
  return static_cast<uint64_t>(shape.indexed_layers()) * static_cast<uint64_t>(shape.kv_heads);
}

}  // namespace wi
