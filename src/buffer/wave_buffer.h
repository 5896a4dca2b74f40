// The wave buffer (RetroInfer §4.3; SPIN §4 and 5): segments that do not fit into fast memory lie in the slow
// tier, and what steps want of them is kept in frames. Access is synchronous and reads what is there; the
// manager, a thread of its own, hears afterwards what was used, and decides beside the next steps what stays.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/buffer/epochs.h"
#include "src/buffer/hot_page_cache.h"
#include "src/buffer/page_cache.h"
#include "src/buffer/saved_file.h"
#include "src/buffer/slow_kv.h"
#include "src/buffer/spill_file.h"

namespace wi {

enum class BufferManager { lru, bucketed };

struct WaveBufferParams {
  // The slow tier: memory that a device's kernels read in place, if null, a file.
  std::shared_ptr<HostPool> pinned = nullptr;
  std::shared_ptr<HostPool> device = nullptr;   // with pinned: the device's memory, for frames
  std::string folder;                           // of the file
  uint64_t most_bytes = SpillFile::kUnlimited;  // of that file
  BufferManager manager = BufferManager::lru;
  SpillOptions file;               // own_threads: the manager is one of them too
  size_t slab_bytes = kSlabBytes;  // of frames
};

struct WaveBufferStats {
  uint64_t admissions = 0, evictions = 0, refusals = 0, late = 0;  // as PageCacheStats has them
  uint64_t frame_bytes = 0, slow_bytes = 0;                        // held
  SpillStats file;
};

// What the wave buffer has of its pool's budget.
struct WaveBufferMemory {
  uint64_t frames = 0;          // used or free
  uint64_t leaving_frames = 0;  // of them, more than there may be
  uint64_t retired = 0;         // of segments that steps may still be reading
};

// What a step used, for the manager.
struct StepUse {
  uint64_t step = 0;
  PageCache* cache = nullptr;
  std::vector<EntryUse> hits;
};

// Thread-safe.
class WaveBuffer {
 public:
  // WI_E_IO names the folder and why there can be no file in it.
  static std::shared_ptr<WaveBuffer> open(std::shared_ptr<HostPool> pool, const WaveBufferParams& params);
  ~WaveBuffer();
  WaveBuffer(const WaveBuffer&) = delete;
  WaveBuffer& operator=(const WaveBuffer&) = delete;

  const std::shared_ptr<SpillFile>& file() const { return file_; }  // null: it is pinned memory
  SavedFiles& saved_files() { return saved_files_; }
  const std::shared_ptr<HostPool>& pinned() const { return pinned_; }  // null: it is a file
  // What frames for all of so many bytes take: a partition's last one is not full, and the cache clears room while
  // what it has is within a slab of its limit.
  uint64_t frame_bytes_for(uint64_t slow_bytes) const {
    return slow_bytes + slow_bytes / 4 + 4 * slab_bytes_;
  }
  const OwnThreads& own_threads() const { return *own_threads_; }
  // Frames for one size of pages; throws std::bad_alloc.
  std::shared_ptr<PageCache> cache_of(size_t page_bytes);
  std::shared_ptr<HotPageCache> hot_pages(size_t page_bytes);  // the same of what is pinned

  // Anything that reads keys and values: while it lives, those of segments stay where it saw them.
  class Reading {
   public:
    explicit Reading(WaveBuffer* buffer) : buffer_(buffer) { begin(); }  // null: there is no slow tier
    ~Reading() { end(); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    void begin() {
      if (buffer_) number_ = buffer_->readings_.enter();
    }
    void end() noexcept {
      if (!number_) return;
      buffer_->readings_.leave(std::exchange(number_, 0));
      buffer_->free_retired();
    }

   private:
    WaveBuffer* const buffer_;
    uint64_t number_ = 0;
  };
  // A decode step, within a reading: between these the frames that it found stay as they are. The end carries out
  // what was decided meanwhile; neither waits for the manager. A prompt's chunk looks at no frames, and so keeps
  // none from others while it takes its time.
  uint64_t begin_step() { return steps_.enter(); }  // throws std::bad_alloc
  void end_step(uint64_t step) noexcept;
  // A step's hits; its use is swapped for an empty one that has room. Nothing is lost but order if it is not
  // taken.
  void post(StepUse& use) noexcept;

