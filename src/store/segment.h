// A sealed run of tokens: keys and values of all layers and KV heads, laid out partition by partition, with
// the policy's index. A segment never changes, so forks share it, other threads read it without a lock, and a
// session file is a copy of it. Its keys and values may be in memory that only kernels read; other code has
// copies of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/policy.h"
#include "src/buffer/wave_buffer.h"
#include "src/memory/host_pool.h"
#include "src/store/kv_pools.h"
#include "src/store/kv_shape.h"
#include "src/store/token_block.h"

namespace wi {

// SegmentView's offsets of a plane that a policy has laid out: (partitions + 1).
void partition_offsets(const Policy& policy, const void* index, int32_t partitions, int32_t tokens,
                       int32_t* out);

class Segment {
 public:
  // Allocates keys, values and places; the index arrives with attach_index(). first_position: of its first
  // token.
  Segment(const KvPools& pools, const KvShape& shape, int64_t first_position, int32_t tokens,
          HostPages pages = HostPages::huge);
  // Without keys and values: allocate_kv() or attach_slow() follows.
  struct WithoutKv {};
  Segment(const KvPools& pools, const KvShape& shape, int64_t first_position, int32_t tokens, WithoutKv,
          HostPages pages = HostPages::huge);
  ~Segment();

  const KvShape& shape() const { return shape_; }
  int64_t first_position() const { return first_position_; }
  int64_t end_position() const { return first_position_ + tokens_; }
  int32_t tokens() const { return tokens_; }
  uint64_t id() const { return id_; }  // unique in the process, never reused
  size_t bytes() const {
    return (is_slow() ? staying_bytes() : kv_bytes()) + index_bytes();
  }                            // in the fast tier
  size_t index_bytes() const;  // likewise

  // What one of such a shape has beside keys, values and index: each token's place, each partition's offset, each
  // page's frame. partitions: of all heads.
  static uint64_t order_bytes(const KvShape& shape, int32_t tokens, uint64_t partitions);

  SegmentView view(int32_t layer, int32_t head) const { return view(layer, head, slow()); }
  // As it was when slow() was that.
  SegmentView view(int32_t layer, int32_t head, const SlowKv* slow) const;
  // As a device's kernels see it, if keys and values are there or pinned.
  SegmentView view_on_device(int32_t layer, int32_t head) const;

  // Keys and values (count, head_dim) of one head's positions [first, first + count), all of them the
  // segment's, in order of position. To the host's memory, if the host does not read this one.
  void copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* keys,
                   std::byte* values) const;
  // Bytes of all keys and values as they are stored: (layers, kv_heads, {K, V}, tokens, head_dim).
  uint64_t kv_bytes() const { return shape_.token_bytes() * static_cast<uint64_t>(tokens_); }
  void copy_out(uint64_t offset, void* to, size_t bytes) const;
  // Of them, what a slow tier may have, and layers with a window, which want theirs at every step and stay. On a
  // device nothing of such a model leaves.
  uint64_t leaving_bytes() const { return kv_bytes() - staying_bytes(); }
  uint64_t staying_bytes() const {
    return layers_before_.empty()
               ? 0
               : (shape_.token_bytes() - shape_.indexed_token_bytes()) * static_cast<uint64_t>(tokens_);
  }

  // ---- tiers: a segment is born in the fast one, or, where that has no room, slow. Whoever reads keys and values
  // does so while a WaveBuffer::Reading lives, if there is a wave buffer. ----
  // Whether keys and values are in the slow tier: a file, or, of a device's, pinned host memory.
  bool is_slow() const { return is_slow_.load(std::memory_order_acquire); }
  // In the file; null: kernels read them where keys() and values() say.
  const SlowKv* slow() const { return slow_now_.load(std::memory_order_acquire); }
  // Where a plane is there; null: it is in the fast tier.
  struct SlowPlace {
    const SlowKv* kv = nullptr;
    size_t plane = 0;
  };
  SlowPlace slow_place(int32_t layer, int32_t head) const { return slow_place(layer, head, slow()); }
  // To the slow tier; what a step is reading stays until it ends. False: it is there already. Throws
  // WI_E_BUDGET, WI_E_IO, WI_E_MEMORY or, from `poll`, which is called every MB, what that throws, and
  // changes nothing.
  bool demote(WaveBuffer& buffer, const std::function<void()>& poll = {}) const;

