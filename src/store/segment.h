// A sealed run of tokens: keys and values of all layers and KV heads, laid out partition by partition, with
// the policy's index. A segment never changes, so forks share it, other threads read it without a lock, and a
// session file is a copy of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/policy.h"
#include "src/memory/host_pool.h"
#include "src/store/kv_shape.h"
#include "src/store/token_block.h"

namespace wi {

class Segment {
 public:
  // Allocates pages and places; the index arrives with attach_index(). first_position: of its first token.
  Segment(HostPool& pool, const KvShape& shape, int64_t first_position, int32_t tokens,
          HostPages pages = HostPages::huge);

  const KvShape& shape() const { return shape_; }
  int64_t first_position() const { return first_position_; }
  int64_t end_position() const { return first_position_ + tokens_; }
  int32_t tokens() const { return tokens_; }
  uint64_t id() const { return id_; }  // unique in the process, never reused
  size_t bytes() const { return pages_.bytes() + offsets_.bytes() + index_.bytes(); }
  size_t index_bytes() const { return index_.bytes() + offsets_.bytes() + places_bytes(); }

  SegmentView view(int32_t layer, int32_t head) const;

  // Writing, before the segment is shared:
  std::byte* keys(int32_t layer, int32_t head) const;
  std::byte* values(int32_t layer, int32_t head) const;
  int32_t* places(int32_t layer, int32_t head) const;
  struct HeadIndex {
    size_t offset = 0, bytes = 0;  // in index()
    int32_t partitions = 0;
  };
  // heads: (layers * kv_heads) as the policy laid them out. Throws WI_E_BUDGET or WI_E_MEMORY.
  void attach_index(HostPool& pool, const Policy& policy, HostBuffer index, std::vector<HeadIndex> heads);
  const std::vector<HeadIndex>& heads() const { return heads_; }
  const HostBuffer& index() const { return index_; }
  const HostBuffer& pages() const { return pages_; }

  // What prefix reuse compares and carries along: the ids of the segment's tokens, what came before.
  struct Lineage {
    uint64_t parent = 0;  // id of the segment before, or the root's key
    std::vector<int32_t> ids;
    BlockRef sink;  // the sequence's first tokens
    std::vector<int32_t> sink_ids;
  };
  std::shared_ptr<const Lineage> lineage;  // null: not offered for reuse
  std::shared_ptr<const void> listing;     // where it is offered; ends with the segment

 private:
  size_t plane(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(head);
  }
  size_t places_bytes() const {
    return static_cast<size_t>(shape_.layers) * static_cast<size_t>(shape_.kv_heads) *
           static_cast<size_t>(tokens_) * sizeof(int32_t);
  }
  KvShape shape_;
  int64_t first_position_;
  int32_t tokens_;
  uint64_t id_;
  HostBuffer pages_;  // (layers, kv_heads, {K, V}, tokens, head_dim), then places (layers, kv_heads, tokens)
                      // int32
  HostBuffer index_;
  HostBuffer offsets_;              // (layers, kv_heads, partitions + 1) int32
  std::vector<size_t> offsets_at_;  // (layers * kv_heads)
  std::vector<HeadIndex> heads_;
};

}  // namespace wi
