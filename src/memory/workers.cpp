#include "src/memory/workers.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "src/error.h"

namespace wi {
namespace {

// Memory that only grows; its old content is not kept.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  std::byte* at_least(size_t bytes) {
    if (bytes > bytes_) {
      size_t rounded = (bytes + bytes / 2 + 4095) & ~size_t{4095};
      void* grown = std::aligned_alloc(64, rounded);
      if (!grown) throw std::bad_alloc();
      std::free(data_);
      data_ = static_cast<std::byte*>(grown);
      bytes_ = rounded;
    }
    return data_;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The scratch of one call of run(): one piece per worker and one shared.
struct Desk {
  explicit Desk(int workers) : worker(static_cast<size_t>(workers)) {}
  std::vector<Scratch> worker;
  Scratch shared;
};

}  // namespace

struct Workers::Impl {
  explicit Impl(int threads) : count(threads), arena(threads, 1) {}
  int count;
  tbb::task_arena arena;
  std::mutex mutex;
  std::vector<std::unique_ptr<Desk>> idle;
  std::atomic<size_t> scratch_bytes{0};
};

Workers::Workers(int threads, bool) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  impl_ = std::make_unique<Impl>(threads < 1 ? 1 : threads);
}
Workers::~Workers() = default;
int Workers::threads() const { return impl_->count; }
size_t Workers::scratch_bytes() const { return impl_->scratch_bytes; }

void Workers::run_erased(const std::atomic<bool>* cancel, void (*call)(void*, const Stream&), void* context) {
  std::unique_ptr<Desk> desk;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->idle.empty()) {
      desk = std::move(impl_->idle.back());
      impl_->idle.pop_back();
    }
  }
  if (!desk) desk = std::make_unique<Desk>(impl_->count);
  Stream stream;
  stream.self = desk.get();
  stream.workers = impl_->count;
  stream.cancel = cancel;
  stream.worker_scratch = [](void* self, int worker, size_t bytes) { return static_cast<Desk*>(self)->worker[static_cast<size_t>(worker)].at_least(bytes); };
  stream.shared_scratch = [](void* self, size_t bytes) { return static_cast<Desk*>(self)->shared.at_least(bytes); };
  stream.parallel = [](const Stream& s, int64_t tasks, Stream::Body body, void* body_context) {
    if (tasks == 1) {
      if (!s.cancelled()) body(body_context, 0, tbb::this_task_arena::current_thread_index());
      return;
    }
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, tasks, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          int worker = tbb::this_task_arena::current_thread_index();
          for (int64_t task = range.begin(); task < range.end() && !s.cancelled(); ++task) body(body_context, task, worker);
        },
        tbb::simple_partitioner());
  };
  impl_->arena.execute([&] { tbb::this_task_arena::isolate([&] { call(context, stream); }); });
  std::lock_guard lock(impl_->mutex);
  impl_->idle.push_back(std::move(desk));
}

}  // namespace wi
