// Which cached clusters make room for others: the replacement managers of the wave buffer (RetroInfer §4.3,
// SPIN §5.3). An entry is one cluster of one (segment, layer, KV head) and holds 1 … n pages of fast memory;
// it comes, goes and is chosen whole. The manager knows numbers and counts alone: where the pages lie, who
// reads them and when they may be written again is its caller's business, the buffer manager's.
//
// Used by one thread at a time. All memory is taken when a manager is made, 12 bytes an entry (LRU) or 8
// (bucketed), so nothing that is reported to it can fail.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace wi {

// entry: 0 … capacity - 1, the caller's number; free again once the entry was removed or chosen.
// step: the decode step in which it happened. Steps that run at once may be reported crosswise: one older
// than the newest that was seen counts as that one.
class Replacement {
 public:
  virtual ~Replacement() = default;
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // It came in; must not be held. pages ≥ 1.
  virtual void admit(int32_t entry, int32_t pages, uint64_t step) noexcept = 0;
  // They were hit, in this order, any of them more than once. Those that are not held are passed over: a step
  // that began before an eviction still reports its hits.
  virtual void use(std::span<const int32_t> entries, uint64_t step) noexcept = 0;
  // Its segment is gone. Nothing happens if it is not held.
  virtual void remove(int32_t entry) noexcept = 0;
  // Chooses held entries of at least `pages` pages in all, the least recently used first and no more than it
  // takes, appends them to out and forgets them. Returns their pages: fewer than asked for if no more are held.
  // Takes memory only for out; if that is refused (std::bad_alloc), what is in out is forgotten, and nothing else.
  virtual int64_t evict(int64_t pages, std::vector<int32_t>& out) = 0;
  virtual int64_t pages() const noexcept = 0;  // of all that are held

 protected:
  Replacement() = default;
};

// Exact LRU, in the order of the calls, whatever the step, each in time of what it names or chooses (RetroInfer).
// out: from the least recently used.
std::unique_ptr<Replacement> make_lru(int32_t capacity);

// LRU by age in steps, where ages from 63 on are one, as a device computes it (SPIN): a hit is one write, and
// evict() is passes over all numbers. Of the entries of one age the lower numbers go first. out: by number.
std::unique_ptr<Replacement> make_bucketed(int32_t capacity);

}  // namespace wi
