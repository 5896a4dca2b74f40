// One sequence's KV cache as a log-structured store (design after LSM trees):
//
//   sink (first 4 tokens) | sealed segments … | tail (recent tokens, mutable)
//
// New keys and values go to the tail; pipeline/index.cpp seals its oldest part into a segment. Copying a
// Sequence is forking it: segments and blocks are shared, a shared block is copied by whoever writes first.
// Not thread-safe itself; copies are independent and may live on different threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "src/store/device_views.h"
#include "src/store/segment.h"
#include "src/store/segment_grid.h"
#include "src/store/token_block.h"

namespace wi {

class Building;  // of pipeline/, which makes segments

class Sequence {
 public:
  // budget_bytes 0: only the pool's own budget counts.
  Sequence(KvPools pools, const KvShape& shape, uint64_t budget_bytes);

  const KvShape& shape() const { return shape_; }
  const KvPools& pools() const { return pools_; }
  int64_t tokens() const { return tokens_; }  // committed
  int64_t sealed_end() const { return sealed_end_; }
  int64_t tail_tokens() const { return tokens_ > sealed_end_ ? tokens_ - sealed_end_ : 0; }
  int64_t indexed_tokens() const {
    return sealed_end_ - kSinkTokens > 0 && !segments_.empty() ? sealed_end_ - kSinkTokens : 0;
  }
  size_t bytes() const;  // in the fast tier
  size_t index_bytes() const;
  size_t slow_bytes() const;                                          // in the slow tier
  size_t slow_segments() const { return views_ ? views_->slow : 0; }  // in a file
  // In pinned host memory, of a device's; whether the segment of that number was when views() was made.
  size_t pinned_segments() const { return views_ ? views_->pinned : 0; }
  bool in_pinned_memory(size_t segment) const { return views_->is_pinned[segment]; }
  // Segments that others may have demoted are found where they are. At the beginning of a step, which is a reading of
  // a device's views. Throws WI_E_BUDGET or WI_E_MEMORY if these are not to be changed and there is no room for others.
  void refresh(DeviceViews::Reading* reading = nullptr);

  // ---- append: reserve, write every layer where places() says, commit. Until commit nothing is visible. ----
  void reserve(int64_t count);  // room for `count` tokens after tokens(); throws WI_E_BUDGET or WI_E_MEMORY
  uint64_t bytes_to_reserve(
      int64_t count) const;              // what that takes: new blocks, and copies of those others share
  void unreserve(int64_t end) noexcept;  // gives back what is room for tokens from `end` on alone
  // Adds to `runs` where the tokens [first, first + count) go; none is sealed. row: that of the first.
  void places(int32_t layer, int64_t first, int64_t count, int64_t row, std::vector<AppendRun>& runs);
  void commit(int64_t count);
  void take_back(int64_t count) { tokens_ -= count; }  // the newest, of which none is sealed

  // ---- the tail's tiers: while a prompt is read, its older blocks may lie in the slow one ----
  size_t slow_blocks() const;  // which are the first ones
  // Those that end by `end` go there; of blocks that others share, whose memory stays theirs, too. Throws as
  // SpilledBlocks, and then changes nothing. No reading of the sequence lives that may look at its tail.
  void spill_tail(const std::shared_ptr<SpillFile>& file, int64_t end, const std::function<void()>& poll);
  // Where steps read them. Throws WI_E_BUDGET, WI_E_MEMORY or WI_E_IO.
  void bring_back_tail();

  // ---- read ----
  // Steady zone of a query that sees positions < end: sink and tail as runs, oldest first. Returns the count. No
  // block is slow.
  int32_t steady_runs(int32_t layer, int32_t head, int64_t end, KvRun* runs) const;
  int32_t max_steady_runs() const { return 1 + static_cast<int32_t>(tail_.size()); }
  // Positions [first, end) as runs, oldest first, without addresses where views() or blocks have them in the slow
  // tier; within a whole segment in the order it has them, so that `first` may lie inside one only where its tokens
  // are in order, as in layers with a window.
  int32_t runs(int32_t layer, int32_t head, int64_t first, int64_t end, KvRun* runs) const;
  int32_t max_runs() const { return max_steady_runs() + static_cast<int32_t>(segments_.size()); }
  // Keys and values (count, head_dim) of the positions [first, first + count), wherever they are.
  void copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* keys,
                   std::byte* values) const;
  std::span<const std::shared_ptr<const Segment>> segments() const { return segments_; }
  // The segments of one head, contiguous, in order.
  const SegmentView* views(int32_t layer, int32_t head) const;
  const SegmentView* views_on_device(int32_t layer, int32_t head) const;  // in its memory
  int32_t partitions(int32_t layer, int32_t head) const;

