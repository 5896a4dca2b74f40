// Frames of the fast tier, a page each, in which clusters stay that a step had to fetch from the slow one
// (RetroInfer §4.3: access is synchronous, update asynchronous). A cluster in frames is an entry: a chain of
// frames, named by its first one.
//
// Steps look entries up, take frames for what they miss, and leave what they read there. The buffer manager
// hears what was used and names, ahead of need, what goes next. What was named stays to be found, and is taken
// back if it is, until a step needs its frames: so the cache is full at all times. An entry that a running step
// has found keeps its frames until that step ends. Nobody waits for the manager: where nothing was named a
// cluster is read and not kept, and what is its part of other calls it does when it is done with its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/buffer/epochs.h"
#include "src/buffer/fair_mutex.h"
#include "src/buffer/replacement.h"
#include "src/memory/host_pool.h"

namespace wi {

constexpr int32_t kFrameTokens = 4;  // of one KV head: keys, then values
constexpr int32_t frames_of(int32_t tokens) { return (tokens + kFrameTokens - 1) / kFrameTokens; }

// Of most: a mapping of its own, which goes back to the system when its frames do. The first 32 are smaller, eight
// of each power of two from 1/16 of it on, so that what a limit is rounded down by is a fifth of it at most.
constexpr size_t kSlabBytes = size_t{2} << 20;

// Which slab has a frame, and where.
class SlabSizes {
 public:
  explicit SlabSizes(size_t most_frames)
      : shift_(
            static_cast<uint32_t>(std::countr_zero(std::bit_floor(std::max<size_t>(most_frames / 16, 1))))) {}
  // Bytes of the smallest of slabs, of which most have so many.
  static constexpr uint64_t least(uint64_t slab_bytes) { return slab_bytes / 16; }
  struct Place {
    int32_t slab, index;
  };
  Place place(int32_t frame) const {
    const auto number = static_cast<uint32_t>(frame);
    const uint32_t unit = number >> shift_, rest = number & ((1u << shift_) - 1);
    const auto at = [&](uint32_t slab, uint32_t units) {
      return Place{static_cast<int32_t>(slab), static_cast<int32_t>(units << shift_ | rest)};
    };
    if (unit >= kSmall) return at(32 + (unit - kSmall) / 16, (unit - kSmall) % 16);
    const uint32_t from = unit + 8, size = from < 16 ? 0 : from < 32 ? 1 : from < 64 ? 2 : 3;
    return at(8 * size + (from >> size) - 8, from & ((1u << size) - 1));
  }
  int64_t first(int32_t slab) const {
    const auto number = static_cast<uint32_t>(slab);
    const int64_t unit =
        number < 32 ? (int64_t{8 + number % 8} << (number / 8)) - 8 : kSmall + int64_t{number - 32} * 16;
    return unit << shift_;
  }
  int32_t frames(int32_t slab) const { return static_cast<int32_t>(first(slab + 1) - first(slab)); }
  int64_t whole(int32_t frames) const { return first(place(frames).slab); }  // slabs that fit into so many

 private:
  static constexpr uint32_t kSmall = 120;  // units of the first 32 slabs
  uint32_t shift_;                         // log2 of the frames of the smallest one
};

// Where a segment notes which entry has a partition.
using EntrySlot = std::atomic<int32_t>;
constexpr int32_t kNoEntry = -1;

struct PageCacheStats {
  uint64_t admissions = 0, evictions = 0;  // entries
  uint64_t refusals = 0;                   // entries that found no free frames
  uint64_t late = 0;                       // entries that another step had brought in meanwhile
  uint64_t bytes = 0;                      // of all frames, used or free
  uint64_t leaving_bytes = 0;              // of them, above the limit
};

// An entry at one time: its number may name another one later.
struct EntryUse {
  int32_t entry;
  uint32_t generation;
};

class PageCache {
 public:
  using MakeReplacement = std::unique_ptr<Replacement> (*)(int32_t capacity);
  static constexpr int32_t kMostSlabs = 1 << 20;

  // page_bytes: keys and values of kFrameTokens tokens. Frames come a slab at a time.
  PageCache(std::shared_ptr<HostPool> pool, Epochs& epochs, size_t page_bytes, MakeReplacement make,
            size_t slab_bytes = kSlabBytes, int32_t most_slabs = kMostSlabs);
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  size_t page_bytes() const { return page_bytes_; }

  // ---- by steps; any thread ----
  std::byte* frame(int32_t number) const {
    const SlabSizes::Place at = sizes_.place(number);
    return slab(at).memory.data() + static_cast<size_t>(at.index) * page_bytes_;
  }
  int32_t next(int32_t number) const { return facts(number).next; }
  EntryUse use_of(int32_t entry) const {
    return {entry, facts(entry).generation.load(std::memory_order_relaxed)};
  }
  // The entry that is noted there, or kNoEntry. step: of Epochs, until whose end the frames stay as they are.
  int32_t find(const EntrySlot& slot, uint64_t step) noexcept;
  // A chain of so many frames, or kNoEntry: none are free, and no more may be had. evicted: added to, entries that
  // made room.
  int32_t take(int32_t pages, uint64_t step, uint64_t* evicted = nullptr) noexcept;
  // Nobody has seen it.
  void give(int32_t entry) noexcept;
  // From now on others find it there. False: somebody else's is there; the caller may use its own until its
  // step ends.
  bool publish(int32_t entry, EntrySlot& slot) noexcept;
  // After each step: what was hidden while it ran is free again, and what is above the limit goes.
  void step_ended() noexcept;

