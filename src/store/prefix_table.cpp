#include "src/store/prefix_table.h"

#include <algorithm>

namespace wi {

int64_t PrefixTable::adopt_longest(uint64_t root, std::span<const int32_t> ids, const SegmentGrid& grid,
                                   bool any, const MayEnd& may_end, Sequence& sequence) {
  if (sequence.tokens() != 0 || ids.size() <= kSinkTokens) return 0;
  const int64_t sealed_end = grid.sealed_end(static_cast<int64_t>(ids.size()));
  std::vector<std::shared_ptr<const Segment>> chain;
  for (int64_t end = kSinkTokens;; end = chain.back()->end_position()) {
    std::shared_ptr<const Segment> segment =
        find(chain.empty() ? root : chain.back()->id(), ids, grid.longest(end, sealed_end));
    if (!segment || !(any || segment->lineage->alike)) break;
    chain.push_back(std::move(segment));
  }
  // What is not taken is computed, and may go straight to a slow tier then.
  const auto fits = [&] {
    size_t bytes = 0;
    for (const auto& segment : chain) bytes += segment->bytes();
    return sequence.within_budget(bytes);
  };
  while (!chain.empty() && !(may_end(chain.back()->end_position()) && fits())) chain.pop_back();
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

// The published segment of exactly this span after `parent` whose ids are these.
std::shared_ptr<const Segment> PrefixTable::find(uint64_t parent, std::span<const int32_t> ids,
                                                 SegmentSpan span) {
  // One id is left to compute logits from.
  if (span.tokens == 0 || span.end() >= static_cast<int64_t>(ids.size())) return nullptr;
  // A segment whose last owner this turns out to be takes itself out of the table, and so must die after the
  // lock.
  std::vector<std::shared_ptr<const Segment>> alive;
  std::shared_ptr<const Segment> segment;  // also where `alive` has no memory for it
  std::lock_guard lock(trie_->mutex);
  auto [entry, last] = trie_->children.equal_range(parent);
  for (; entry != last; ++entry) {
    segment = entry->second.lock();
    if (!segment) continue;
    alive.push_back(segment);
    if (segment->first_position() != span.first || segment->tokens() != span.tokens) continue;
    const Segment::Lineage& lineage = *segment->lineage;
    if (std::equal(lineage.ids.begin(), lineage.ids.end(), ids.begin() + span.first) &&
        std::equal(lineage.sink_ids.begin(), lineage.sink_ids.end(), ids.begin()))
      return segment;
  }
  return nullptr;
}

}  // namespace wi
