// The frames of a device's cache of hot pages (kernels/hot_pages.h): how many there are, and who may use them when.
// The device decides what is in them. Slabs come when a step begins, as far as the limit and the budget of the
// device's memory go, and leave when no step has them; nothing here is an error of anybody's: where there is no cache,
// pages are read where they lie.
//
// One step at a time uses a cache, for what a step finds must stay until it ends, and steps of different sessions are
// in queues that know nothing of each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/hot_pages.h"
#include "src/buffer/page_cache.h"
#include "src/memory/device.h"
#include "src/memory/host_pool.h"

namespace wi {

// Thread-safe.
class HotPageCache {
 public:
  // pool: of the device's memory. page_bytes: keys and values of kHotPageTokens tokens. slab_bytes: of most slabs.
  HotPageCache(std::shared_ptr<HostPool> pool, size_t page_bytes, size_t slab_bytes);
  HotPageCache(const HotPageCache&) = delete;
  HotPageCache& operator=(const HotPageCache&) = delete;

  size_t page_bytes() const { return page_bytes_; }
  // Of frames and of what is noted of them. A lower limit holds when the step has ended that uses the cache, after the
  // next one, or trim().
  void set_limit(uint64_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // held
  uint64_t leaving_bytes() const;                                            // of them, above the limit
  void trim() noexcept;                                                      // does not wait for a step

  // Pages [first, end), by number, of a segment that is no more: their frames are the next to be taken.
  void forget(HotPageRange pages) noexcept;

  // Of a decode step: the caches that it uses are its own from the first use on, until end(), when all is done that it
  // has asked its queue for.
  class Use {
   public:
    Use() = default;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { end(); }
    // For the next pass of lookups; valid until the one after. Null: without a cache. Waits for other steps.
    const HotPages* begin_pass(const std::shared_ptr<HotPageCache>& cache, Queue& queue);
    void end() noexcept;

   private:
    static constexpr size_t kMost = 2;  // a model's KV types are of two sizes
    std::shared_ptr<HotPageCache> held_[kMost];
  };

 private:
  // Offsets in notes_.
  struct Layout {
    uint64_t pages, last_use, memory, order, misses, counts, now, bytes;
  };
  static Layout layout(int32_t frames);
  int32_t frames_within(uint64_t bytes) const;
  bool begin(bool may_wait);
  // By whoever has the cache:
  void end() noexcept;
  const HotPages* begin_pass(Queue& queue);
  void order(Queue& queue);
  void fit();
  void grow(int32_t frames);
  bool make_room(int32_t frames);
  void shrink(int32_t frames) noexcept;
  void count_bytes() noexcept;

  const std::shared_ptr<HostPool> pool_;
  const size_t page_bytes_;
  const SlabSizes sizes_;
  std::atomic<uint64_t> limit_{0}, bytes_{0};
  std::atomic<int32_t> frames_{0};

  std::mutex in_use_;
  std::atomic<std::thread::id> user_{};  // of in_use_
  // Of whoever has it:
  std::vector<HostBuffer> slabs_;
  HostBuffer notes_;  // what HotPages points to
  int32_t room_ = 0;  // frames that notes_ has room for
  HotPages hot_{};
  HotPageStep now_;                 // of which the device has a copy
  bool ordered_ = false;            // for this step
  int refused_ = 0;                 // steps until more memory is asked for
  std::vector<HotPageRange> told_;  // to the device, of gone_

  std::mutex gone_mutex_;
  std::vector<HotPageRange> gone_;
};

}  // namespace wi
