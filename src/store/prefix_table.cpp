#include "src/store/prefix_table.h"

#include <algorithm>

namespace wi {

int64_t PrefixTable::adopt_longest(uint64_t root, std::span<const int32_t> ids, const SegmentGrid& grid,
                                   bool any, const MayEnd& may_end, Sequence& sequence) {
  if (sequence.tokens() != 0 || ids.size() <= kSinkTokens) return 0;
  const int64_t sealed_end = grid.sealed_end(static_cast<int64_t>(ids.size()));
  int64_t furthest = kSinkTokens;  // where a chain may end
  for (SegmentSpan span = grid.longest(kSinkTokens, sealed_end); span.tokens;
       span = grid.longest(span.end(), sealed_end))
    if (span.end() < static_cast<int64_t>(ids.size()) && may_end(span.end())) furthest = span.end();
  if (furthest == kSinkTokens) return 0;
  // Who read the same otherwise has segments of the same ids, behind which others follow, or none: all are looked at.
  // They are a tree, since a segment has one parent.
  using Segments = std::vector<std::shared_ptr<const Segment>>;
  struct Level {
    Segments found;
    size_t bytes = 0;  // of the chain up to here
  };
  const auto level_after = [&](uint64_t parent, int64_t end, size_t bytes) {
    return Level{find(parent, ids, grid.longest(end, sealed_end), any), bytes};
  };
  std::vector<Level> levels;  // of the chain, whose segments are the last of each, and of what may follow it
  levels.push_back(level_after(root, kSinkTokens, 0));
  Segments longest;
  size_t in_common = 0;  // segments that the chain and the longest one begin with
  while (longest.empty() || longest.back()->end_position() < furthest) {
    if (levels.back().found.empty()) {
      levels.pop_back();
      if (levels.empty()) break;
      levels.back().found.pop_back();
      in_common = std::min(in_common, levels.size() - 1);
      continue;
    }
    const std::shared_ptr<const Segment> last = levels.back().found.back();
    const size_t sink_bytes = last->lineage->sink->bytes(), bytes = levels.back().bytes + last->bytes();
    const int64_t end = last->end_position();
    // What is not taken is computed, and may go straight to a slow tier then.
    const bool fits = sequence.within_budget(sink_bytes + bytes);
    if (fits && may_end(end) && (longest.empty() || end > longest.back()->end_position())) {
      longest.resize(in_common);
      for (size_t i = in_common; i < levels.size(); ++i) longest.push_back(levels[i].found.back());
      in_common = levels.size();
    }
    levels.push_back(fits ? level_after(last->id(), end, bytes) : Level{});
  }
  for (const auto& segment : longest) sequence.adopt(segment, segment->lineage->sink);
  std::lock_guard lock(trie_->mutex);
  trie_->hits += longest.size();
  return sequence.tokens();
}

void PrefixTable::publish(const std::shared_ptr<Segment>& segment) {
  const auto entry = [&] {
    std::lock_guard lock(trie_->mutex);
    return trie_->children.emplace(segment->lineage->parent, segment);
  }();
  segment->listing = {this, [trie = trie_, entry](const void*) {
                        std::lock_guard lock(trie->mutex);
                        trie->children.erase(entry);
                      }};
}

uint64_t PrefixTable::hits() const {
  std::lock_guard lock(trie_->mutex);
  return trie_->hits;
}

size_t PrefixTable::size() const {
  std::lock_guard lock(trie_->mutex);
  return trie_->children.size();
}

// The published segments of exactly this span after `parent` whose ids are these.
std::vector<std::shared_ptr<const Segment>> PrefixTable::find(uint64_t parent, std::span<const int32_t> ids,
                                                              SegmentSpan span, bool any) {
  // One id is left to compute logits from.
  if (span.tokens == 0 || span.end() >= static_cast<int64_t>(ids.size())) return {};
  // A segment whose last owner this turns out to be takes itself out of the table, and so must die after the
  // lock.
  std::vector<std::shared_ptr<const Segment>> alive, found;
  std::shared_ptr<const Segment> segment;  // also where `alive` has no memory for it
  std::lock_guard lock(trie_->mutex);
  auto [entry, last] = trie_->children.equal_range(parent);
  for (; entry != last; ++entry) {
    segment = entry->second.lock();
    if (!segment) continue;
    alive.push_back(segment);
    if (segment->first_position() != span.first || segment->tokens() != span.tokens) continue;
    const Segment::Lineage& lineage = *segment->lineage;
    if ((any || lineage.alike) &&
        std::equal(lineage.ids.begin(), lineage.ids.end(), ids.begin() + span.first) &&
        std::equal(lineage.sink_ids.begin(), lineage.sink_ids.end(), ids.begin()))
      found.push_back(segment);
  }
  return found;
}

}  // namespace wi
