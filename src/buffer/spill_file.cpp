#include "src/buffer/spill_file.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include "src/buffer/patient_lock.h"
#include "src/error.h"
#include "src/file_size_signal.h"
#include "src/host_process.h"
#include "src/no_signals.h"

namespace wi {
namespace {

constexpr uint64_t kBufferBytes = uint64_t{1} << 20;  // a multiple of every block size
// So that sums do not overflow, nor offsets as the system has them.
constexpr uint64_t kMostBytes = uint64_t{1} << 61;

// Reserved between two looks at whether the caller gives up. A file system in memory clears it at some GB/s.
constexpr uint64_t kReservedAtOnce = uint64_t{16} << 20;

// 0 or an errno.
int change_space(int file, int mode, uint64_t offset, uint64_t bytes);
bool is_not_supported(int reason) { return reason == EOPNOTSUPP || reason == ENOSYS || reason == EINVAL; }

}  // namespace

std::shared_ptr<SpillFile> SpillFile::open(const std::string& folder, uint64_t most_bytes,
                                           std::shared_ptr<HostPool> pool, const SpillOptions& options) {
  return std::shared_ptr<SpillFile>(new SpillFile(folder, most_bytes, std::move(pool), options));
}

// What writes need is here before memory is short, which is when they are wanted.
SpillFile::SpillFile(const std::string& folder, uint64_t most_bytes, std::shared_ptr<HostPool> pool,
                     const SpillOptions& options)
    : most_bytes_(std::min(most_bytes, kMostBytes)),
      options_(options),
      pool_(std::move(pool)),
      made_after_forks_(fork_count()),
      file_(folder, options.direct) {
  if (!file_.direct()) return;
  write_buffer_ = pool_->allocate(kBufferBytes + file_.block_bytes(), "writing to the spill file");
  block_ = round_up(write_buffer_.data(), file_.block_bytes());
}

SpillExtent::~SpillExtent() {
  if (returned_) file_->give_back(std::move(returned_));
}

// The parent has the same file, and does with it what this process does not see.
void SpillFile::check_process() const {
  check(fork_count() == made_after_forks_, WI_E_STATE, "the spill file is of the process before fork()");
}

// ---- space ----

SpillExtent SpillFile::reserve(uint64_t bytes, const char* purpose, const std::function<void()>& poll) {
  check_process();
  if (bytes == 0) return {};
  SpillExtent extent(shared_from_this(), 0, bytes);
  auto returned = std::make_unique<Returned>();
  const TakingBack after{*this};
  const std::unique_lock lock = lock_patiently(space_, poll);
  take_in_returned();
  punch_missing();
  const uint64_t used = extents_.used();
  const auto refuse = [&](const char* why) {
    fail(WI_E_BUDGET, purpose, " wants ", bytes, " bytes of the spill file in ", file_.folder(), ", ", used,
         " of its ", most_bytes_, " are used", why);
  };
  if (bytes > most_bytes_ || round_up(bytes, file_.block_bytes()) > most_bytes_ - used) refuse("");
  const uint64_t whole = round_up(bytes, file_.block_bytes());
  const uint64_t offset = extents_.take(whole, punches_ && !missing_ ? kMostBytes : most_bytes_);
  if (offset == Extents::kNowhere) refuse(", and what is free between them is in smaller pieces");
  used_.store(extents_.used(), std::memory_order_relaxed);
  const auto give_up = [&] {
    extents_.give(offset, whole);
    used_.store(extents_.used(), std::memory_order_relaxed);
    return_to_disk(offset, whole);
  };
  try {
    make_space(offset, whole, extents_.end(), poll);
  } catch (const Error& error) {
    give_up();
    if (error.code() == WI_E_CANCELLED) throw;
    throw_error(error.code(),
                concat("cannot reserve ", bytes, " bytes of the spill file in ", file_.folder(), " for ",
                       purpose, ": ", error.what()),
                error.native_code());
  } catch (...) {
    give_up();
    throw;
  }
  *returned = {offset, whole, nullptr};
  extent.offset_ = offset;
  extent.returned_ = std::move(returned);
  return extent;
}

void SpillFile::make_space(uint64_t offset, uint64_t bytes, uint64_t end, const std::function<void()>& poll) {
  for (uint64_t done = 0; reserves_ && done < bytes; done += kReservedAtOnce) {
    if (poll) poll();
    const int reason =
        change_space(file_.number(), 0, offset + done, std::min(kReservedAtOnce, bytes - done));
    if (reason != 0 && !is_not_supported(reason)) throw_error(WI_E_IO, error_text(reason), reason);
    reserves_ = reason == 0;
  }
  // What is in the file already stays there: where nothing can be reserved, nothing is punched.
  if (!reserves_ && end > file_bytes_)
    write_zeros(std::max(offset, file_bytes_), end - std::max(offset, file_bytes_), poll);
  file_bytes_ = std::max(file_bytes_, end);
}

// Nobody waits for who is writing zeros: what comes back meanwhile is taken in by that one.
void SpillFile::give_back(std::unique_ptr<Returned> returned) noexcept {
  if (fork_count() != made_after_forks_) return;
  {
    const std::lock_guard lock(returning_);
    returned->next = std::move(came_back_);
    came_back_ = std::move(returned);
  }
  take_back();
}

void SpillFile::take_back() noexcept {
  for (;;) {
    {
      const std::lock_guard lock(returning_);
      if (!came_back_) return;
    }
    const std::unique_lock lock(space_, std::try_to_lock);
    if (!lock) return;
    take_in_returned();
  }
}

// With space_ held.
void SpillFile::take_in_returned() noexcept {
  for (;;) {
    std::unique_ptr<Returned> one;
    {
      const std::lock_guard lock(returning_);
      if (!came_back_) return;
      one = std::move(came_back_);
      came_back_ = std::move(one->next);
    }
    extents_.give(one->offset, one->bytes);
    used_.store(extents_.used(), std::memory_order_relaxed);
    return_to_disk(one->offset, one->bytes);
  }
}

// Where the file system cannot, the space stays the file's, for extents to come.
void SpillFile::return_to_disk(uint64_t offset, uint64_t bytes) noexcept {
  punch_missing();
  if (const uint64_t end = extents_.end(); offset >= end) {
    if (ftruncate(file_.number(), static_cast<off_t>(end)) == 0) file_bytes_ = end;
  } else {
    punches_ = punches_ && reserves_;
    punch(offset, bytes);
  }
}

void SpillFile::punch(uint64_t offset, uint64_t bytes) noexcept {
  if (!punches_) return;
  const int reason = change_space(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  if (is_not_supported(reason)) punches_ = false;
  missing_ = missing_ || reason != 0;
}

// Holes that the disk failed to make, as one that is full may, are tried again whenever space comes or goes.
void SpillFile::punch_missing() noexcept {
  if (!std::exchange(missing_, false)) return;
  for (const Extents::Range& range : extents_.free())
    if (!missing_) punch(range.offset, range.bytes);
}

// ---- writing ----

void SpillFile::write(const SpillExtent& extent, uint64_t offset, const void* data, uint64_t bytes,
                      const std::function<void()>& poll) {
  check_process();
  assert(extent.file_.get() == this && offset <= extent.bytes_ && bytes <= extent.bytes_ - offset);
  const uint64_t at = extent.offset_ + offset;
  const auto* from = static_cast<const std::byte*>(data);
  if (file_.direct()) {
    const std::unique_lock lock = lock_patiently(writing_, poll);
    write_blocks(at, from, bytes, extent.offset_ + extent.bytes_, poll);
  } else {
    for (uint64_t done = 0; done < bytes; done += kBufferBytes) {
      if (poll) poll();
      write_and_forget(at + done, from + done, std::min(kBufferBytes, bytes - done));
    }
  }
  written_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

uint64_t SpillFile::write_some(const SpillExtent& extent, uint64_t offset, const void* data, uint64_t bytes,
                               std::chrono::nanoseconds most_wait) {
  check_process();
  assert(extent.file_.get() == this && offset <= extent.bytes_ && bytes <= extent.bytes_ - offset);
  const uint64_t at = extent.offset_ + offset;
  const auto* from = static_cast<const std::byte*>(data);
  uint64_t some = std::min(bytes, kBufferBytes);
  if (file_.direct()) {
    const std::unique_lock lock = lock_within(writing_, most_wait);
    if (!lock) return 0;
    some = std::min(bytes, kBufferBytes - at % file_.block_bytes());
    write_blocks(at, from, some, extent.offset_ + extent.bytes_, {});
  } else {
    write_and_forget(at, from, some);
  }
  written_bytes_.fetch_add(some, std::memory_order_relaxed);
  return some;
}

// Through the page cache: pages are forgotten once they are on the disk.
void SpillFile::write_and_forget(uint64_t at, const std::byte* data, uint64_t bytes) {
  file_.write(at, data, bytes);
  constexpr unsigned kWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(file_.number(), static_cast<off_t>(at), static_cast<off_t>(bytes), kWait) != 0 &&
      (errno == EIO || errno == ENOSPC || errno == EDQUOT))
    throw_errno(WI_E_IO, "cannot write to the spill file in " + file_.folder(), errno);
  forget(at, bytes);
}

// Through the aligned buffer. A block that is written in part is read first, except for its part behind the
// extent, where nothing is.
void SpillFile::write_blocks(uint64_t at, const std::byte* data, uint64_t bytes, uint64_t extent_end,
                             const std::function<void()>& poll) {
  const uint64_t block_bytes = file_.block_bytes();
  while (bytes > 0) {
    if (poll) poll();
    const uint64_t begin = round_down(at, block_bytes), skipped = at - begin;
    const uint64_t now = std::min(bytes, kBufferBytes - skipped), end = round_up(at + now, block_bytes);
    const uint64_t last = end - block_bytes;
    if (skipped > 0) read_block(begin, block_);
    if (at + now < end && !(skipped > 0 && last == begin)) {
      if (at + now < extent_end)
        read_block(last, block_ + (last - begin));
      else
        std::memset(block_ + (last - begin), 0, block_bytes);
    }
    std::memcpy(block_ + skipped, data, now);
    file_.write(begin, block_, end - begin);
    at += now;
    data += now;
    bytes -= now;
  }
}

void SpillFile::read_block(uint64_t offset, std::byte* to) {
  FileRead read{source(), offset, file_.block_bytes(), to};
  finish_read(read);
  if (read.done < read.bytes)
    throw_errno(WI_E_IO, "cannot write to the spill file in " + file_.folder(), read.error);
}

void SpillFile::write_zeros(uint64_t offset, uint64_t bytes, const std::function<void()>& poll) {
  const std::unique_lock lock = lock_patiently(writing_, poll);
  alignas(64) static constexpr std::byte kZeros[65536]{};
  const std::byte* zeros = kZeros;
  uint64_t most = sizeof kZeros;
  if (file_.direct()) {
    std::memset(block_, 0, kBufferBytes);
    zeros = block_;
    most = kBufferBytes;
  }
  for (uint64_t done = 0; done < bytes; done += std::min(most, bytes - done)) {
    if (poll) poll();
    file_.write(offset + done, zeros, std::min(most, bytes - done));
  }
}

void SpillFile::forget(uint64_t offset, uint64_t bytes) const noexcept {
  const uint64_t begin = round_down(offset, file_.block_bytes());
  const uint64_t end = round_up(offset + bytes, file_.block_bytes());
  posix_fadvise(file_.number(), static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                POSIX_FADV_DONTNEED);
}

// ---- reading ----

namespace {

class ThreadReads final : public FileReads {
 public:
  explicit ThreadReads(ReadThreads& threads) : threads_(threads) {}
  void run(std::span<FileRead> reads, const std::atomic<bool>* cancel) override {
    threads_.run(reads, cancel);
  }
  const char* way() const override { return "threads"; }

 private:
  ReadThreads& threads_;
};

}  // namespace

std::unique_ptr<FileReads> SpillFile::make_reads() {
  check_process();
  if (options_.uring)
    if (auto reads = make_uring_reads()) return reads;
  {
    std::lock_guard lock(threads_mutex_);
    if (!threads_) threads_ = std::make_unique<ReadThreads>(options_.threads, options_.own_threads);
  }
  threads_->tell_refused();
  return std::make_unique<ThreadReads>(*threads_);
}

SpillStats SpillFile::stats() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {stalls_.load(kRelaxed),       wait_ns_.load(kRelaxed), requests_.load(kRelaxed),
          wanted_bytes_.load(kRelaxed), reads_.load(kRelaxed),   read_bytes_.load(kRelaxed),
          written_bytes_.load(kRelaxed)};
}

namespace {

// Where a signal interrupts it, file systems in memory give back what they have: one that comes every so often, as a
// profiler's does, would keep it from ever ending.
int change_space(int file, int mode, uint64_t offset, uint64_t bytes) {
  const NoSignals none;
  int result;
  do {
    NoFileSizeSignal guard;
    result = fallocate(file, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    guard.refused = result == EFBIG;
  } while (result == EINTR);
  return result;
}

}  // namespace
}  // namespace wi
