// Reads what will be wanted next while others compute: one batch at a time, by a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>

#include "src/buffer/spill_reader.h"

namespace wi {

// One caller's. What it waits for is counted in the file's statistics, what is read beside it is not.
class ReadAhead {
 public:
  // Where the system refuses a thread, wait() reads. Throws as SpillReader's constructor.
  explicit ReadAhead(std::shared_ptr<SpillFile> file);
  ~ReadAhead();  // in a child made by fork(2) there is no such thread, and nobody waits for it
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Each begin() is followed by wait() until that is true or throws, or by drop(): until then the requests, where
  // they are read from and to, and *cancel stay. cancel: as in SpillReader::read().
  void begin(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) noexcept;
  // Whether all is there, after at most so long; what nobody has begun to read this thread reads, however long that
  // takes. Throws what the reading threw.
  bool wait(std::chrono::nanoseconds most);
  // Of no interest any more: what the disk has begun it ends, and nothing is written after that.
  void drop() noexcept;
  // Now, on this thread. Nothing has begun.
  void read(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel);
  uint64_t buffer_bytes() const;  // while nothing is being read

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wi
