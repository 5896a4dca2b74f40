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
  pages_ = pool.allocate(shape.token_bytes() * static_cast<size_t>(tokens) + positions_bytes(),
                         "a segment's pages", pages);
}

std::byte* Segment::keys(int32_t layer, int32_t head) const {
  return pages_.data() + plane(layer, head) * 2 * shape_.head_bytes() * static_cast<size_t>(tokens_);
}
std::byte* Segment::values(int32_t layer, int32_t head) const {
  return keys(layer, head) + shape_.head_bytes() * static_cast<size_t>(tokens_);
}
int32_t* Segment::positions(int32_t layer, int32_t head) const {
  std::byte* start = pages_.data() + shape_.token_bytes() * static_cast<size_t>(tokens_);
  return reinterpret_cast<int32_t*>(start) + plane(layer, head) * static_cast<size_t>(tokens_);
}

void Segment::attach_index(HostBuffer index, std::vector<HeadIndex> heads) {
  index_ = std::move(index);
  heads_ = std::move(heads);
}

SegmentView Segment::view(int32_t layer, int32_t head) const {
  const HeadIndex& entry = heads_[plane(layer, head)];
  SegmentView view;
  view.keys = keys(layer, head);
  view.values = values(layer, head);
  view.positions = positions(layer, head);
  view.index = entry.bytes ? index_.data() + entry.offset : nullptr;
  view.tokens = tokens_;
  view.partitions = entry.partitions;
  return view;
}

}  // namespace wi
