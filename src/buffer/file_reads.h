// Many reads at once, of any files: by a ring of the kernel's (io_uring), where there is one, or by threads
// that wait in pread(2). Either way a read is done in full or has an error, and when run() returns none is
// under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/memory/own_threads.h"

namespace wi {

// A file as reads see it: with O_DIRECT, offsets, lengths and addresses are multiples of the alignment, and
// the file ends at one.
struct ReadSource {
  int file = -1;
  uint64_t alignment = 1;
};

struct FileRead {
  ReadSource from;
  uint64_t offset = 0, bytes = 0;
  std::byte* to = nullptr;
  uint64_t done = 0;  // bytes
  int error = 0;      // an errno if done < bytes
};

// What is left of a read, on this thread.
void finish_read(FileRead& read) noexcept;
inline bool is_set(const std::atomic<bool>* cancel) {
  return cancel && cancel->load(std::memory_order_relaxed);
}
// A call that gets nowhere is not made more often than this.
constexpr int kMostStuck = 8;

// One caller's: not for two threads at once.
class FileReads {
 public:
  virtual ~FileReads() = default;
  // Throws std::bad_alloc, with no read under way. Allocates nothing that it has allocated once. Once *cancel is
  // set (null: it never is) no read begins any more: those are not done and have no error.
  virtual void run(std::span<FileRead> reads, const std::atomic<bool>* cancel) = 0;
  virtual const char* way() const = 0;  // "io_uring" or "threads"
};

// Null where the build or the kernel has no io_uring for this process. What a ring fails at, be it a read or
// the ring itself, is done with pread(2), whose errors are the ones reported.
std::unique_ptr<FileReads> make_uring_reads();

// Threads that read for any number of callers, who read too. Those that the system refuses are missing;
// without any, callers read alone, one read after the other.
class ReadThreads {
 public:
  // own: what they are like; not null.
  explicit ReadThreads(int threads,
                       std::shared_ptr<const OwnThreads> own = std::make_shared<const OwnThreads>());
  // In a child made by fork(2), where the threads are not, nobody waits for them.
  ~ReadThreads();
  ReadThreads(const ReadThreads&) = delete;
  ReadThreads& operator=(const ReadThreads&) = delete;

  int threads() const;
  // Warns of those that the system refused; with no lock held.
  void tell_refused() const noexcept;
  void run(std::span<FileRead> reads, const std::atomic<bool>* cancel = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wi
