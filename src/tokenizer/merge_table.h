// (left token, right token) → rank and joined token. Open addressing in one flat array at half load: merging
// asks it several times a byte, so a look-up should be one cache line.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "src/tokenizer/merge_queue.h"

namespace wi {

class Tokenizer;
class Watch;

class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t token = -1;
  };

  void reserve(size_t merges) { slots_.assign(std::bit_ceil(merges * 2 + 2), {}); }

  // The first merge of a pair holds. At most as many pairs as were reserved.
  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[position(key(left, right))];
    if (slot.key == kFree) slot = {key(left, right), merge};
  }
  Merge find(int32_t left, int32_t right) const { return slots_[position(key(left, right))].merge; }

  std::vector<int32_t> specials;  // control tokens that merges make, ascending

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t position(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = std::rotl(key * 0x9E3779B97F4A7C15u, 32) & mask;
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

// A vocabulary's list of merges. Throws WI_E_FORMAT for one that names or makes what is no token.
MergeTable read_merges(const Tokenizer& tokenizer, Watch* watch);

}  // namespace wi
