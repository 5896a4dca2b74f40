// Reads what will be wanted next while others compute: one batch at a time, by a thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "src/buffer/spill_reader.h"

namespace wi {

// One caller's.
class ReadAhead {
 public:
  // Where the system refuses a thread, wait() reads. Throws as SpillReader's constructor.
  explicit ReadAhead(std::shared_ptr<SpillFile> file);
  ~ReadAhead();  // in a child made by fork(2) there is no such thread, and nobody waits for it
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Each begin() is followed by a wait() or a drop(); until that returns the requests, what they read and where to
  // stay as they are. cancel: as in SpillReader::read().
  void begin(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) noexcept;
  void wait();           // throws what the reading threw
  void drop() noexcept;  // waits, for what the disk has begun
  uint64_t buffer_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wi
