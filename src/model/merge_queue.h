// The heart of both BPE models: of all neighbours in a list, join the pair of lowest rank, leftmost first,
// until no pair has a rank. A heap of (rank, position) makes that O(n log n), so one word of megabytes is
// no special case; entries that a later join made stale are skipped when they surface.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace wi {

class MergeQueue {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr uint32_t kEnd = UINT32_MAX;

  // rank(left, right) of two neighbours, kNoRank if they never join; join(left, right) makes left stand for
  // both. Symbols are 0 … count - 1; afterwards next() walks those that are left, from 0.
  template <class Rank, class Join>
  void run(uint32_t count, Rank&& rank, Join&& join) {
    reset(count);
    for (uint32_t i = 0; i + 1 < count; ++i) {
      ranks_[i] = rank(i, i + 1);
      if (ranks_[i] != kNoRank) heap_.push_back(key(ranks_[i], i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      const uint64_t lowest = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      const uint32_t left = static_cast<uint32_t>(lowest);
      if (ranks_[left] != static_cast<uint32_t>(lowest >> 32)) continue;  // stale
      const uint32_t right = next_[left];
      join(left, right);
      unlink(left, right);
      if (left != 0) update(previous_[left], left, rank);
      update(left, next_[left], rank);
    }
  }

  uint32_t next(uint32_t symbol) const { return next_[symbol]; }  // kEnd after the last

 private:
  static uint64_t key(uint32_t rank, uint32_t position) { return uint64_t{rank} << 32 | position; }

  void reset(uint32_t count) {
    heap_.clear();
    ranks_.assign(count, kNoRank);
    previous_.resize(count);
    next_.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      previous_[i] = i - 1;
      next_[i] = i + 1 < count ? i + 1 : kEnd;
    }
  }

  void unlink(uint32_t left, uint32_t right) {
    ranks_[right] = kNoRank;
    next_[left] = next_[right];
    if (next_[right] != kEnd) previous_[next_[right]] = left;
  }

  template <class Rank>
  void update(uint32_t left, uint32_t right, Rank& rank) {
    ranks_[left] = right == kEnd ? kNoRank : rank(left, right);
    if (ranks_[left] == kNoRank) return;
    heap_.push_back(key(ranks_[left], left));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  std::vector<uint64_t> heap_;
  std::vector<uint32_t> ranks_, previous_, next_;  // (symbols); ranks_: of the pair that starts there
};

}  // namespace wi
