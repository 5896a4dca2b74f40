#include "src/memory/breaks.h"

#include <algorithm>

namespace wi {

InterruptibleStream::InterruptibleStream(const Stream& inner, Breaks* breaks)
    : inner_(inner), breaks_(breaks), outer_(inner) {
  if (!breaks) return;
  outer_.self = this;
  outer_.worker_scratch = [](void* self, int worker, size_t bytes) {
    const Stream& to = static_cast<InterruptibleStream*>(self)->inner_;
    return to.worker_scratch(to.self, worker, bytes);
  };
  outer_.shared_scratch = [](void* self, size_t bytes) {
    const Stream& to = static_cast<InterruptibleStream*>(self)->inner_;
    return to.shared_scratch(to.self, bytes);
  };
  outer_.parallel = [](const Stream& stream, int64_t tasks, Stream::Body body, void* context) {
    static_cast<const InterruptibleStream*>(stream.self)->parallel(tasks, body, context);
  };
  if (inner.alone) {
    outer_.alone = [](const Stream& stream, int worker) {
      const Stream& to = static_cast<const InterruptibleStream*>(stream.self)->inner_;
      return to.alone(to, worker);
    };
  }
}

// A few tasks at a time, as many as take about a slice by how long those before them took.
void InterruptibleStream::parallel(int64_t tasks, Stream::Body body, void* context) const {
  using Clock = std::chrono::steady_clock;
  struct Part {
    Stream::Body body;
    void* context;
    int64_t first;
  } part{body, context, 0};
  const Stream::Body run_part = [](void* at, int64_t task, int worker) {
    const Part& own = *static_cast<const Part*>(at);
    own.body(own.context, own.first + task, worker);
  };
  int64_t count = inner_.workers;
  while (part.first < tasks && !inner_.cancelled()) {
    const int64_t left = tasks - part.first;
    count = breaks_->wanted() ? std::min(count, left) : left;
    const Clock::time_point start = Clock::now();
    inner_.parallel(inner_, count, run_part, &part);
    const auto passed = std::max<std::chrono::nanoseconds>(Clock::now() - start, std::chrono::nanoseconds(1));
    part.first += count;
    breaks_->take();
    const int64_t rounds = std::max<int64_t>(count / inner_.workers, 1);
    count = std::clamp<int64_t>(rounds * kSlice.count() / passed.count(), 1, 4 * rounds) * inner_.workers;
  }
}

}  // namespace wi
