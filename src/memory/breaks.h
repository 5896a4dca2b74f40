// A stream that can be interrupted between tasks: long work (a prompt being read) lets urgent work (the next
// token of others) in between, on the same thread, wherever its loops are. What the long work computes is
// the same with and without breaks, since its tasks are.
#pragma once

#include "kernels/types.h"

namespace wi {

class Breaks {
 public:
  virtual ~Breaks() = default;
  // Whether a loop should stop for take(). Asked every few tasks by the thread that the loop is of, while others are at
  // theirs: anybody may come to need a break at any time.
  virtual bool due() = 0;
  // When a loop has stopped or ended: no body runs. Does the urgent work if it is time for it. What it throws ends the
  // long work.
  virtual void take() = 0;
};

// Where a call has no loop of the host's: what is urgent comes now, if it is time for it.
inline void take_break(const Stream& stream) {
  stream.each(1, [](int64_t, int) {});
}

class InterruptibleStream {
 public:
  // breaks may be null: then stream() is `inner`. Both must outlive this.
  InterruptibleStream(const Stream& inner, Breaks* breaks);
  InterruptibleStream(const InterruptibleStream&) = delete;
  InterruptibleStream& operator=(const InterruptibleStream&) = delete;
  const Stream& stream() const { return outer_; }

 private:
  void parallel(int64_t tasks, Stream::Body body, void* context) const;

  const Stream& inner_;
  Breaks* const breaks_;
  Stream outer_;
};

}  // namespace wi
