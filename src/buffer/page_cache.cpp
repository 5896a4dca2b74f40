#include "src/buffer/page_cache.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <utility>

namespace wi {
namespace {

// Entries, or frames, that are seen to while others wait for the lock, and slabs.
constexpr size_t kAtOnce = 4096;
constexpr size_t kSlabsAtOnce = 16;

// Never lowered: who took the entry's frames before may have been overtaken by who looks at them now.
void raise(std::atomic<uint64_t>& seen, uint64_t step) {
  uint64_t before = seen.load(std::memory_order_acquire);
  while (before < step && !seen.compare_exchange_weak(before, step, std::memory_order_seq_cst)) {
  }
}

}  // namespace

PageCache::PageCache(std::shared_ptr<HostPool> pool, Epochs& epochs, size_t page_bytes, MakeReplacement make,
                     size_t slab_bytes, int32_t most_slabs)
    : pool_(std::move(pool)),
      epochs_(epochs),
      page_bytes_(page_bytes),
      sizes_(slab_bytes / page_bytes),
      make_(make),
      most_slabs_(most_slabs),
      slabs_(static_cast<std::atomic<Slab*>*>(
          std::calloc(static_cast<size_t>(most_slabs), sizeof(std::atomic<Slab*>)))) {
  if (!slabs_) throw std::bad_alloc();
}

PageCache::~PageCache() {
  for (int32_t i = 0; i < most_slabs_ && slabs_[static_cast<size_t>(i)].load(); ++i)
    delete slabs_[static_cast<size_t>(i)].load();
}

// ---- by steps ----

// Who takes frames away clears the slot and then looks who has seen the entry; so one of the two notices.
int32_t PageCache::find(const EntrySlot& slot, uint64_t step) noexcept {
  for (int32_t entry = slot.load(std::memory_order_acquire); entry != kNoEntry;) {
    raise(facts(entry).seen, step);
    const int32_t now = slot.load(std::memory_order_seq_cst);
    if (now == entry) return entry;
    entry = now;
  }
  return kNoEntry;
}

int32_t PageCache::take(int32_t pages, uint64_t step, uint64_t* evicted) noexcept {
  std::lock_guard lock(mutex_);
  taken_ += pages;
  while (free_.size() < static_cast<size_t>(pages)) {
    if (grow()) continue;
    if (evict_chosen()) {
      if (evicted) ++*evicted;
      continue;
    }
    ++stats_.refusals;
    return kNoEntry;
  }
  int32_t first = kNoEntry;
  for (int32_t i = 0; i < pages; ++i) {
    const int32_t frame = free_.back();
    free_.pop_back();
    facts(frame).next = first;
    first = frame;
  }
  for (int32_t frame = first; frame != kNoEntry; frame = facts(frame).next) facts(frame).owner = first;
  facts(first).pages = pages;
  raise(facts(first).seen, step);
  facts(first).admitted = facts(first).leaving = false;
  return first;
}

void PageCache::give(int32_t entry) noexcept {
  std::lock_guard lock(mutex_);
  free_chain(entry);
}

bool PageCache::publish(int32_t entry, EntrySlot& slot) noexcept {
  std::lock_guard lock(mutex_);
  Facts& first = facts(entry);
  int32_t expected = kNoEntry;
  if (!slot.compare_exchange_strong(expected, entry, std::memory_order_acq_rel)) {
    first.leaving = true;
    ++stats_.late;
    hidden_.push_back({entry, epochs_.hide()});
    hidden_pages_ += first.pages;
    return false;
  }
  first.slot = &slot;
  first.next_published = std::exchange(published_, entry);
  return true;
}

void PageCache::step_ended() noexcept {
  {
    std::lock_guard lock(mutex_);
    reclaim();
  }
  give_slabs_back();
}

// ---- by the manager ----

void PageCache::used(std::span<const EntryUse> hits, uint64_t step) noexcept {
  {
    std::lock_guard managing(managing_);
    step_ = std::max(step_, step);
    for (const EntryUse& hit : hits) {
      if (use_of(hit.entry).generation != hit.generation) continue;
      if (facts(hit.entry).chosen.load(std::memory_order_relaxed)) keep(hit.entry, step);
      replacement_->use({&hit.entry, 1}, step);
    }
  }
  if (is_behind()) catch_up();
}

void PageCache::manage() noexcept {
  {
    std::lock_guard managing(managing_);
    int64_t wanted = 0;
    {
      std::lock_guard lock(mutex_);
      // Twice what steps have lately taken: the next one may have taken its part before this is done.
      demand_ = std::max(taken_, demand_ - demand_ / 8);
      const int64_t coming = static_cast<int64_t>(free_.size()) + hidden_pages_ + chosen_pages_;
      if (sizes_.first(slab_count_ + 1) > limit_ || refused_) wanted = 2 * demand_ + frames() / 64 - coming;
      refused_ = false;
      taken_ = 0;
    }
    take_over();
    if (wanted > 0 && replacement_) {
      names_.clear();
      try {
        replacement_->evict(wanted, names_);
      } catch (const std::bad_alloc&) {  // names_ has room for all
      }
      for (size_t at = 0; at < names_.size();) {
        std::lock_guard lock(mutex_);
        const size_t end = std::min(at + kAtOnce, names_.size());
        for (; at < end; ++at) choose(names_[at]);
      }
    }
  }
  if (is_behind()) catch_up();
}

// ---- what others have for it to do ----

// By whoever has managing_, or gets it without waiting. Who has it looks here once more when he has let it go, so
// that nothing is left lying.
void PageCache::catch_up() noexcept {
  do {
    const std::unique_lock managing(managing_, std::try_to_lock);
    if (!managing) return;
    take_over();
  } while (is_behind());
}

bool PageCache::is_behind() const noexcept {
  std::lock_guard lock(mutex_);
  return behind_;
}

void PageCache::take_over() noexcept {
  int32_t asked = 0;
  {
    std::lock_guard lock(mutex_);
    behind_ = false;
    asked = asked_;
  }
  if (asked > capacity_ || !replacement_) know_more(asked);
  for (bool more = true; more;) {
    std::lock_guard lock(mutex_);
    take_in_published();
    more = bury_forgotten();
  }
  {
    std::lock_guard lock(mutex_);
    apply_limit();
  }
  clear_above_limit();
  give_slabs_back();
}

// Room for more numbers: those that are held come over in the order in which they would go.
void PageCache::know_more(int32_t frames) noexcept {
  const int32_t capacity = static_cast<int32_t>(std::min<int64_t>(int64_t{frames} * 5 / 4 + 64, INT32_MAX));
  try {
    std::unique_ptr<Replacement> larger = make_(capacity);
    names_.reserve(static_cast<size_t>(capacity));
    names_.clear();
    if (replacement_) replacement_->evict(replacement_->pages(), names_);
    for (int32_t entry : names_) larger->admit(entry, facts(entry).pages, 0);
    replacement_ = std::move(larger);
  } catch (const std::bad_alloc&) {
    return;  // fewer frames, until it works
  }
  std::lock_guard lock(mutex_);
  capacity_ = capacity;
}

// What has frames above the limit goes. With managing_.
void PageCache::clear_above_limit() noexcept {
  int64_t next = 0;
  for (bool more = true; more;) {
    std::lock_guard lock(mutex_);
    next = std::max(next, limit_);
    const int64_t end = std::min(next + static_cast<int64_t>(kAtOnce), frames());
    for (; next < end; ++next) {
      const int32_t entry = facts(static_cast<int32_t>(next)).owner;
      if (entry == kNoEntry || facts(entry).leaving || !facts(entry).admitted || !facts(entry).slot) continue;
      replacement_->remove(entry);
      hide(entry);
    }
    more = next < frames();
  }
}

// Those above the limit of which nothing is used, the last first. The system takes its time for each.
void PageCache::give_slabs_back() noexcept {
  for (bool more = true; more;) {
    std::array<HostBuffer, kSlabsAtOnce> going;
    uint64_t bytes = 0;
    {
      std::lock_guard lock(mutex_);
      for (HostBuffer& memory : going) {
        more = frames() > limit_ && is_unused(slab_count_ - 1);
        if (!more) break;
        memory = std::move(slabs_[static_cast<size_t>(--slab_count_)].load()->memory);
        bytes += memory.bytes();
      }
      going_bytes_ += bytes;
    }
    if (!bytes) return;
    going = {};
    std::lock_guard lock(mutex_);
    going_bytes_ -= bytes;
  }
}

bool PageCache::is_unused(int32_t slab) const noexcept {
  const Facts* const first = slabs_[static_cast<size_t>(slab)].load()->facts.get();
  return std::none_of(first, first + sizes_.frames(slab),
                      [](const Facts& frame) { return frame.owner != kNoEntry; });
}

void PageCache::forget(std::span<EntrySlot> slots) noexcept {
  bool behind = false;
  while (!slots.empty()) {
    const auto some = slots.first(std::min(slots.size(), kAtOnce));
    slots = slots.subspan(some.size());
    std::lock_guard lock(mutex_);
    for (EntrySlot& slot : some) {
      const int32_t entry = slot.exchange(kNoEntry, std::memory_order_relaxed);
      if (entry == kNoEntry) continue;
      Facts& first = facts(entry);
      first.slot = nullptr;
      first.generation.fetch_add(1, std::memory_order_relaxed);
      if (first.chosen.exchange(0)) chosen_pages_ -= first.pages;
      if (first.admitted) first.next_published = std::exchange(forgotten_, entry);
      behind_ = behind = true;
    }
  }
  if (behind) catch_up();
}

void PageCache::ask_limit(uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  asked_ = static_cast<int32_t>(std::min<uint64_t>(bytes / page_bytes_, INT32_MAX));
  apply_limit();
  behind_ = true;
}

PageCacheStats PageCache::stats() const {
  std::lock_guard lock(mutex_);
  PageCacheStats stats = stats_;
  stats.leaving_bytes =
      static_cast<uint64_t>(frames() - std::min(frames(), limit_)) * page_bytes_ + going_bytes_;
  stats.bytes = static_cast<uint64_t>(frames()) * page_bytes_ + going_bytes_;
  return stats;
}

// ---- frames; with mutex_ held ----

// With managing_, too.
void PageCache::take_in_published() noexcept {
  for (int32_t entry = std::exchange(published_, kNoEntry), after; entry != kNoEntry; entry = after) {
    Facts& first = facts(entry);
    after = first.next_published;
    ++stats_.admissions;
    if (!first.slot) {  // forgotten meanwhile
      free_chain(entry);
      continue;
    }
    replacement_->admit(entry, first.pages, step_);
    first.admitted = true;
  }
}

// With managing_, too. True: there are more.
bool PageCache::bury_forgotten() noexcept {
  for (size_t left = kAtOnce; left > 0 && forgotten_ != kNoEntry; --left) {
    const int32_t entry = std::exchange(forgotten_, facts(forgotten_).next_published);
    replacement_->remove(entry);
    free_chain(entry);
  }
  return forgotten_ != kNoEntry;
}

void PageCache::apply_limit() noexcept {
  const int64_t before = limit_, all = frames();
  limit_ = std::min(sizes_.whole(std::min(asked_, capacity_)), sizes_.first(most_slabs_));
  for (int64_t i = before; i < std::min(limit_, all); ++i)  // they may be used again
    if (facts(static_cast<int32_t>(i)).owner == kNoEntry) free_.push_back(static_cast<int32_t>(i));
  if (limit_ < before) std::erase_if(free_, [&](int32_t frame) { return frame >= limit_; });
}

bool PageCache::grow() noexcept {
  const int64_t first = frames(), after = sizes_.first(slab_count_ + 1);
  if (after > limit_) return false;
  try {
    std::atomic<Slab*>& place = slabs_[static_cast<size_t>(slab_count_)];
    HostBuffer memory = pool_->allocate(static_cast<size_t>(after - first) * page_bytes_, "frames");
    const auto room = static_cast<size_t>(after);
    free_.reserve(room);
    hidden_.reserve(room);
    chosen_.reserve(2 * room);
    if (!place.load()) {
      auto slab = std::make_unique<Slab>();
      slab->facts = std::make_unique<Facts[]>(static_cast<size_t>(after - first));
      place.store(slab.release(), std::memory_order_release);
    }
    place.load()->memory = std::move(memory);
    ++slab_count_;
    for (int64_t i = after - 1; i >= first; --i) free_.push_back(static_cast<int32_t>(i));
    return true;
  } catch (...) {
    refused_ = true;
    return false;
  }
}

void PageCache::choose(int32_t entry) noexcept {
  Facts& first = facts(entry);
  if (!first.slot) return;  // it is going anyway
  if (++choices_ == 0) ++choices_;
  first.chosen = choices_;
  add_choice({entry, choices_});
  chosen_pages_ += first.pages;
  none_before_ = 0;
}

void PageCache::add_choice(Choice choice) noexcept {
  if (chosen_.size() == chosen_.capacity()) {
    chosen_.erase(chosen_.begin(), chosen_.begin() + static_cast<std::ptrdiff_t>(chosen_first_));
    chosen_first_ = 0;
    std::erase_if(chosen_, [&](const Choice& one) { return facts(one.entry).chosen != one.number; });
  }
  chosen_.push_back(choice);
}

// It was found again in time.
void PageCache::keep(int32_t entry, uint64_t step) noexcept {
  std::lock_guard lock(mutex_);
  Facts& first = facts(entry);
  if (!first.chosen.exchange(0)) return;
  chosen_pages_ -= first.pages;
  replacement_->admit(entry, first.pages, step);
}

// The first of those that were chosen and that no running step has found; false: there is none.
bool PageCache::evict_chosen() noexcept {
  const uint64_t oldest = epochs_.oldest();
  if (oldest == none_before_) return false;
  for (size_t left = chosen_.size() - chosen_first_; left > 0; --left) {
    const Choice one = chosen_[chosen_first_++];
    if (facts(one.entry).chosen != one.number) continue;
    if (facts(one.entry).seen.load(std::memory_order_relaxed) < oldest && hide(one.entry)) return true;
    if (facts(one.entry).chosen == one.number) add_choice(one);
  }
  none_before_ = oldest;
  return false;
}

// No step that begins now finds it. True: no step that runs has, and its frames are free.
bool PageCache::hide(int32_t entry) noexcept {
  Facts& first = facts(entry);
  first.slot->store(kNoEntry, std::memory_order_seq_cst);
  first.slot = nullptr;
  first.generation.fetch_add(1, std::memory_order_relaxed);
  ++stats_.evictions;
  if (first.chosen.exchange(0)) chosen_pages_ -= first.pages;
  if (first.seen.load(std::memory_order_seq_cst) < epochs_.oldest()) {
    free_chain(entry);
    return true;
  }
  first.leaving = true;
  hidden_.push_back({entry, epochs_.hide()});
  hidden_pages_ += first.pages;
  return false;
}

void PageCache::free_chain(int32_t entry) noexcept {
  for (int32_t frame = entry; frame != kNoEntry;) {
    const int32_t after = facts(frame).next;
    facts(frame).owner = kNoEntry;
    if (frame < limit_) free_.push_back(frame);
    frame = after;
  }
}

void PageCache::reclaim() noexcept {
  if (!hidden_.empty()) {
    const uint64_t oldest = epochs_.oldest();
    const auto seen = std::partition(hidden_.begin(), hidden_.end(),
                                     [&](const Hidden& one) { return one.since >= oldest; });
    for (auto at = seen; at != hidden_.end(); ++at) {
      hidden_pages_ -= facts(at->entry).pages;
      free_chain(at->entry);
    }
    hidden_.erase(seen, hidden_.end());
  }
}

}  // namespace wi