  // For kernels; writing, before the segment is shared:
  std::byte* keys(int32_t layer, int32_t head) const;
  std::byte* values(int32_t layer, int32_t head) const;
  int32_t* places(int32_t layer, int32_t head) const;
  int32_t* places_on_device(int32_t layer, int32_t head) const;  // where keys and values are a device's
  void copy_in(uint64_t offset, const void* from, size_t bytes);
  struct HeadIndex {
    size_t offset = 0, bytes = 0;  // in index()
    int32_t partitions = 0;
  };
  // Whether a device has indexed a plane: places_on_device() are made, and where its index is in the device's memory.
  struct MadeThere {
    bool made = false;
    const std::byte* index = nullptr;
  };
  // heads: (layers * kv_heads) as the policy laid them out; made_there: likewise, or none of them. What was made there
  // stays with the device, and crosses the bus once: to `index`, where it has room, and to places(). Throws WI_E_BUDGET or
  // WI_E_MEMORY.
  void attach_index(HostPool& host_pool, const Policy& policy, HostBuffer index, std::vector<HeadIndex> heads,
                    std::span<const MadeThere> made_there = {});
  // The same with offsets that are known: (layers * kv_heads, partitions + 1) int32.
  void attach_index(HostBuffer index, std::vector<HeadIndex> heads, HostBuffer offsets);
  void allocate_kv(HostPages pages = HostPages::huge);
  // Slow from birth: plane by plane in the extent, with layout()'s pages; checksums as SlowKv::open() has them.
  void attach_slow(WaveBuffer& buffer, SpillExtent extent, HostBuffer checksums);
  const std::vector<HeadIndex>& heads() const { return heads_; }
  const HostBuffer& index() const { return index_; }
  PlaneLayout layout(size_t plane) const {  // layer * kv_heads + head
    return {offsets_.as<int32_t>() + offsets_at_[plane], heads_[plane].partitions};
  }
  Memory& memory() const { return pool_->memory(); }  // of keys and values

  // What prefix reuse compares and carries along: the ids of the segment's tokens, what came before.
  struct Lineage {
    uint64_t parent = 0;  // id of the segment before, or the root's key
    std::vector<int32_t> ids;
    BlockRef sink;  // the sequence's first tokens
    std::vector<int32_t> sink_ids;
    bool alike = false;  // as every session computes them that reads these tokens: not a bit differs
  };
  std::shared_ptr<const Lineage> lineage;  // null: not offered for reuse
  std::shared_ptr<const void> listing;     // where it is offered; ends with the segment

 private:
  std::vector<PlaneLayout> layouts() const;  // of planes that may leave
  SlowPlace slow_place(int32_t layer, int32_t head, const SlowKv* slow) const {
    if (!slow || stays(layer)) return {};
    return {slow, place(layer, head)};
  }
  bool stays(int32_t layer) const { return !layers_before_.empty() && shape_.window(layer); }
  // Of a plane among those that stay or leave as it does.
  size_t place(int32_t layer, int32_t head) const {
    return layers_before_.empty() ? plane(layer, head)
                                  : plane(layers_before_[static_cast<size_t>(layer)], head);
  }
  // work(memory, bytes) for each piece of (layers, kv_heads, ...) that lies together.
  template <class Work>
  void each_piece(uint64_t offset, size_t bytes, Work&& work) const;
  size_t plane(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(head);
  }
  KvShape shape_;
  int64_t first_position_;
  int32_t tokens_;
  uint64_t id_;
  std::shared_ptr<HostPool> pool_;
  std::vector<int32_t> layers_before_;  // (layers) that stay or leave as this one; empty: all leave together
  mutable HostBuffer
      pages_;           // (leaving layers, kv_heads, {K, V}, tokens, head_dim); empty once they are slow
  HostBuffer staying_;  // (staying layers, ...) likewise
  mutable std::atomic<std::byte*> kv_{nullptr};  // where those lie, or lay before they went to a file
  HostBuffer places_;                            // (layers, kv_heads, tokens) int32
  HostBuffer index_;
  HostBuffer offsets_;              // (layers, kv_heads, partitions + 1) int32
  std::vector<size_t> offsets_at_;  // (layers * kv_heads)
  std::vector<HeadIndex> heads_;
  HostBuffer places_there_;  // places_ once more, where keys and values are a device's
  HostBuffer on_device_;     // likewise index_ and offsets_
  const std::byte* offsets_there_ = nullptr;
  int32_t* frames_there_ = nullptr;  // SegmentView::frames, plane by plane; null: the shape is not paged
  std::vector<size_t> frames_at_;    // (layers * kv_heads + 1)
  uint64_t first_page_ = 0;          // of all planes

  void index_on_device(const std::vector<HeadIndex>& heads, std::span<const MadeThere> made_there,
                       const HostBuffer& index, size_t offset_bytes);
  void bring_index(const std::vector<HeadIndex>& heads, std::span<const MadeThere> made_there,
                   const HostBuffer& index) const;
  void keep_index(HostBuffer index, std::vector<HeadIndex> heads, HostBuffer offsets);
  void demote_to_pinned(WaveBuffer& buffer, const std::function<void()>& poll) const;

  mutable std::mutex demoting_;
  mutable std::atomic<bool> is_slow_{false};
  mutable HostBuffer pinned_;                  // keys and values, once they are there; as in pages_
  mutable std::shared_ptr<HotPageCache> hot_;  // that may have pages of these
  mutable std::shared_ptr<SlowKv> slow_;
  mutable std::atomic<const SlowKv*> slow_now_{nullptr};
};

}  // namespace wi
