// A stream that can be interrupted between tasks: long work (a prompt being read) lets urgent work (the next
// token of others) in between, on the same thread, wherever its loops are. What the long work computes is
// the same with and without breaks, since its tasks are.
#pragma once

#include <chrono>

#include "kernels/types.h"

namespace wi {

class Breaks {
 public:
  virtual ~Breaks() = default;
  // Whether anybody might need a break before long; where not, loops run in one go.
  virtual bool wanted() = 0;
  // Between two tasks, when no body runs: does the urgent work if it is time for it. What it throws ends the
  // long work.
  virtual void take() = 0;
};

class InterruptibleStream {
 public:
  // breaks may be null: then stream() is `inner`. Both must outlive this.
  InterruptibleStream(const Stream& inner, Breaks* breaks);
  InterruptibleStream(const InterruptibleStream&) = delete;
  InterruptibleStream& operator=(const InterruptibleStream&) = delete;
  const Stream& stream() const { return outer_; }

 private:
  void parallel(int64_t tasks, Stream::Body body, void* context) const;

  // Long enough that a loop's start and end do not count, short for who waits.
  static constexpr std::chrono::nanoseconds kSlice{5'000'000};
  const Stream& inner_;
  Breaks* const breaks_;
  Stream outer_;
};

}  // namespace wi