  // ---- structure ----
  // The segment takes the place of all segments from its first position on and of the tail's tokens up to its
  // end.
  void seal(std::shared_ptr<const Segment> segment);
  // Segments that begin below it stay as they are; later ones may be sealed again as part of a longer one,
  // while a prompt comes in pieces.
  int64_t settled_end() const { return settled_end_; }
  void settle() { settled_end_ = sealed_end_; }
  void restore_settled_end(int64_t end) { settled_end_ = end; }  // of a saved sequence
  // The segment that the tail's first tokens are being made into, kept here for seal_decoded() and shared by
  // copies; null: none.
  std::shared_ptr<Building>& building() { return building_; }
  bool being_built() const { return building_ != nullptr; }
  // Takes over a segment computed elsewhere that starts where this sequence ends (prefix reuse, load).
  void adopt(std::shared_ptr<const Segment> segment, const BlockRef& sink);
  // Ends loading: the blocks after the adopted segments, `tokens` in all.
  void restore_tail(BlockRef sink, std::vector<BlockRef> tail, int64_t tokens);
  // The first `tokens` tokens. Of the segments those stay that end by sealed_end; a `cut` one, which ends
  // there, follows them (null: none), and all else becomes tail. Settles. Throws WI_E_BUDGET or WI_E_MEMORY
  // and then changes nothing.
  void truncate(int64_t tokens, int64_t sealed_end, std::shared_ptr<const Segment> cut);
  bool within_budget(size_t more_bytes) const;
  void check_budget(size_t more_bytes, const char* purpose) const;
  void set_budget(uint64_t bytes);  // throws WI_E_BUDGET if more is held already; 0: none

  const BlockRef& sink() const { return sink_; }
  std::span<const BlockRef> tail() const { return tail_; }

 private:
  struct Slot {
    BlockRef* block;
    int32_t index;
  };
  Slot slot(int64_t position);
  size_t tail_blocks_for(int64_t count) const;
  static bool is_writable(const BlockRef& block) { return block.unique() && !block->is_slow(); }
  void make_writable(BlockRef& block);
  void copy_to_tail(const Segment& segment, int64_t end);
  void push_segment(std::shared_ptr<const Segment> segment);
  void rebuild_views(std::shared_ptr<DeviceViews> on_device = nullptr);

  KvPools pools_;
  KvShape shape_;
  uint64_t budget_bytes_;
  int64_t tokens_ = 0;
  int64_t sealed_end_ = kSinkTokens;  // position of the tail's first token
  int64_t settled_end_ = kSinkTokens;
  std::shared_ptr<Building> building_;
  BlockRef sink_;
  std::vector<std::shared_ptr<const Segment>> segments_;
  std::vector<BlockRef> tail_;
  struct Views {
    std::vector<SegmentView> view;           // (layers, kv_heads, segments)
    std::vector<int32_t> partitions;         // (layers, kv_heads)
    size_t slow = 0, pinned = 0;             // segments
    std::vector<bool> is_pinned;             // (segments)
    std::shared_ptr<DeviceViews> on_device;  // null: there is no device, or no segment
  };
  std::shared_ptr<const Views> views_;
};

// Throws WI_E_UNSUPPORTED if keys or values of a layer left what the KV type holds, in which case attention
// would be no number: says how large they are and which type to use. whose: the message's beginning.
void check_kv_range(DType kv, uint32_t magnitude_bits, int32_t layer, std::string_view whose = {});

}  // namespace wi
