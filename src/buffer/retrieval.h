// Retrieve over a slow tier: which of a pass's partitions are in frames, and the others brought in, all of a
// layer at once. One step's; kept, so that a step allocates nothing after warm-up.
#pragma once

#include <memory>
#include <vector>

#include "kernels/policy.h"
#include "src/buffer/wave_buffer.h"

namespace wi {

class Retrieval {
 public:
  // For the time of a decode step, which lies within a WaveBuffer::Reading; null: there is no slow tier.
  class Use {
   public:
    Use(Retrieval& retrieval, WaveBuffer* buffer) : retrieval_(retrieval) { retrieval_.begin(buffer); }
    ~Use() { retrieval_.end(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Retrieval& retrieval_;
  };

  // What became of a lookup's misses.
  struct Counts {
    uint64_t admissions = 0, refusals = 0, late = 0;  // as PageCacheStats has them
    uint64_t evictions = 0;                           // entries that made room
    uint64_t stalls = 0;                              // lookups that waited
  };
  // From now on they are added up for each of these counters, which lookups share.
  void count_beside(const LookupCounters* counters, size_t count) {
    counters_ = counters;
    counts_.assign(count, {});
  }
  const Counts& counts(size_t number) const { return counts_[number]; }

  // The retrieved partitions as runs, in the order of selection: what lies where decides no bit. Some of the
  // lookups' segments are in the slow tier. Throws WI_E_IO, WI_E_FORMAT as SlowPlane::verify() or, between reads,
  // WI_E_CANCELLED.
  void run(const Stream& stream, const LookupArgs& args);

  // Of a device's lookups, the cache of what is pinned, for their next pass; null: they do without.
  const HotPages* hot_pages(Queue& queue, size_t page_bytes) {
    return pinned_ ? hot_.begin_pass(pinned_->hot_pages(page_bytes), queue) : nullptr;
  }

  size_t bytes() const;

 private:
  struct Miss {
    int32_t lookup;
    int32_t partition;  // in its list
    int32_t run;        // its first
    int32_t entry;      // the chain that it is read into, or kNoEntry
    EntrySlot* slot;    // where others find it
    int32_t same;       // the first of misses_ that has this slot: itself, or who reads it for this one
  };
  // Of one lookup.
  struct Found {
    size_t first_run = 0;
    std::vector<Miss> misses;
    std::vector<EntryUse> hits;
  };

  void begin(WaveBuffer* buffer);
  void end() noexcept;
  void find(const LookupArgs& args, int32_t number);
  void fetch(const LookupArgs& args, const std::atomic<bool>* cancel);
  void find_same(const LookupArgs& args);
  bool reads(const Miss& miss) const { return &miss == &misses_[static_cast<size_t>(miss.same)]; }
  StepUse& use_of(PageCache& cache);
  void verify(const LookupArgs& args, const Miss& miss) const;
  void give_back() noexcept;
  Counts& counts_of(const LookupArgs& args, const Miss& miss) {
    return counts_[static_cast<size_t>(args.lookups[miss.lookup].counters - counters_)];
  }

  WaveBuffer* buffer_ = nullptr;  // whose slow tier is a file
  WaveBuffer* pinned_ = nullptr;  // or pinned memory
  HotPageCache::Use hot_;
  uint64_t step_ = 0;
  std::shared_ptr<SpillFile> file_;      // that reader_ reads
  std::unique_ptr<SpillReader> reader_;  // made with the first miss
  PageCache* cache_ = nullptr;           // of the pass
  std::vector<StepUse> uses_;            // of each cache that steps look at: one a size of pages
  const LookupCounters* counters_ = nullptr;
  std::vector<Counts> counts_;  // of counters_
  std::vector<Found> found_;    // (lookups)
  std::vector<KvRun> runs_;
  std::vector<Miss> misses_;
  std::vector<int32_t> by_slot_;  // misses_, those of a slot side by side
  std::vector<ReadRequest> requests_;
  std::vector<std::byte> refused_;  // pages that found no frame, for this pass
};

}  // namespace wi
