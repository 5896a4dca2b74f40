// Exact LRU, the manager of RetroInfer's block cache (§4.3): a list through all held entries, the least
// recently used first. Its links are arrays of numbers, so moving an entry is six writes and no allocation.
#include <cassert>

#include "src/buffer/replacement.h"

namespace wi {

namespace {

class Lru final : public Replacement {
 public:
  explicit Lru(int32_t capacity)
      : end_(capacity),
        pages_(static_cast<size_t>(capacity)),
        next_(static_cast<size_t>(capacity) + 1),
        previous_(static_cast<size_t>(capacity) + 1) {
    next_[end_] = previous_[end_] = end_;
  }

  void admit(int32_t entry, int32_t pages, uint64_t) noexcept override {
    assert(pages > 0 && pages_[entry] == 0);
    pages_[entry] = pages;
    total_ += pages;
    append(entry);
  }

  void use(std::span<const int32_t> entries, uint64_t) noexcept override {
    for (const int32_t entry : entries) {
      if (pages_[entry] == 0) continue;
      unlink(entry);
      append(entry);
    }
  }

  void remove(int32_t entry) noexcept override {
    if (pages_[entry] == 0) return;
    unlink(entry);
    total_ -= pages_[entry];
    pages_[entry] = 0;
  }

  int64_t evict(int64_t pages, std::vector<int32_t>& out) override {
    const int64_t had = total_;
    for (int32_t oldest = next_[end_]; had - total_ < pages && oldest != end_; oldest = next_[end_]) {
      out.push_back(oldest);
      remove(oldest);
    }
    return had - total_;
  }

  int64_t pages() const noexcept override { return total_; }

 private:
  void unlink(int32_t entry) noexcept {
    next_[previous_[entry]] = next_[entry];
    previous_[next_[entry]] = previous_[entry];
  }

  void append(int32_t entry) noexcept {  // as the most recently used
    previous_[entry] = previous_[end_];
    next_[entry] = end_;
    next_[previous_[end_]] = entry;
    previous_[end_] = entry;
  }

  const int32_t end_;           // the list's two ends meet here: next_ is the oldest, previous_ the newest
  std::vector<int32_t> pages_;  // (capacity); 0: not held
  std::vector<int32_t> next_, previous_;  // (capacity + 1)
  int64_t total_ = 0;
};

}  // namespace

std::unique_ptr<Replacement> make_lru(int32_t capacity) { return std::make_unique<Lru>(capacity); }

}  // namespace wi
