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

IndexRoom::IndexRoom(const KvPools& pools, const KvShape& shape, const Policy& policy,
                     const PolicyParams& params, int32_t tokens)
    : IndexRoom(pools, shape, policy, params,
                policy.index_capacity(params, tokens, shape.head_dim, shape.dtype)) {}

IndexRoom::IndexRoom(const KvPools& pools, const Policy& policy, const PolicyParams& params,
                     const Segment& whole)
    : IndexRoom(pools, whole.shape(), policy, params, largest_index(whole)) {}

IndexRoom::IndexRoom(const KvPools& pools, const KvShape& shape, const Policy& policy,
                     const PolicyParams& params, size_t capacity)
    : pools_(pools),
      shape_(shape),
      policy_(policy),
      params_(params),
      capacity_(in_lines(capacity)),
      results_(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads)) {
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    offsets_.push_back(bytes_);
    if (!shape.window(layer)) bytes_ += capacity_ * static_cast<size_t>(shape.kv_heads);
  }
  if (bytes_) room_ = pools_.host->allocate(bytes_, "building a segment's index");
}

void IndexRoom::open_on_device() {
  made_there_.resize(results_.size());
  if (bytes_ && !room_there_)
    room_there_ = pools_.pages->allocate(bytes_, "building a segment's index on the device");
}

std::byte* IndexRoom::room_of(const HostBuffer& room, size_t plane) const {
  const size_t heads = static_cast<size_t>(shape_.kv_heads), layer = plane / heads;
  if (!capacity_ || shape_.window(static_cast<int32_t>(layer))) return nullptr;
  return room.data() + offsets_[layer] + plane % heads * capacity_;
}

IndexArgs IndexRoom::sizes(const Segment& segment) const {
  IndexArgs args{};
  args.tokens = segment.tokens();
  args.head_dim = shape_.head_dim;
  args.kv = shape_.dtype;
  args.params = &params_;
  return args;
}

IndexArgs IndexRoom::args_on_device(const Segment& segment, size_t plane, std::span<const KvRun> runs) {
  const int32_t layer = static_cast<int32_t>(plane) / shape_.kv_heads,
                head = static_cast<int32_t>(plane) % shape_.kv_heads;
  IndexArgs args = sizes(segment);
  args.runs = runs.data();
  args.run_count = static_cast<int32_t>(runs.size());
  args.keys = segment.keys(layer, head);
  args.values = segment.values(layer, head);
  args.places = segment.places_on_device(layer, head);
  args.index = room_of(room_there_, plane);
  return args;
}

// host: null: in the segment, which has room for keys and values then.
IndexArgs IndexRoom::args(const Segment& segment, size_t plane, std::span<const KvRun> runs,
                          std::byte* host) {
  const int32_t layer = static_cast<int32_t>(plane) / shape_.kv_heads,
                head = static_cast<int32_t>(plane) % shape_.kv_heads;
  IndexArgs args = sizes(segment);
  args.runs = runs.data();
  args.run_count = static_cast<int32_t>(runs.size());
  args.keys = host ? host : segment.keys(layer, head);
  args.values = host ? host + plane_bytes(segment) / 2 : segment.values(layer, head);
  args.places = segment.places(layer, head);
  args.index = room_of(room_, plane);
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

void IndexRoom::set_result_of_device(size_t plane, const IndexResult& result) {
  set_result(plane, result);
  made_there_[plane] = {true, room_of(room_there_, plane)};
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
    index = pools_.host->allocate(used, "a segment's index");
    for (size_t plane = 0; plane < heads.size(); ++plane) {
      std::byte* to = index.data() + heads[plane].offset;
      const bool made_there = !made_there_.empty() && made_there_[plane].made;
      if (heads[plane].bytes && !made_there) std::memcpy(to, room_of(room_, plane), heads[plane].bytes);
      std::memset(to + heads[plane].bytes, 0, in_lines(heads[plane].bytes) - heads[plane].bytes);
    }
  }
  segment.attach_index(*pools_.host, policy_, std::move(index), std::move(heads), made_there_);
  room_there_ = HostBuffer();
}

}  // namespace wi
