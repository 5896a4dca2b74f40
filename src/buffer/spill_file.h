// The slow tier of a machine without a GPU: segments that are not needed at every step lie in a file without
// a name, in extents that are reserved before anything is moved there, and their clusters are read back as a
// step wants them (spill_reader.h). Past the page cache, which would be a fast tier that no budget knows;
// never mapped, since a lost disk would then be a signal in the host's process. What is here is gone with the
// process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "src/buffer/file_reads.h"
#include "src/buffer/unnamed_file.h"
#include "src/memory/extents.h"
#include "src/memory/host_pool.h"
#include "src/memory/own_threads.h"

namespace wi {

class SpillFile;

// A file of the slow tier as readers see it. Thread-safe.
class SlowFile {
 public:
  SlowFile() = default;
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;
  virtual ~SlowFile() = default;
  virtual ReadSource source() const = 0;
  virtual std::string name() const = 0;  // for messages
  // Asks the page cache to.
  virtual void forget(uint64_t offset, uint64_t bytes) const noexcept = 0;

  // What is given back, in a list: room for that comes with the extent, for giving back cannot fail.
  struct Returned {
    uint64_t offset, bytes;
    std::unique_ptr<Returned> next;
  };

 private:
  friend class SpillExtent;
  virtual void give_back(std::unique_ptr<Returned>) noexcept {}
};

// Space in a file, given back when this goes; nothing may be reading it then. Keeps the file.
class SpillExtent {
 public:
  SpillExtent() = default;
  SpillExtent(SpillExtent&& other) noexcept
      : file_(std::move(other.file_)),
        returned_(std::move(other.returned_)),
        offset_(std::exchange(other.offset_, 0)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  SpillExtent& operator=(SpillExtent&& other) noexcept {
    SpillExtent(std::move(other)).swap(*this);
    return *this;
  }
  ~SpillExtent();

  uint64_t bytes() const { return bytes_; }
  const SlowFile& file() const { return *file_; }
  explicit operator bool() const { return file_ != nullptr; }
  void swap(SpillExtent& other) noexcept {
    file_.swap(other.file_);
    returned_.swap(other.returned_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  friend class SavedFile;
  friend class SpillFile;
  friend class SpillReader;
  SpillExtent(std::shared_ptr<SlowFile> file, uint64_t offset, uint64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {}

  std::shared_ptr<SlowFile> file_;
  std::unique_ptr<SlowFile::Returned> returned_;  // null: nothing is given back
  uint64_t offset_ = 0, bytes_ = 0;               // in the file; as wanted
};

struct SpillOptions {
  bool direct = true;  // O_DIRECT where the file system has it; false: never
  bool uring = true;   // where the build and the kernel have it; false: threads
  int threads = 16;    // where they read: made with the first reader
  bool ahead = true;   // what will be wanted is read beside the work; false: only when it is
  // What those threads are like, and all that work for the file; not null.
  std::shared_ptr<const OwnThreads> own_threads = std::make_shared<const OwnThreads>();
};

struct SpillStats {
  uint64_t stalls = 0;         // calls that waited for the file
  uint64_t wait_ns = 0;        // that they waited; what was read beside them took other time
  uint64_t requests = 0;       // that were read, waited for or not
  uint64_t wanted_bytes = 0;   // of those requests
  uint64_t reads = 0;          // that the system was asked for
  uint64_t read_bytes = 0;     // of those, with what alignment adds
  uint64_t written_bytes = 0;  // as callers gave them
};

// Thread-safe. In a child made by fork(2), every call is WI_E_STATE, and what goes leaves the file alone.
class SpillFile final : public SlowFile, public std::enable_shared_from_this<SpillFile> {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  // WI_E_IO names the folder and the reason. pool: of the buffers that go between the file and memory.
  // Without O_DIRECT, each read and write asks the page cache to forget it, which it does with what nobody
  // else uses; there reads copy once more inside the kernel, and a file in memory (tmpfs) or over another
  // (overlayfs) stays there.
  static std::shared_ptr<SpillFile> open(const std::string& folder, uint64_t most_bytes,
                                         std::shared_ptr<HostPool> pool, const SpillOptions& options = {});

  // Blocks of the disk for so many bytes, whose content is unspecified. WI_E_BUDGET names purpose, wanted,
  // used and most; WI_E_IO: the disk is full. bytes 0: an empty extent. On a file system that cannot reserve,
  // zeros are written; on one that copies on writing (btrfs, ZFS) the disk can be full later all the same.
  // Meanwhile `poll`, if any, is called, and what it throws ends it.
  SpillExtent reserve(uint64_t bytes, const char* purpose, const std::function<void()>& poll = {});

  // All of it is in the file, or WI_E_IO: that extent's content is unspecified then, all others are as
  // before. offset: in the extent. One write at a time, others wait; poll, called meanwhile and between writes, may
  // throw to give up, with the same result.
  void write(const SpillExtent& extent, uint64_t offset, const void* data, uint64_t bytes,
             const std::function<void()>& poll = {});
  // The first of them that one write takes, and how many those are; 0: others write, for longer than that.
  uint64_t write_some(const SpillExtent& extent, uint64_t offset, const void* data, uint64_t bytes,
                      std::chrono::nanoseconds most_wait);

  // Sum of extents, in whole blocks. Waits for nobody.
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t most() const { return most_bytes_; }
  bool direct() const { return file_.direct(); }
  bool may_be_direct() const { return options_.direct; }
  const OwnThreads& own_threads() const { return *options_.own_threads; }
  bool reads_ahead() const { return options_.ahead; }
  // Of what readers made of it do, in this file and in others.
  SpillStats stats() const;
  // A caller waited so long; stalls: how many such calls more that makes.
  void add_wait(std::chrono::nanoseconds time, uint64_t stalls) noexcept {
    wait_ns_.fetch_add(static_cast<uint64_t>(time.count()), std::memory_order_relaxed);
    stalls_.fetch_add(stalls, std::memory_order_relaxed);
  }
  ReadSource source() const override { return {file_.number(), file_.read_alignment()}; }
  std::string name() const override { return "the spill file in " + file_.folder(); }
  void forget(uint64_t offset, uint64_t bytes) const noexcept override;

 private:
  friend class SpillReader;
  SpillFile(const std::string& folder, uint64_t most_bytes, std::shared_ptr<HostPool> pool,
            const SpillOptions& options);
  void check_process() const;
  void make_space(uint64_t offset, uint64_t bytes, uint64_t end, const std::function<void()>& poll);
  void give_back(std::unique_ptr<Returned> returned) noexcept override;
  void take_back() noexcept;
  void take_in_returned() noexcept;
  void return_to_disk(uint64_t offset, uint64_t bytes) noexcept;
  void punch(uint64_t offset, uint64_t bytes) noexcept;
  void punch_missing() noexcept;
  void write_and_forget(uint64_t at, const std::byte* data, uint64_t bytes);
  void write_blocks(uint64_t at, const std::byte* data, uint64_t bytes, uint64_t extent_end,
                    const std::function<void()>& poll);
  void write_zeros(uint64_t offset, uint64_t bytes, const std::function<void()>& poll);
  void read_block(uint64_t offset, std::byte* to);
  std::unique_ptr<FileReads> make_reads();

  const uint64_t most_bytes_;
  const SpillOptions options_;
  const std::shared_ptr<HostPool> pool_;
  const uint32_t made_after_forks_;
  UnnamedFile file_;

  struct TakingBack {
    SpillFile& file;
    ~TakingBack() { file.take_back(); }
  };

  mutable std::mutex space_;  // of what is taken, with the calls that do it to the file
  std::mutex returning_;      // of the list of what came back meanwhile
  std::unique_ptr<Returned> came_back_;
  Extents extents_;
  std::atomic<uint64_t> used_{0};  // of extents_
  bool reserves_ = true;           // fallocate works
  bool punches_ = true;            // so does making holes; if not, the file's length is held to the limit
  bool missing_ = false;           // some hole failed, for now: meanwhile as well
  uint64_t file_bytes_ = 0;        // its length as far as this has made it
  std::mutex writing_;             // of the buffer, and of blocks that two writes share
  HostBuffer write_buffer_;        // with O_DIRECT
  std::byte* block_ = nullptr;     // the aligned part of that
  std::mutex threads_mutex_;
  std::unique_ptr<ReadThreads> threads_;

  std::atomic<uint64_t> stalls_{0}, wait_ns_{0}, requests_{0}, wanted_bytes_{0}, reads_{0}, read_bytes_{0},
      written_bytes_{0};
};

}  // namespace wi
