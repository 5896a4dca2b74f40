#include "src/store/prefix_table.h"

#include <algorithm>

namespace wi {

int64_t PrefixTable::adopt_longest(uint64_t root, std::span<const int32_t> ids, Sequence& sequence) {
  if (sequence.tokens() != 0) return 0;
  uint64_t parent = root;
  int64_t end = 0;
  while (std::shared_ptr<const Segment> segment = find(parent, ids, end == 0 ? kSinkTokens : end)) {
    sequence.adopt(segment, segment->lineage->sink);
    parent = segment->id();
    end = segment->end_position();
    std::lock_guard lock(mutex_);
    ++hits_;
  }
  return end;
}

void PrefixTable::publish(const std::shared_ptr<const Segment>& segment) {
  std::lock_guard lock(mutex_);
  auto [begin, end] = children_.equal_range(segment->lineage->parent);
  while (begin != end) begin = begin->second.expired() ? children_.erase(begin) : std::next(begin);
  children_.emplace(segment->lineage->parent, segment);
}

uint64_t PrefixTable::hits() const {
  std::lock_guard lock(mutex_);
  return hits_;
}

std::shared_ptr<const Segment> PrefixTable::find(uint64_t parent, std::span<const int32_t> ids,
                                                 int64_t first) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const Segment> best;
  auto [begin, end] = children_.equal_range(parent);
  for (; begin != end; ++begin) {
    std::shared_ptr<const Segment> segment = begin->second.lock();
    if (!segment || segment->first_position() != first) continue;
    if (segment->end_position() >= static_cast<int64_t>(ids.size()))
      continue;  // one id is left to compute logits from
    const Segment::Lineage& lineage = *segment->lineage;
    const bool same = std::equal(lineage.ids.begin(), lineage.ids.end(), ids.begin() + first) &&
                      std::equal(lineage.sink_ids.begin(), lineage.sink_ids.end(), ids.begin());
    if (same && (!best || segment->tokens() > best->tokens())) best = std::move(segment);
  }
  return best;
}

}  // namespace wi
