#include "src/store/segment.h"

#include <atomic>

namespace wi {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Segment::Segment(HostPool& pool, const KvShape& shape, int64_t first_position, int32_t tokens,
                 HostPages pages)
    : shape_(shape), first_position_(first_position), tokens_(tokens), id_(next_id()) {
  pages_ = pool.allocate(shape.token_bytes() * static_cast<size_t>(tokens) + places_bytes(),
                         "a segment's pages", pages);
}

std::byte* Segment::keys(int32_t layer, int32_t head) const {
  return pages_.data() + plane(layer, head) * 2 * shape_.head_bytes() * static_cast<size_t>(tokens_);
}
std::byte* Segment::values(int32_t layer, int32_t head) const {
  return keys(layer, head) + shape_.head_bytes() * static_cast<size_t>(tokens_);
}
int32_t* Segment::places(int32_t layer, int32_t head) const {
  std::byte* start = pages_.data() + shape_.token_bytes() * static_cast<size_t>(tokens_);
  return reinterpret_cast<int32_t*>(start) + plane(layer, head) * static_cast<size_t>(tokens_);
}

void Segment::attach_index(HostPool& pool, const Policy& policy, HostBuffer index,
                           std::vector<HeadIndex> heads) {
  std::vector<size_t> at;
  size_t count = 0;
  for (const HeadIndex& head : heads) {
    at.push_back(count);
    count += static_cast<size_t>(head.partitions) + 1;
  }
  HostBuffer offsets = pool.allocate(count * sizeof(int32_t), "a segment's offsets");
  for (size_t plane = 0; plane < heads.size(); ++plane) {
    int32_t* const out = offsets.as<int32_t>() + at[plane];
    const HeadIndex& head = heads[plane];
    if (head.partitions == 1) {
      out[0] = 0;
      out[1] = tokens_;
    } else if (head.partitions > 1) {
      policy.partition_offsets(index.data() + head.offset, head.partitions, tokens_, out);
    }
  }
  index_ = std::move(index);
  heads_ = std::move(heads);
  offsets_ = std::move(offsets);
  offsets_at_ = std::move(at);
}

SegmentView Segment::view(int32_t layer, int32_t head) const {
  const HeadIndex& entry = heads_[plane(layer, head)];
  SegmentView view;
  view.keys = keys(layer, head);
  view.values = values(layer, head);
  view.offsets = offsets_.as<int32_t>() + offsets_at_[plane(layer, head)];
  view.places = places(layer, head);
  view.index = entry.bytes ? index_.data() + entry.offset : nullptr;
  view.tokens = tokens_;
  view.partitions = entry.partitions;
  return view;
}

}  // namespace wi
