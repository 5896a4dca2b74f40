// A block of the mutable part of a sequence: keys and values of up to `capacity` consecutive tokens, all
// layers and KV heads. Blocks are shared by forks and copied by whoever writes first (copy on write), which
// is what makes a fork cost microseconds however long the tail is. Pointers into one are for kernels and for
// copies into it; other code reads it by copies. A block may lie in the slow tier, where nobody writes to it and only
// copies read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/memory/host_pool.h"
#include "src/store/kv_shape.h"
#include "src/store/spilled_blocks.h"

namespace wi {

class TokenBlock {
 public:
  TokenBlock(HostPool& pages, const KvShape& shape, int32_t capacity);
  // What `of` has, of which `spilled` has the block of that number.
  TokenBlock(std::shared_ptr<const SpilledBlocks> spilled, size_t number, const TokenBlock& of);

  int32_t capacity() const { return capacity_; }
  size_t bytes() const { return memory_.bytes(); }  // in the fast tier
  size_t kv_bytes() const { return kv_bytes_; }     // in either
  bool is_slow() const { return spilled_ != nullptr; }
  // Keys or values of one head: (capacity, head_dim). Of one in the fast tier.
  std::byte* keys(int32_t layer, int32_t head) const { return memory_.data() + offset(layer, head); }
  std::byte* values(int32_t layer, int32_t head) const { return keys(layer, head) + plane_bytes_; }
  size_t head_stride() const { return 2 * plane_bytes_; }  // from a head's keys to those of the next
  void copy_from(const TokenBlock& other);
  // Keys and values (count, head_dim) of one head's tokens [first, first + count).
  void copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* keys,
                   std::byte* values) const;
  // Of one in the slow tier: keys, then values of one head, (capacity, head_dim) each.
  ReadRequest request(int32_t layer, int32_t head, void* to) const {
    return spilled_->request(number_, offset(layer, head) / head_stride(), to);
  }
  const std::shared_ptr<SpillFile>& file() const { return spilled_->file(); }  // whose readers read it
  // Bytes of all that it holds: (layers, kv_heads, {K, V}, capacity, head_dim).
  void copy_out(uint64_t offset, void* to, size_t bytes) const;
  void copy_in(uint64_t offset, const void* from, size_t bytes) { memory_.copy_in(offset, from, bytes); }

 private:
  friend class BlockRef;
  size_t offset(int32_t layer, int32_t head) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(kv_heads_) + static_cast<size_t>(head)) * 2 *
           plane_bytes_;
  }
  int32_t capacity_, kv_heads_;
  size_t row_bytes_;    // a key of one head
  size_t plane_bytes_;  // keys of one head
  size_t kv_bytes_;
  HostBuffer memory_;
  std::shared_ptr<const SpilledBlocks> spilled_;  // null: it is in memory
  size_t number_ = 0;                             // there
  std::atomic<int32_t> references_{0};
};

// Counts owners itself: unique() must order a write after the last read by an owner that has left, which
// shared_ptr::use_count() does not promise.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(TokenBlock* block) : block_(block) { acquire(); }
  BlockRef(const BlockRef& other) : block_(other.block_) { acquire(); }
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (block_ && block_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete block_;
  }
  TokenBlock* operator->() const { return block_; }
  TokenBlock& operator*() const { return *block_; }
  explicit operator bool() const { return block_ != nullptr; }
  bool unique() const { return block_->references_.load(std::memory_order_acquire) == 1; }

 private:
  void acquire() const {
    if (block_) block_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  TokenBlock* block_ = nullptr;
};

}  // namespace wi
