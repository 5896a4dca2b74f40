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
  constexpr size_t kNone = SIZE_MAX;
  struct Link {
    std::shared_ptr<const Segment> segment;
    size_t before;  // the link that it follows
    size_t bytes;   // of the chain up to here
  };
  std::vector<Link> links;
  std::vector<size_t> open;  // links behind which nobody has looked yet
  const auto look_behind = [&](size_t before, uint64_t parent, int64_t end, size_t bytes) {
    for (auto& segment : find(parent, ids, grid.longest(end, sealed_end), any)) {
      const size_t with_it = bytes + segment->bytes();
      // What is not taken is computed, and may go straight to a slow tier then.
      if (!sequence.within_budget(with_it)) continue;
      open.push_back(links.size());
      links.push_back({std::move(segment), before, with_it});
    }
  };
  size_t last = kNone;
  int64_t taken = kSinkTokens;
  look_behind(kNone, root, taken, kSinkTokens * sequence.shape().token_bytes());
  while (!open.empty() && taken < furthest) {
    const size_t at = open.back();
    open.pop_back();
    const int64_t end = links[at].segment->end_position();
    if (end > taken && may_end(end)) taken = end, last = at;
    look_behind(at, links[at].segment->id(), end, links[at].bytes);
  }
  std::vector<std::shared_ptr<const Segment>> chain;
  for (size_t at = last; at != kNone; at = links[at].before) chain.push_back(links[at].segment);
  std::reverse(chain.begin(), chain.end());
  for (const auto& segment : chain) sequence.adopt(segment, segment->lineage->sink);
  std::lock_guard lock(trie_->mutex);
  trie_->hits += chain.size();
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
