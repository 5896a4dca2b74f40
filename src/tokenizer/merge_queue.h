// The heart of both BPE models: of all neighbours in a list, join the pair of lowest rank, leftmost first,
// until no pair has a rank. Near linear in the list, so one word of megabytes is no special case; entries
// that a later join made stale are skipped when they surface.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/tokenizer/long_list.h"
#include "src/tokenizer/poll.h"

namespace wi {

constexpr uint32_t kNoRank = UINT32_MAX;

// Positions by rank, then by place: a binary heap, best for what fits the cache.
class HeapOfPairs {
 public:
  bool empty() const { return heap_.empty(); }
  void clear() { heap_.clear(); }
  void push(uint32_t rank, uint32_t position) {
    heap_.push_back(uint64_t{rank} << 32 | position);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  std::pair<uint32_t, uint32_t> pop() {
    const uint64_t lowest = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    return {static_cast<uint32_t>(lowest >> 32), static_cast<uint32_t>(lowest)};
  }

 private:
  std::vector<uint64_t> heap_;
};

// A rank's positions, first all put in, then all taken out in order. In pieces, each sorted for itself, so that nothing
// that takes long is done at once: a word of 100 MB has lists of as many numbers, and a cancel is promised 100 ms.
template <size_t kPiece = size_t{1} << 22>
class PositionList {
 public:
  void push(uint32_t position, Poll& poll) {
    if (pieces_.empty() || pieces_.back().positions.size() == kPiece) {
      if (!pieces_.empty()) poll(kPiece / 16);  // memory that is new takes its time
      pieces_.emplace_back();
      if (pieces_.size() > 1) pieces_.back().positions.reserve(kPiece);
    }
    Piece& piece = pieces_.back();
    piece.sorted = piece.sorted && (piece.positions.empty() || piece.positions.back() <= position);
    sorted_ = sorted_ && (size_ == 0 || last_ <= position);
    piece.positions.push_back(position);
    last_ = position;
    ++size_;
  }
  bool empty() const { return taken_ == size_; }
  uint32_t first(Poll& poll) {
    if (taken_ == 0 && heads_.empty()) begin(poll);
    return sorted_ ? pieces_[taken_ / kPiece].positions[taken_ % kPiece] : heads_.front().first;
  }
  void take() {
    ++taken_;
    if (sorted_) return;
    std::pop_heap(heads_.begin(), heads_.end(), std::greater<>());
    Piece& piece = pieces_[heads_.back().second];
    if (++piece.taken == piece.positions.size()) return heads_.pop_back();
    heads_.back().first = piece.positions[piece.taken];
    std::push_heap(heads_.begin(), heads_.end(), std::greater<>());
  }

 private:
  struct Piece {
    LongList<uint32_t> positions;
    size_t taken = 0;
    bool sorted = true;
  };

  void begin(Poll& poll) {
    if (sorted_) return;
    for (uint32_t i = 0; i < pieces_.size(); ++i) {
      LongList<uint32_t>& positions = pieces_[i].positions;
      const auto before = [&](uint32_t a, uint32_t b) {
        poll(1);
        return a < b;
      };
      if (!pieces_[i].sorted) std::sort(positions.begin(), positions.end(), before);
      heads_.emplace_back(positions.front(), i);
    }
    std::make_heap(heads_.begin(), heads_.end(), std::greater<>());
  }

  std::vector<Piece> pieces_;
  std::vector<std::pair<uint32_t, uint32_t>> heads_;  // heap of (least that is left, piece), if not sorted
  size_t size_ = 0, taken_ = 0;
  uint32_t last_ = 0;
  bool sorted_ = true;  // as they were put in
};

// The same order for millions of positions: a list per rank, which is walked from left to right once its turn
// has come. What joins add to a list behind its head (few, or none) waits in a heap beside it.
class ListsOfPairs {
 public:
  explicit ListsOfPairs(Poll& poll) : poll_(poll) {}
  bool empty() const { return ranks_.empty(); }
  void push(uint32_t rank, uint32_t position) {
    List& list = lists_[rank];
    if (!list.active) {
      list.active = true;
      ranks_.push_back(rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    if (list.begun) {
      list.late.push_back(position);
      std::push_heap(list.late.begin(), list.late.end(), std::greater<>());
      return;
    }
    list.positions.push(position, poll_);
  }
  std::pair<uint32_t, uint32_t> pop() {
    const uint32_t rank = ranks_.front();
    List& list = lists_[rank];
    list.begun = true;
    uint32_t position;
    if (list.late.empty() || (!list.positions.empty() && list.positions.first(poll_) <= list.late.front())) {
      position = list.positions.first(poll_);
      list.positions.take();
    } else {
      position = list.late.front();
      std::pop_heap(list.late.begin(), list.late.end(), std::greater<>());
      list.late.pop_back();
    }
    if (list.positions.empty() && list.late.empty()) {
      list = {};
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    return {rank, position};
  }

 private:
  struct List {
    PositionList<> positions;
    std::vector<uint32_t> late;
    bool active = false, begun = false;
  };
  Poll& poll_;
  std::unordered_map<uint32_t, List> lists_;
  std::vector<uint32_t> ranks_;  // heap of the active ones
};

class MergeQueue {
 public:
  static constexpr uint32_t kEnd = UINT32_MAX;

  // rank(left, right) of two neighbours, kNoRank if they never join; join(left, right) makes left stand for
  // both. Symbols are 0 … count - 1; afterwards next() walks those that are left, from 0. A cancel in between
  // leaves nothing behind.
  template <class Rank, class Join>
  void run(uint32_t count, Rank&& rank, Join&& join, Poll* poll) {
    reset(count, poll);
    if (count < kLongWord) return merge(heap_, rank, join, poll);
    ListsOfPairs lists(*poll);
    merge(lists, rank, join, poll);
  }

  uint32_t next(uint32_t symbol) const { return next_[symbol]; }  // kEnd after the last

 private:
  static constexpr uint32_t kLongWord = 1 << 14;

  template <class Pairs, class Rank, class Join>
  void merge(Pairs& pairs, Rank& rank, Join& join, Poll* poll) {
    const auto update = [&](uint32_t left, uint32_t right) {
      ranks_[left] = right == kEnd ? kNoRank : rank(left, right);
      if (ranks_[left] != kNoRank) pairs.push(ranks_[left], left);
    };
    for (uint32_t i = 0; i + 1 < ranks_.size(); ++i) {
      (*poll)(1);
      update(i, i + 1);
    }
    while (!pairs.empty()) {
      (*poll)(1);
      const auto [lowest, left] = pairs.pop();
      if (ranks_[left] != lowest) continue;  // stale
      const uint32_t right = next_[left];
      join(left, right);
      unlink(left, right);
      if (left != 0) update(previous_[left], left);
      update(left, next_[left]);
    }
  }

  void reset(uint32_t count, Poll* poll) {
    heap_.clear();
    ranks_.clear();
    previous_.clear();
    next_.clear();
    for (LongList<uint32_t>* list : {&ranks_, &previous_, &next_}) list->reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      (*poll)(1);
      ranks_.push_back(kNoRank);
      previous_.push_back(i - 1);
      next_.push_back(i + 1 < count ? i + 1 : kEnd);
    }
  }

  void unlink(uint32_t left, uint32_t right) {
    ranks_[right] = kNoRank;
    next_[left] = next_[right];
    if (next_[right] != kEnd) previous_[next_[right]] = left;
  }

  HeapOfPairs heap_;
  LongList<uint32_t> ranks_, previous_, next_;  // (symbols); ranks_: of the pair that starts there
};

}  // namespace wi