  // Work for the manager's thread, which may take a while; what it throws is its own business. It calls `hear` every
  // so often, there and with no lock held that steps or caches want: until then nothing is heard that steps post. False:
  // there is no such thread.
  using Hear = std::function<void()>;
  bool later(std::function<void(const Hear& hear)> work);

  // Room to note a buffer in that is to be retired: what steps are reading must not be freed for want of it.
  class Retiring {
   public:
    explicit Retiring(WaveBuffer& buffer);  // throws std::bad_alloc
    ~Retiring();
    Retiring(const Retiring&) = delete;
    Retiring& operator=(const Retiring&) = delete;

   private:
    WaveBuffer& buffer_;
  };
  // Freed when the steps have ended that may be reading it. A Retiring lives, for each that may be.
  void retire(HostBuffer buffer) noexcept;

  // A session's part of the fast tier, in frames of one size; given back when it goes. Frames are everybody's:
  // the parts add up to how many there may be.
  class Share {
   public:
    Share(std::shared_ptr<WaveBuffer> buffer, size_t page_bytes)
        : buffer_(std::move(buffer)), page_bytes_(page_bytes) {}
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // What has to go goes with catch_up(). Throws std::bad_alloc.
    void set(uint64_t bytes);
    uint64_t bytes() const { return bytes_; }

   private:
    const std::shared_ptr<WaveBuffer> buffer_;
    const size_t page_bytes_;
    uint64_t bytes_ = 0;
  };

  WaveBufferStats stats() const;
  WaveBufferMemory memory() const;
  size_t slab_bytes() const { return slab_bytes_; }
  // What has no share any more goes, which takes its time: with no lock held.
  void catch_up() noexcept;
  // What is to leave and no step looks at goes now, though none begins or ends. May wait for the manager.
  void hasten();

 private:
  WaveBuffer(std::shared_ptr<HostPool> pool, const WaveBufferParams& params);
  void manage();
  void hear_steps() noexcept;
  template <class Body>
  void each_cache(Body&& body);
  void change_share(size_t page_bytes, uint64_t before, uint64_t after);
  void free_retired() noexcept;

  struct Retired {
    HostBuffer buffer;
    uint64_t since;
  };

  const std::shared_ptr<HostPool> pool_;
  const BufferManager manager_kind_;
  const size_t slab_bytes_;
  const std::shared_ptr<HostPool> pinned_, device_;
  const std::shared_ptr<const OwnThreads> own_threads_;
  const std::shared_ptr<SpillFile> file_;
  SavedFiles saved_files_;
  const uint32_t made_after_forks_;
  Epochs readings_, steps_;

  mutable std::mutex caches_mutex_;
  std::vector<std::shared_ptr<PageCache>> caches_;
  std::vector<std::shared_ptr<HotPageCache>> hot_;
  mutable std::mutex shares_mutex_;
  std::vector<uint64_t> shares_;  // (caches) bytes, of all sessions

  mutable std::mutex retired_mutex_;
  std::vector<Retired> retired_;
  size_t retiring_ = 0;       // that there is room for in retired_
  uint64_t freed_bytes_ = 0;  // of what is on its way back to the system

  std::mutex queue_mutex_;
  std::condition_variable posted_;
  std::vector<StepUse> queue_, spare_;
  std::deque<std::function<void(const Hear&)>> work_;
  bool stopping_ = false;
  std::unique_ptr<std::thread> manager_;  // null where the system refused it: post() then does its work
};

}  // namespace wi
