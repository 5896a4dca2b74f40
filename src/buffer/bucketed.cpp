// SPIN's bucketed LRU (§5.3), the same algorithm on a host as on a device: plain passes over arrays, no list.
//
// SPIN stamps what is hit with 63 and takes one from all other stamps, down to 0, whenever a new step begins.
// A stamp is thus 63 less the steps that began since the last use, and 0 from 63 steps on; so the step of the
// last use says all, and the pass that demotes the others is not needed: bucket() computes the stamp where it
// is read. A step whose number jumps demotes by as many.
//
// SPIN evicts the threshold's bucket whole. Its cache is one sequence's, which is hit in every step; here it
// is all sessions', and those who pause for 63 steps are together in bucket 0, to be lost for the sake of one
// page. Only as many go as are needed, by number, which keeps the choice the same everywhere.
#include <array>
#include <cassert>

#include "src/buffer/last_use.h"
#include "src/buffer/replacement.h"

namespace wi {

namespace {

constexpr uint32_t kBuckets = 64;

class Bucketed final : public Replacement {
 public:
  explicit Bucketed(int32_t capacity) : last_use_(capacity), pages_(static_cast<size_t>(capacity)) {}

  void admit(int32_t entry, int32_t pages, uint64_t step) noexcept override {
    assert(pages > 0 && pages_[entry] == 0);
    last_use_.advance(step);
    last_use_.touch(entry);
    pages_[entry] = pages;
    total_ += pages;
  }

  // Also those that are not held: their stamps are read by nobody.
  void use(std::span<const int32_t> entries, uint64_t step) noexcept override {
    last_use_.advance(step);
    for (const int32_t entry : entries) last_use_.touch(entry);
  }

  void remove(int32_t entry) noexcept override {
    total_ -= pages_[entry];
    pages_[entry] = 0;
  }

  int64_t evict(int64_t pages, std::vector<int32_t>& out) override {
    return pages > 0 ? compact(find_threshold(pages), out) : 0;
  }

  int64_t pages() const noexcept override { return total_; }

 private:
  // Entries go from buckets below it, and from itself until so many of its pages are gone.
  struct Threshold {
    uint32_t bucket;
    int64_t pages;
  };

  // 63: used in the newest step.
  uint32_t bucket(int32_t entry) const noexcept {
    return kBuckets - 1 - std::min(last_use_.age(entry), kBuckets - 1);
  }

  // Parallel over entries, with atomic sums. Those not held have no pages to add.
  Threshold find_threshold(int64_t pages) const noexcept {
    std::array<int64_t, kBuckets> histogram{};
    const auto count = static_cast<int32_t>(pages_.size());
    for (int32_t entry = 0; entry < count; ++entry) histogram[bucket(entry)] += pages_[entry];
    uint32_t threshold = 0;
    while (threshold < kBuckets - 1 && histogram[threshold] < pages) pages -= histogram[threshold++];
    return {threshold, pages};
  }

  // Parallel over entries after a prefix sum, which the order by number needs anyway: of those that go, for
  // the place in out, and of the pages in the threshold's bucket, which is `before_it` here.
  int64_t compact(Threshold threshold, std::vector<int32_t>& out) {
    int64_t chosen = 0, before_it = 0;
    const auto count = static_cast<int32_t>(pages_.size());
    for (int32_t entry = 0; entry < count; ++entry) {
      if (pages_[entry] == 0) continue;
      const uint32_t own = bucket(entry);
      if (own > threshold.bucket) continue;
      if (own == threshold.bucket) {
        if (before_it >= threshold.pages) continue;
        before_it += pages_[entry];
      }
      out.push_back(entry);
      chosen += pages_[entry];
      remove(entry);
    }
    return chosen;
  }

  LastUse last_use_;
  std::vector<int32_t> pages_;  // (capacity); 0: not held
  int64_t total_ = 0;
};

}  // namespace

std::unique_ptr<Replacement> make_bucketed(int32_t capacity) { return std::make_unique<Bucketed>(capacity); }

}  // namespace wi
