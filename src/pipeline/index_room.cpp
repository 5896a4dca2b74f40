#include "src/pipeline/index_room.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace wi {
namespace {

size_t in_lines(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// Keys and values of a plane, which lie one behind the other.
size_t plane_bytes(const Segment& segment) {
  return 2 * segment.shape().head_bytes() * static_cast<size_t>(segment.tokens());
}

size_t largest_index(const Segment& segment) {
  size_t most = 0;
  for (const Segment::HeadIndex& head : segment.heads()) most = std::max(most, head.bytes);
  return most;
}

}  // namespace

const Policy& layout_policy(const Backend& backend, const Policy& policy, const KvShape& shape,
                            int32_t layer) {
  return shape.window(layer) ? *find_policy(backend, "full") : policy;
}

IndexRoom::IndexRoom(HostPool& pool, const KvShape& shape, const Policy& policy, const PolicyParams& params,
                     int32_t tokens)
    : IndexRoom(pool, shape, policy, params,
                policy.index_capacity(params, tokens, shape.head_dim, shape.dtype)) {}

IndexRoom::IndexRoom(HostPool& pool, const Policy& policy, const PolicyParams& params, const Segment& whole)
    : IndexRoom(pool, whole.shape(), policy, params, largest_index(whole)) {}

IndexRoom::IndexRoom(HostPool& pool, const KvShape& shape, const Policy& policy, const PolicyParams& params,
                     size_t capacity)
    : pool_(pool),
      shape_(shape),
      policy_(policy),
      params_(params),
      capacity_(in_lines(capacity)),
      results_(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads)) {
  size_t bytes = 0;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    offsets_.push_back(bytes);
    if (!shape.window(layer)) bytes += capacity_ * static_cast<size_t>(shape.kv_heads);
  }
  if (bytes) room_ = pool.allocate(bytes, "building a segment's index");
}

std::byte* IndexRoom::room_of(size_t plane) {
  const size_t heads = static_cast<size_t>(shape_.kv_heads), layer = plane / heads;
  if (!capacity_ || shape_.window(static_cast<int32_t>(layer))) return nullptr;
  return room_.data() + offsets_[layer] + plane % heads * capacity_;
}

IndexArgs IndexRoom::args_of_device(const Segment& segment, size_t plane, std::span<const KvRun> runs) {
  return args_at(segment, plane, runs, nullptr);
}

// host: null: in the segment, which has room for keys and values then.
IndexArgs IndexRoom::args_at(const Segment& segment, size_t plane, std::span<const KvRun> runs,
                             std::byte* host) {
  const int32_t layer = static_cast<int32_t>(plane) / shape_.kv_heads,
                head = static_cast<int32_t>(plane) % shape_.kv_heads;
  IndexArgs args;
  args.runs = runs.data();
  args.run_count = static_cast<int32_t>(runs.size());
  args.tokens = segment.tokens();
  args.head_dim = shape_.head_dim;
  args.kv = shape_.dtype;
  args.params = &params_;
  args.keys = host ? host : segment.keys(layer, head);
  args.values = host ? host + plane_bytes(segment) / 2 : segment.values(layer, head);
  args.places = segment.places(layer, head);
  args.index = room_of(plane);
  return args;
}

IndexArgs IndexRoom::args(const Segment& segment, size_t plane, std::span<const KvRun> runs,
                          std::byte* host) {
  const IndexArgs args = args_at(segment, plane, runs, host);
  if (args.index) std::memset(args.index, 0, capacity_);
  return args;
}

void IndexRoom::place(const Segment& segment, size_t plane, const std::byte* host) {
  const auto heads = static_cast<size_t>(segment.shape().kv_heads);
  segment.memory().copy(
      segment.keys(static_cast<int32_t>(plane / heads), static_cast<int32_t>(plane % heads)), host,
      plane_bytes(segment));
}

void IndexRoom::set_result(size_t plane, const IndexResult& result) {
  assert(result.index_bytes <= capacity_);
  results_[plane] = result;
}

void IndexRoom::attach_to(Segment& segment) {
  std::vector<Segment::HeadIndex> heads(results_.size());
  size_t used = 0;
  for (size_t plane = 0; plane < heads.size(); ++plane) {
    heads[plane] = {used, results_[plane].index_bytes, results_[plane].partitions};
    used += in_lines(results_[plane].index_bytes);
  }
  HostBuffer index;
  if (used) {
    index = pool_.allocate(used, "a segment's index");
    for (size_t plane = 0; plane < heads.size(); ++plane) {
      std::byte* to = index.data() + heads[plane].offset;
      if (heads[plane].bytes) std::memcpy(to, room_of(plane), heads[plane].bytes);
      std::memset(to + heads[plane].bytes, 0, in_lines(heads[plane].bytes) - heads[plane].bytes);
    }
  }
  segment.attach_index(pool_, policy_, std::move(index), std::move(heads));
}

}  // namespace wi
