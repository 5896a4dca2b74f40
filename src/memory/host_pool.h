// Host memory of the library's own, with every byte accounted and a budget that is checked before the
// system is asked: a cache that grows too large is WI_E_BUDGET, never the OOM killer. KV pages, indexes
// and scratch live here; nothing touches the host program's malloc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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

// What a buffer of kMappedBytes and more is made of: huge pages, if the pool has them, are quicker to read
// from all over; the first touch of one takes the system 0.1 ms where memory is at hand and 7 ms where it is
// not.
enum class HostPages { huge, small };

// Thread-safe; any thread may free what another allocated.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;
  // From this size on a buffer is a mapping of its own: aligned to a huge page, and given back to the
  // system when it is freed, whichever thread frees it.
  static constexpr uint64_t kMappedBytes = uint64_t{2} << 20;

  // huge_pages: ask the kernel for them in buffers of kMappedBytes and more; false: ask it not to.
  static std::shared_ptr<HostPool> create(uint64_t budget_bytes, bool huge_pages);
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // 64-byte aligned; page- or huge-page-aligned from kMappedBytes on. bytes 0: an empty buffer.
  // WI_E_BUDGET names purpose, wanted, used and budget; WI_E_MEMORY: the system refused.
  HostBuffer allocate(uint64_t bytes, const char* purpose, HostPages pages = HostPages::huge);

  // Bytes that count here but live elsewhere. charge() throws WI_E_BUDGET like allocate().
  void charge(uint64_t bytes, const char* purpose);
  void refund(uint64_t bytes) noexcept;

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  uint64_t budget() const { return budget_; }

 private:
  friend class HostBuffer;
  HostPool(uint64_t budget_bytes, bool huge_pages) : budget_(budget_bytes), huge_pages_(huge_pages) {}
  void free(std::byte* data, uint64_t bytes) noexcept;

  const uint64_t budget_;
  const bool huge_pages_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> peak_{0};
};

}  // namespace wi
