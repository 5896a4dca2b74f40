// Memory of the library's own, with every byte accounted and a budget that is checked before the system is
// asked: a cache that grows too large is WI_E_BUDGET, never the OOM killer. KV pages, indexes and scratch
// live here, out of the host program's malloc but for small pieces where there is no mimalloc. Beyond what is
// accounted, host memory takes an eighth at the most for whole pages, and for small pieces what they once
// were, which mimalloc keeps (host_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/memory/less.h"
#include "src/memory/memory.h"

namespace wi {

class HostPool;

// A piece of a pool's memory; its content is unspecified at first. Keeps the pool alive.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept
      : pool_(std::move(other.pool_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    HostBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~HostBuffer();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  explicit operator bool() const { return data_ != nullptr; }
  // Whatever the memory is; `to` and `from` are the host's, or this memory's.
  void copy_out(uint64_t offset, void* to, size_t bytes) const;
  void copy_in(uint64_t offset, const void* from, size_t bytes) const;
  Memory& memory() const;  // not of an empty buffer
  void swap(HostBuffer& other) noexcept {
    pool_.swap(other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  friend class HostPool;
  HostBuffer(std::shared_ptr<HostPool> pool, std::byte* data, uint64_t bytes)
      : pool_(std::move(pool)), data_(data), bytes_(bytes) {}

  std::shared_ptr<HostPool> pool_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// What may be used in all, by every pool that shares it. Thread-safe.
class MemoryBudget {
 public:
  // rest: a budget that has so much less as this one has in use; null: none.
  explicit MemoryBudget(uint64_t bytes, std::shared_ptr<MemoryBudget> rest = nullptr)
      : bytes_(bytes), rest_(std::move(rest)) {}
  void charge(uint64_t bytes, const char* purpose);  // throws WI_E_BUDGET: purpose, wanted, used and budget
  void refund(uint64_t bytes) noexcept {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    if (rest_) rest_->elsewhere_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // What nobody asks it for and is used all the same, in place of what was told before: it has so much less.
  void tell_elsewhere(uint64_t before, uint64_t now) noexcept {
    elsewhere_.fetch_add(now - before, std::memory_order_relaxed);
  }

  uint64_t bytes() const { return less(bytes_, elsewhere_.load(std::memory_order_relaxed)); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  const uint64_t bytes_;
  const std::shared_ptr<MemoryBudget> rest_;
  std::atomic<uint64_t> elsewhere_{0};  // of bytes_, used by those that this is the rest of
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> peak_{0};
};

// Thread-safe; any thread may free what another allocated.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  // Of host memory with a budget of its own. huge_pages: as HostMemory has them.
  static std::shared_ptr<HostPool> create(uint64_t budget_bytes, bool huge_pages);
  static std::shared_ptr<HostPool> create(std::shared_ptr<MemoryBudget> budget,
                                          std::shared_ptr<Memory> memory);
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // 64-byte aligned; large ones of host memory to pages, see there. bytes 0: an empty buffer. WI_E_BUDGET
  // names purpose, wanted, used and budget; WI_E_MEMORY: the system refused.
  HostBuffer allocate(uint64_t bytes, const char* purpose, HostPages pages = HostPages::huge);

  Memory& memory() const { return *memory_; }
  const std::shared_ptr<MemoryBudget>& shared_budget() const { return budget_; }
  // Of the budget, by whichever pool.
  uint64_t used() const { return budget_->used(); }
  uint64_t peak() const { return budget_->peak(); }
  uint64_t budget() const { return budget_->bytes(); }

 private:
  friend class HostBuffer;
  HostPool(std::shared_ptr<MemoryBudget> budget, std::shared_ptr<Memory> memory)
      : budget_(std::move(budget)), memory_(std::move(memory)) {}
  void free(std::byte* data, uint64_t bytes) noexcept;

  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<Memory> memory_;
};

}  // namespace wi
