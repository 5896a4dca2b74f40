#include "src/buffer/hot_page_cache.h"

#include <algorithm>
#include <new>

#include "src/error.h"

namespace wi {
namespace {

constexpr int32_t kMostMisses = 1 << 16;            // listed of a pass
constexpr size_t kMostGone = 4096, kMostTold = 64;  // segments that are no more: waiting, and of a step
constexpr int kPatience = 64;                       // steps until memory that was refused is asked for again

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 255) & ~uint64_t{255}; }

// Null: there is no room.
HostBuffer allocated(HostPool& pool, uint64_t bytes) {
  try {
    return pool.allocate(bytes, "frames of hot pages");
  } catch (const Error& error) {
    if (error.code() != WI_E_BUDGET && error.code() != WI_E_MEMORY) throw;
    return {};
  }
}

}  // namespace

HotPageCache::HotPageCache(std::shared_ptr<HostPool> pool, size_t page_bytes, size_t slab_bytes)
    : pool_(std::move(pool)), page_bytes_(page_bytes), sizes_(std::max<size_t>(slab_bytes / page_bytes, 1)) {
  hot_.frame_bytes = page_bytes;
  now_.step = kHotPageBuckets;
  gone_.reserve(kMostGone);
  told_.reserve(kMostTold);
}

uint64_t HotPageCache::leaving_bytes() const {
  const int32_t held = frames_.load(std::memory_order_relaxed), may = frames_within(limit());
  return held > may ? static_cast<uint64_t>(held - may) * page_bytes_ : 0;
}

void HotPageCache::trim() noexcept {
  if (!begin(false)) return;
  end();
}

void HotPageCache::forget(HotPageRange pages) noexcept {
  std::lock_guard lock(gone_mutex_);
  if (gone_.size() < kMostGone) gone_.push_back(pages);  // the others' frames go when they are the oldest
}

// ---- a step ----

const HotPages* HotPageCache::Use::begin_pass(const std::shared_ptr<HotPageCache>& cache, Queue& queue) {
  if (!cache->limit() && !cache->bytes()) return nullptr;
  size_t at = 0;
  while (at < kMost && held_[at] && held_[at] != cache) ++at;
  if (at == kMost) return nullptr;
  if (!held_[at]) {
    // Who has one waits for no other: its user may be waiting for this one.
    if (!cache->begin(at == 0)) return nullptr;
    held_[at] = cache;
  }
  return cache->begin_pass(queue);
}

void HotPageCache::Use::end() noexcept {
  for (auto& cache : held_) {
    if (cache) cache->end();
    cache.reset();
  }
}

