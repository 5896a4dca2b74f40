#include "src/buffer/wave_buffer.h"

#include <algorithm>

#include "src/host_process.h"

namespace wi {
namespace {

constexpr size_t kMostQueued = 64;  // steps; what comes then is not heard of

}  // namespace

std::shared_ptr<WaveBuffer> WaveBuffer::open(std::shared_ptr<HostPool> pool, const WaveBufferParams& params) {
  return std::shared_ptr<WaveBuffer>(new WaveBuffer(std::move(pool), params));
}

WaveBuffer::WaveBuffer(std::shared_ptr<HostPool> pool, const WaveBufferParams& params)
    : pool_(std::move(pool)),
      manager_kind_(params.manager),
      slab_bytes_(params.slab_bytes),
      pinned_(params.pinned),
      device_(params.device),
      own_threads_(params.file.own_threads),
      // What passes between file and memory is scratch, and not of the cache's budget.
      file_(pinned_ ? nullptr
                    : SpillFile::open(params.folder, params.most_bytes,
                                      HostPool::create(HostPool::kUnlimited, true), params.file)),
      made_after_forks_(fork_count()) {
  queue_.reserve(kMostQueued);
  spare_.reserve(kMostQueued);
  constexpr char kName[] = "wi-buffer";
  int refused = 0;
  manager_ = own_threads_->start(kName, &refused, [this] { manage(); });
  if (!manager_) own_threads_->tell_refused(kName, refused);
}

WaveBuffer::~WaveBuffer() {
  if (fork_count() != made_after_forks_) {  // a child has no such thread
    static_cast<void>(manager_.release());
    return;
  }
  if (!manager_) return;
  {
    std::lock_guard lock(queue_mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  manager_->join();
}

std::shared_ptr<PageCache> WaveBuffer::cache_of(size_t page_bytes) {
  std::lock_guard lock(caches_mutex_);
  for (const auto& cache : caches_)
    if (cache->page_bytes() == page_bytes) return cache;
  const auto make = manager_kind_ == BufferManager::lru ? make_lru : make_bucketed;
  auto cache = std::make_shared<PageCache>(pool_, steps_, page_bytes, make, slab_bytes_);
  cache->set_limit(0);
  caches_.push_back(cache);
  return cache;
}

std::shared_ptr<HotPageCache> WaveBuffer::hot_pages(size_t page_bytes) {
  std::lock_guard lock(caches_mutex_);
  for (const auto& cache : hot_)
    if (cache->page_bytes() == page_bytes) return cache;
  hot_.push_back(std::make_shared<HotPageCache>(device_, page_bytes, slab_bytes_));
  return hot_.back();
}

// What others' calls could not take away while it ran goes now: nobody else may come.
void WaveBuffer::end_step(uint64_t step) noexcept {
  steps_.leave(step);
  each_cache([](PageCache& cache, size_t) { cache.step_ended(); });
}

// body(cache, its number), without the list's lock: what goes takes its time.
template <class Body>
void WaveBuffer::each_cache(Body&& body) {
  for (size_t number = 0;; ++number) {
    std::shared_ptr<PageCache> cache;
    {
      const std::lock_guard lock(caches_mutex_);
      if (number == caches_.size()) return;
      cache = caches_[number];
    }
    body(*cache, number);
  }
}

void WaveBuffer::catch_up() noexcept {
  each_cache([](PageCache& cache, size_t) { cache.catch_up(); });
}

void WaveBuffer::post(StepUse& use) noexcept {
  if (!manager_) {
    use.cache->used(use.hits, use.step);
    use.cache->manage();
    use.hits.clear();
    return;
  }
  {
    std::lock_guard lock(queue_mutex_);
    if (queue_.size() == kMostQueued) {
      use.hits.clear();
      return;
    }
    queue_.push_back(std::move(use));
    use = {};
    if (!spare_.empty()) {
      use = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  posted_.notify_one();
}

// A segment takes seconds to be written, in which steps come by the hundred: they are heard meanwhile.
void WaveBuffer::manage() {
  const Hear hear = [this] { hear_steps(); };
  for (;;) {
    std::function<void(const Hear&)> work;  // goes with no lock held: it may be the last to have a segment
    {
      std::unique_lock lock(queue_mutex_);
      posted_.wait(lock, [&] { return stopping_ || !queue_.empty() || !work_.empty(); });
      if (stopping_) return;
      if (queue_.empty()) {
        work = std::move(work_.front());
        work_.pop_front();
      }
    }
    work ? work(hear) : hear_steps();
  }
}

// What has been posted by now, and no more: whoever is at work goes on with that.
void WaveBuffer::hear_steps() noexcept {
  std::unique_lock lock(queue_mutex_);
  for (size_t left = queue_.size(); left > 0 && !stopping_; --left) {
    StepUse use = std::move(queue_.front());
    queue_.erase(queue_.begin());
    lock.unlock();
    use.cache->used(use.hits, use.step);
    use.cache->manage();
    use.hits.clear();
    lock.lock();
    if (spare_.size() < kMostQueued) spare_.push_back(std::move(use));
  }
}

bool WaveBuffer::later(std::function<void(const Hear&)> work) {
  if (!manager_) return false;
  {
    std::lock_guard lock(queue_mutex_);
    work_.push_back(std::move(work));
  }
  posted_.notify_one();
  return true;
}

WaveBuffer::Retiring::Retiring(WaveBuffer& buffer) : buffer_(buffer) {
  std::lock_guard lock(buffer_.retired_mutex_);
  buffer_.retired_.reserve(buffer_.retired_.size() + buffer_.retiring_ + 1);
  ++buffer_.retiring_;
}

WaveBuffer::Retiring::~Retiring() {
  std::lock_guard lock(buffer_.retired_mutex_);
  --buffer_.retiring_;
}

void WaveBuffer::retire(HostBuffer buffer) noexcept {
  {
    std::lock_guard lock(retired_mutex_);
    retired_.push_back({std::move(buffer), readings_.hide()});
  }
  free_retired();
}

// One at a time, and without the lock: the system takes its time for each.
void WaveBuffer::free_retired() noexcept {
  for (;;) {
    HostBuffer going;
    std::unique_lock lock(retired_mutex_);
    if (retired_.empty()) return;
    const uint64_t oldest = readings_.oldest();
    const auto ripe = std::find_if(retired_.begin(), retired_.end(),
                                   [&](const Retired& one) { return one.since < oldest; });
    if (ripe == retired_.end()) return;
    going = std::move(ripe->buffer);
    retired_.erase(ripe);
    const uint64_t bytes = going.bytes();
    freed_bytes_ += bytes;
    lock.unlock();
    going = {};
    lock.lock();
    freed_bytes_ -= bytes;
  }
}

WaveBuffer::Share::~Share() {
  if (!bytes_) return;
  buffer_->change_share(page_bytes_, bytes_, 0);
  buffer_->catch_up();
  if (buffer_->pinned()) buffer_->hot_pages(page_bytes_)->trim();  // nobody else may come
}

void WaveBuffer::Share::set(uint64_t bytes) {
  if (bytes == bytes_) return;
  buffer_->change_share(page_bytes_, bytes_, bytes);
  bytes_ = bytes;
}

void WaveBuffer::change_share(size_t page_bytes, uint64_t before, uint64_t after) {
  if (pinned_) {
    const std::shared_ptr<HotPageCache> hot = hot_pages(page_bytes);
    std::lock_guard lock(shares_mutex_);
    return hot->set_limit(hot->limit() - before + after);
  }
  const std::shared_ptr<PageCache> cache = cache_of(page_bytes);
  std::lock_guard lock(shares_mutex_);
  size_t number = 0;
  {
    std::lock_guard list(caches_mutex_);
    number = static_cast<size_t>(std::find(caches_.begin(), caches_.end(), cache) - caches_.begin());
  }
  if (shares_.size() <= number) shares_.resize(number + 1);
  cache->ask_limit(shares_[number] - before + after);
  shares_[number] += after - before;
}

void WaveBuffer::hasten() {
  each_cache([&](PageCache& cache, size_t number) {
    {
      const std::lock_guard lock(shares_mutex_);
      if (number < shares_.size()) cache.ask_limit(shares_[number]);  // what has come in meanwhile
    }
    cache.catch_up();
    cache.step_ended();
  });
  {
    std::unique_lock list(caches_mutex_);
    const auto hot = hot_;
    list.unlock();
    for (const auto& cache : hot) cache->trim();
  }
  free_retired();
}

WaveBufferMemory WaveBuffer::memory() const {
  WaveBufferMemory memory;
  {
    std::lock_guard list(caches_mutex_);
    for (const auto& cache : caches_) {
      const PageCacheStats of = cache->stats();
      memory.frames += of.bytes;
      memory.leaving_frames += of.leaving_bytes;
    }
    for (const auto& cache : hot_) {
      memory.frames += cache->bytes();
      memory.leaving_frames += cache->leaving_bytes();
    }
  }
  std::lock_guard lock(retired_mutex_);
  memory.retired = freed_bytes_;
  for (const Retired& one : retired_) memory.retired += one.buffer.bytes();
  return memory;
}

WaveBufferStats WaveBuffer::stats() const {
  WaveBufferStats stats;
  stats.slow_bytes = file_ ? file_->used() : pinned_->used();
  if (file_) stats.file = file_->stats();
  std::lock_guard lock(caches_mutex_);
  for (const auto& cache : caches_) {
    const PageCacheStats of = cache->stats();
    stats.admissions += of.admissions;
    stats.evictions += of.evictions;
    stats.refusals += of.refusals;
    stats.late += of.late;
    stats.frame_bytes += of.bytes;
  }
  for (const auto& cache : hot_) stats.frame_bytes += cache->bytes();
  return stats;
}

}  // namespace wi
