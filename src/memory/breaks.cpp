#include "src/memory/breaks.h"

#include <algorithm>
#include <atomic>

namespace wi {
namespace {

// A worker takes so small a part of its share at a time that the others wait little for it to stop: a second's loop
// stops in some ten milliseconds, or in one task.
constexpr int64_t kParts = 64;

struct Loop {
  const Stream& inner;
  Breaks& breaks;
  const Stream::Body body;
  void* const context;
  const int64_t tasks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stopped{false};

  void work(int worker) {
    try {
      while (!stopped.load(std::memory_order_relaxed) && !inner.cancelled() && work_at_some(worker))
        if (worker == 0 && breaks.due()) stopped.store(true, std::memory_order_relaxed);
    } catch (...) {
      stopped.store(true, std::memory_order_relaxed);
      throw;
    }
  }
  // False: there is none left.
  bool work_at_some(int worker) {
    int64_t first = next.load(std::memory_order_relaxed), count = 0;
    do {
      if (first >= tasks) return false;
      count = std::max<int64_t>(1, (tasks - first) / (kParts * inner.workers));
    } while (!next.compare_exchange_weak(first, first + count, std::memory_order_relaxed));
    for (int64_t task = first; task < first + count && !inner.cancelled(); ++task)
      body(context, task, worker);
    return true;
  }
};

}  // namespace

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

// Every worker takes tasks from one counter, as a helper of a plain loop does (team.h), until the loop is to stop:
// those that were taken are run, and the counter is where it goes on.
void InterruptibleStream::parallel(int64_t tasks, Stream::Body body, void* context) const {
  Loop loop{inner_, *breaks_, body, context, tasks};
  for (int64_t first = 0; first < tasks && !inner_.cancelled(); first = loop.next) {
    loop.stopped = false;
    inner_.parallel(
        inner_, std::min<int64_t>(inner_.workers, tasks - first),
        [](void* at, int64_t, int worker) { static_cast<Loop*>(at)->work(worker); }, &loop);
    breaks_->take();
  }
}

}  // namespace wi
