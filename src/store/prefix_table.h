// Prefix reuse: a session whose prompt starts as another's did takes over that one's sealed segments instead
// of computing them. The table is a trie over live segments: an edge is a segment's token ids, so equal ids
// after an equal past mean equal keys and values. It holds no segment alive. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/store/segment.h"
#include "src/store/sequence.h"

namespace wi {

class PrefixTable {
 public:
  // segment->lineage must be set.
  void publish(const std::shared_ptr<const Segment>& segment);
  // Adopts the longest chain of published segments that `ids` starts with, ending before the last id; root
  // identifies model, KV type and policy parameters. Returns the tokens taken over.
  int64_t adopt_longest(uint64_t root, std::span<const int32_t> ids, Sequence& sequence);
  uint64_t hits() const;

 private:
  std::shared_ptr<const Segment> find(uint64_t parent, std::span<const int32_t> ids, int64_t first);
  mutable std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<const Segment>> children_;  // by the parent's id
  uint64_t hits_ = 0;
};

}  // namespace wi
