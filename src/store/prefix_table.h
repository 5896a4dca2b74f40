// Prefix reuse: a session whose prompt starts as another's did takes over that one's sealed segments instead
// of computing them. The table is a trie over live segments: an edge is a segment's token ids, so equal ids
// after an equal past mean equal keys and values. It holds no segment alive, and forgets one that dies.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/store/segment.h"
#include "src/store/sequence.h"

namespace wi {

class PrefixTable {
 public:
  PrefixTable() : trie_(std::make_shared<Trie>()) {}

  // segment->lineage must be set.
  void publish(const std::shared_ptr<Segment>& segment);
  // Adopts the longest chain of published segments that `ids` starts with and that ends where `may_end` allows, as
  // far as the sequence's budget holds it; root identifies model, KV type and policy parameters. Only such segments are
  // taken as this prompt would be cut into, and unless `any`, such as it would have, bit for bit. Returns the tokens
  // taken over.
  using MayEnd = std::function<bool(int64_t end)>;
  int64_t adopt_longest(uint64_t root, std::span<const int32_t> ids, const SegmentGrid& grid, bool any,
                        const MayEnd& may_end, Sequence& sequence);
  uint64_t hits() const;
  size_t size() const;  // segments that it knows

 private:
  // Kept by the published segments too, each of which takes itself out at its end.
  struct Trie {
    std::mutex mutex;
    // By the parent's id; an entry stays where it is whatever comes and goes beside it.
    std::multimap<uint64_t, std::weak_ptr<const Segment>> children;
    uint64_t hits = 0;
  };
  std::vector<std::shared_ptr<const Segment>> find(uint64_t parent, std::span<const int32_t> ids,
                                                   SegmentSpan span, bool any);
  std::shared_ptr<Trie> trie_;
};

}  // namespace wi
