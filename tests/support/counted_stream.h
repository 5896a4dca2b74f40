// A stream that says it has any number of workers: it runs the tasks of each loop by itself, the last one first, in
// the name of all workers in turn, and counts them. What a machine of so many cores would be given.
#pragma once

#include <vector>

#include "kernels/types.h"

namespace wi::test {

class CountedStream {
 public:
  explicit CountedStream(int workers) : scratch_(static_cast<size_t>(workers) + 1) {
    stream_.self = this;
    stream_.workers = workers;
    stream_.parallel = [](const Stream& stream, int64_t tasks, Stream::Body body, void* context) {
      self(stream.self).tasks_.push_back(tasks);
      for (int64_t task = tasks; task-- > 0;)
        body(context, task, static_cast<int>(task % static_cast<int64_t>(stream.workers)));
    };
    stream_.worker_scratch = [](void* of, int worker, size_t bytes) {
      return self(of).room(static_cast<size_t>(worker) + 1, bytes);
    };
    stream_.shared_scratch = [](void* of, size_t bytes) { return self(of).room(0, bytes); };
  }
  CountedStream(const CountedStream&) = delete;
  CountedStream& operator=(const CountedStream&) = delete;

  const Stream& stream() const { return stream_; }
  // Of each loop since it was made.
  const std::vector<int64_t>& tasks() const { return tasks_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static CountedStream& self(void* of) { return *static_cast<CountedStream*>(of); }
  std::byte* room(size_t of, size_t bytes) {
    std::vector<Line>& lines = scratch_[of];
    if (lines.size() * sizeof(Line) < bytes) lines.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    return lines.data()->bytes;
  }

  Stream stream_;
  std::vector<std::vector<Line>> scratch_;  // the operation's, then each worker's
  std::vector<int64_t> tasks_;
};

}  // namespace wi::test
