// Reads pieces of extents back, all of a call at once. With O_DIRECT whole sectors go through a buffer, and
// pieces whose sectors touch are one read; what was asked for is copied out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/buffer/spill_file.h"

namespace wi {

struct ReadRequest {
  const SpillExtent* extent;
  uint64_t offset;  // in the extent
  uint64_t bytes;
  void* to;
};

// One caller's, for one thread at a time; kept, since what a call needs is then there for the next one, which
// allocates nothing. Reads extents of any file with the spill file's means, and keeps only that one.
class SpillReader {
 public:
  // WI_E_BUDGET, WI_E_MEMORY: no room for the least buffer (half a MB). A larger one is for more reads at
  // once and is done without where the pool refuses it.
  explicit SpillReader(std::shared_ptr<SpillFile> file);
  SpillReader(const SpillReader&) = delete;
  SpillReader& operator=(const SpillReader&) = delete;

  // Any alignment, any order. Returns when all is there; WI_E_IO, naming the file, or WI_E_CANCELLED once *cancel is
  // set (null: it never is), when no read is under way any more: what the destinations hold is unspecified then.
  void read(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel = nullptr);
  // The same on a thread beside those that the file's statistics call waiting.
  void read_unwaited(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel);

  const char* way() const { return reads_->way(); }  // how: "io_uring" or "threads"
  uint64_t buffer_bytes() const { return buffer_.bytes(); }
  static constexpr uint64_t kMostBuffer = uint64_t{32} << 20;

 private:
  // Of a request, short enough for the least buffer.
  struct Part {
    ReadSource source;
    const SlowFile* file;
    uint64_t offset, bytes;  // in the file
    std::byte* to;
    const std::byte* from;  // in the buffer
  };
  void cut(std::span<const ReadRequest> requests);
  void read_straight(std::span<const Part> parts, const std::atomic<bool>* cancel);
  void read_through_buffer(std::span<Part> parts, const std::atomic<bool>* cancel);
  void grow_buffer(std::span<const Part> parts);
  size_t plan(std::span<Part> parts);
  void run(const std::atomic<bool>* cancel);

  const std::shared_ptr<SpillFile> file_;
  const std::unique_ptr<FileReads> reads_;
  HostBuffer buffer_;
  std::byte* aligned_ = nullptr;  // where it starts, and what is there from that on
  uint64_t aligned_bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<FileRead> planned_;
};

}  // namespace wi