// False: somebody else has it, or a step of this thread's own that this one came between.
bool HotPageCache::begin(bool may_wait) {
  if (user_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return false;
  if (may_wait)
    in_use_.lock();
  else if (!in_use_.try_lock())
    return false;
  user_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

void HotPageCache::end() noexcept {
  ordered_ = false;
  shrink(frames_within(limit()));
  user_.store({}, std::memory_order_relaxed);
  in_use_.unlock();
}

const HotPages* HotPageCache::begin_pass(Queue& queue) {
  if (!ordered_) {
    fit();
    ordered_ = true;
    if (hot_.frames) order(queue);
  }
  if (!hot_.frames) return nullptr;
  ++hot_.pass;
  return &hot_;
}

void HotPageCache::order(Queue& queue) {
  {
    std::lock_guard lock(gone_mutex_);
    const auto count = static_cast<std::ptrdiff_t>(std::min(gone_.size(), kMostTold));
    told_.assign(gone_.end() - count, gone_.end());
    gone_.erase(gone_.end() - count, gone_.end());
  }
  now_.gone_count = static_cast<int32_t>(told_.size());
  now_.gone = told_.empty() ? nullptr : queue.stage(told_.data(), told_.size());
  ++now_.step;
  now_.passes += hot_.pass;
  hot_.pass = 0;
  queue.upload(hot_.now, &now_, sizeof now_);
  queue.order_hot_pages(hot_);
}

// ---- memory ----

HotPageCache::Layout HotPageCache::layout(int32_t frames) {
  const auto count = static_cast<uint64_t>(frames);
  Layout of{};
  const auto next = [&](uint64_t bytes) {
    const uint64_t at = of.bytes;
    of.bytes += aligned(bytes);
    return at;
  };
  of.pages = next(count * sizeof(uint64_t));
  of.last_use = next(count * sizeof(uint64_t));
  of.memory = next(count * sizeof(std::byte*));
  of.order = next(count * sizeof(int32_t));
  of.misses = next(static_cast<uint64_t>(std::min(frames, kMostMisses)) * sizeof(HotPageMiss));
  of.counts = next(sizeof(HotPageCounts));
  of.now = next(sizeof(HotPageStep));
  return of;
}

// In whole slabs, with what is noted of them.
int32_t HotPageCache::frames_within(uint64_t bytes) const {
  const uint64_t each = page_bytes_ + 3 * sizeof(uint64_t) + sizeof(int32_t) + sizeof(HotPageMiss);
  const uint64_t fixed = layout(0).bytes + 5 * 256;  // what alignment adds
  if (bytes < fixed) return 0;
  return static_cast<int32_t>(
      sizes_.whole(static_cast<int32_t>(std::min<uint64_t>((bytes - fixed) / each, INT32_MAX / 2))));
}

// As many frames as there may be, and as there is memory for.
void HotPageCache::fit() {
  const int32_t may = frames_within(limit());
  shrink(may);
  if (may == hot_.frames) return static_cast<void>(make_room(may));
  if (refused_ > 0) {
    --refused_;
    return;
  }
  try {
    grow(may);
  } catch (const std::bad_alloc&) {
  }
  shrink(hot_.frames);  // slabs that did not become frames
  if (hot_.frames < may) refused_ = kPatience;
}

void HotPageCache::grow(int32_t frames) {
  const auto slab_count = [&] { return static_cast<int32_t>(slabs_.size()); };
  while (sizes_.first(slab_count()) < frames) {
    HostBuffer slab = allocated(*pool_, static_cast<uint64_t>(sizes_.frames(slab_count())) * page_bytes_);
    if (!slab) break;
    slabs_.push_back(std::move(slab));
  }
  for (;; slabs_.pop_back()) {  // what is noted of them needs some room, too
    frames = static_cast<int32_t>(sizes_.first(slab_count()));
    if (frames == hot_.frames) return;
    if (make_room(frames)) break;
  }

  // The new ones are empty.
  const int32_t first = hot_.frames;
  const auto count = static_cast<size_t>(frames - first);
  const std::vector<uint64_t> none(count);
  std::vector<std::byte*> at(count);
  for (size_t i = 0; i < count; ++i) {
    const SlabSizes::Place place = sizes_.place(first + static_cast<int32_t>(i));
    at[i] = slabs_[static_cast<size_t>(place.slab)].data() + static_cast<size_t>(place.index) * page_bytes_;
  }
  const CopyPiece pieces[] = {{hot_.pages + first, none.data(), count * sizeof(uint64_t)},
                              {hot_.last_use + first, none.data(), count * sizeof(uint64_t)},
                              {hot_.memory + first, at.data(), count * sizeof(std::byte*)}};
  pool_->memory().copy(pieces);
  hot_.frames = frames;
  hot_.most_misses = std::min(frames, kMostMisses);
  count_bytes();
}

// To note something of so many frames, and not of many more; what is noted of those that there are stays. False: there
// is none.
bool HotPageCache::make_room(int32_t frames) {
  if (frames <= room_ && room_ <= frames + frames / 4) return true;
  HostBuffer notes = allocated(*pool_, layout(frames).bytes);
  if (!notes) return false;
  const Layout at = layout(frames);
  HotPages next = hot_;
  next.pages = reinterpret_cast<uint64_t*>(notes.data() + at.pages);
  next.last_use = reinterpret_cast<uint64_t*>(notes.data() + at.last_use);
  next.memory = reinterpret_cast<std::byte**>(notes.data() + at.memory);
  next.order = reinterpret_cast<int32_t*>(notes.data() + at.order);
  next.misses = reinterpret_cast<HotPageMiss*>(notes.data() + at.misses);
  next.counts = reinterpret_cast<HotPageCounts*>(notes.data() + at.counts);
  next.now = reinterpret_cast<HotPageStep*>(notes.data() + at.now);
  const size_t held = static_cast<size_t>(hot_.frames);
  const CopyPiece pieces[] = {{next.pages, hot_.pages, held * sizeof(uint64_t)},
                              {next.last_use, hot_.last_use, held * sizeof(uint64_t)},
                              {next.memory, hot_.memory, held * sizeof(std::byte*)}};
  pool_->memory().copy(pieces);
  hot_ = next;
  notes_ = std::move(notes);
  room_ = frames;
  count_bytes();
  return true;
}

// To so many at most; frees what is of none.
void HotPageCache::shrink(int32_t frames) noexcept {
  if (frames < hot_.frames) {
    hot_.frames = frames;
    hot_.most_misses = std::min(frames, kMostMisses);
  }
  while (!slabs_.empty() && sizes_.first(static_cast<int32_t>(slabs_.size())) > hot_.frames)
    slabs_.pop_back();
  if (!hot_.frames && room_) {
    notes_ = {};
    room_ = 0;
  }
  count_bytes();
}

void HotPageCache::count_bytes() noexcept {
  frames_.store(hot_.frames, std::memory_order_relaxed);
  bytes_.store(static_cast<uint64_t>(hot_.frames) * page_bytes_ + notes_.bytes(), std::memory_order_relaxed);
}

}  // namespace wi