  // ---- by the manager's thread ----
  void used(std::span<const EntryUse> hits, uint64_t step) noexcept;
  // Takes in what was published and names what goes, so that the next steps find frames.
  void manage() noexcept;

  // ---- by whoever owns the slots: they are gone, and no step looks at them. ----
  void forget(std::span<EntrySlot> slots) noexcept;

  // At most so many bytes of frames; none before this is called. Fewer than there are: entries go, and
  // their memory when the steps that run have ended. More: as far as there is memory to know them by.
  void set_limit(uint64_t bytes) noexcept {
    ask_limit(bytes);
    catch_up();
  }
  // The same, but entries and memory go with the next catch_up(), of the manager's or of whoever asks: of gigabytes that
  // takes tenths of a second, for which nobody need hold a lock of his own.
  void ask_limit(uint64_t bytes) noexcept;
  void catch_up() noexcept;
  PageCacheStats stats() const;

 private:
  // Of a frame; from `pages` on of an entry's first one.
  struct Facts {
    int32_t next = kNoEntry;
    int32_t owner = kNoEntry;  // the entry that it belongs to
    int32_t pages = 0;
    bool admitted = false;  // the manager knows it
    bool leaving = false;   // hidden
    EntrySlot* slot = nullptr;
    std::atomic<uint64_t> seen{0};    // the newest step that found it
    std::atomic<uint32_t> chosen{0};  // to go, the number of that choice; 0: to stay
    std::atomic<uint32_t> generation{0};
    int32_t next_published = kNoEntry;
  };
  struct Slab {
    HostBuffer memory;  // empty: given back
    std::unique_ptr<Facts[]> facts;
  };
  struct Choice {
    int32_t entry;
    uint32_t number;
  };
  struct Hidden {
    int32_t entry;
    uint64_t since;  // Epochs::hide()
  };

  const Slab& slab(SlabSizes::Place at) const {
    return *slabs_[static_cast<size_t>(at.slab)].load(std::memory_order_acquire);
  }
  Facts& facts(int32_t frame) const {
    const SlabSizes::Place at = sizes_.place(frame);
    return slab(at).facts[at.index];
  }
  bool grow() noexcept;
  void free_chain(int32_t entry) noexcept;
  void reclaim() noexcept;
  void choose(int32_t entry) noexcept;
  void keep(int32_t entry, uint64_t step) noexcept;
  void add_choice(Choice choice) noexcept;
  bool evict_chosen() noexcept;
  bool hide(int32_t entry) noexcept;
  void apply_limit() noexcept;
  void clear_above_limit() noexcept;
  void give_slabs_back() noexcept;
  bool is_unused(int32_t slab) const noexcept;
  int64_t frames() const { return sizes_.first(slab_count_); }
  void take_in_published() noexcept;
  bool bury_forgotten() noexcept;
  void take_over() noexcept;
  void know_more(int32_t frames) noexcept;
  bool is_behind() const noexcept;

  const std::shared_ptr<HostPool> pool_;
  Epochs& epochs_;
  const size_t page_bytes_;
  const SlabSizes sizes_;
  const MakeReplacement make_;
  const int32_t most_slabs_;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::atomic<Slab*>[], Free> slabs_;  // (most_slabs), of which few are touched

  mutable FairMutex mutex_;  // of the frames
  int32_t slab_count_ = 0;
  int32_t asked_ = 0;           // frames, by set_limit()
  int64_t limit_ = 0;           // frames: whole slabs; those with higher numbers are not used anew
  std::vector<int32_t> free_;   // room for all
  std::vector<Hidden> hidden_;  // entries that go when the steps that may see them have ended; room for all
  std::vector<Choice> chosen_;  // to go when frames are needed, in this order; room for all twice
  size_t chosen_first_ = 0;     // of those, the next one
  uint32_t choices_ = 0;        // made so far
  uint64_t none_before_ = 0;    // while this is the oldest step, all that are chosen are in use
  bool refused_ = false;        // the pool has no memory for the frames that there may be
  int64_t chosen_pages_ = 0, hidden_pages_ = 0;
  uint64_t going_bytes_ = 0;        // of slabs that are on their way back
  int64_t taken_ = 0, demand_ = 0;  // since the manager looked; lately
  PageCacheStats stats_;

  int32_t published_ = kNoEntry;  // that the manager does not know: a chain by next_published
  int32_t forgotten_ = kNoEntry;  // that it does not know to be: likewise
  bool behind_ = false;           // there is something for the manager's side to take over
  int32_t capacity_ = 0;          // of replacement_; changed under both locks

  std::mutex managing_;  // of the manager's side; nobody waits for it who is not the manager
  std::unique_ptr<Replacement> replacement_;
  std::vector<int32_t> names_;  // scratch
  uint64_t step_ = 0;
};

}  // namespace wi
