// A shadow of a block's shared memory: of each byte, who wrote it last and who has read it since, and when. Two
// accesses to a byte of which one writes are a race, unless a barrier of the block lies between them, or, within a
// warp, one of the warp; or both are atomic.
//
// The bytes of a word that have only ever been accessed together have the same past, and one cell; an access to some
// of them gives each half, or byte, a cell of its own until the block has ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cuda_emulation {

// A thread's place in the order that barriers make. 0: none.
struct Moment {
  uint64_t bits = 0;

  // Barriers of blocks before it, of all blocks; since the last of those, barriers of its warp; which of the block it is.
  static Moment of(uint64_t epoch, uint32_t warp_epoch, uint32_t thread) {
    return {epoch << 32 | uint64_t{warp_epoch} << 12 | thread};
  }
  uint64_t epoch() const { return bits >> 32; }
  uint32_t thread() const { return static_cast<uint32_t>(bits) & 1023; }
  bool any() const { return bits != 0; }
  bool same_thread(const Moment& other) const { return ((bits ^ other.bits) & 1023) == 0; }
  bool same_warp(const Moment& other) const { return ((bits ^ other.bits) & (1023 - 31)) == 0; }
  bool before(const Moment& now) const {
    return epoch() < now.epoch() || same_thread(now) || (same_warp(now) && bits >> 12 < now.bits >> 12);
  }
};
constexpr uint32_t kMostWarpEpochs = 1u << 20;
constexpr uint64_t kMostEpochs = uint64_t{1} << 32;

enum class Access { read, write, atomic };

struct Conflict {
  const char* what = nullptr;  // null: none
  uint32_t other = 0;          // the thread that it is with
};

class Shadow {
 public:
  explicit Shadow(size_t bytes) : size_(bytes) { forget(); }
  // Its moments are of this epoch and later ones; all that were before are of earlier ones.
  void begin_block(uint64_t epoch) {
    if (epoch <= first_) forget();
    first_ = epoch;
  }

  Conflict access(size_t at, size_t bytes, Access how, const Moment now) {
    for (const size_t end = at + bytes; at < end;) {
      Cell& word = words_.get()[at / 4];
      const size_t word_end = at / 4 * 4 + 4;
      Conflict conflict;
      if (at % 4 == 0 && word_end <= end && !(word.writer.bits & kParted && written(word))) [[likely]]
        conflict = apply(word, how, now);
      else
        conflict = part(word, at, std::min(word_end, end), how, now);
      if (conflict.what) [[unlikely]]
        return conflict;
      at = word_end;
    }
    return {};
  }

 private:
  // Since it was written: the last reader, and the last of another warp and of another lane before it. More are not
  // needed to find that there is one whom a write does not come after. Of a cell that this block has not written, what
  // it holds is another's.
  struct Cell {
    Moment
        writer;  // and, in bits of its own, whether it was atomic, and whether the cell's halves have their own
    Moment reader, other_warp, other_lane;
  };
  static constexpr uint64_t kAtomic = 1u << 10, kParted = 1u << 11;

  bool written(const Cell& cell) const { return cell.writer.epoch() >= first_; }

  Conflict apply(Cell& cell, Access how, const Moment now) {
    return how == Access::read ? read(cell, now) : write(cell, how == Access::atomic, now);
  }

  Conflict read(Cell& cell, const Moment now) {
    if (!written(cell)) return {"reads shared memory that nobody has written", now.thread()};
    if (!cell.writer.before(now)) return {"reads shared memory in a race with a write", cell.writer.thread()};
    if (cell.reader.any()) {
      if (!cell.reader.same_warp(now)) {
        cell.other_warp = cell.reader;
        cell.other_lane = {};
      } else if (!cell.reader.same_thread(now)) {
        cell.other_lane = cell.reader;
      }
    }
    cell.reader = now;
    return {};
  }

  Conflict write(Cell& cell, bool atomic, const Moment now) {
    if (written(cell)) {
      if (!(atomic && cell.writer.bits & kAtomic) && !cell.writer.before(now))
        return {"writes shared memory in a race with a write", cell.writer.thread()};
      if (cell.reader.any())
        for (const Moment& each : {cell.reader, cell.other_warp, cell.other_lane})
          if (each.any() && !each.before(now))
            return {"writes shared memory in a race with a read", each.thread()};
    } else if (atomic) {
      return {"adds to shared memory that nobody has written", now.thread()};
    }
    cell = {{now.bits | (atomic ? kAtomic : 0)}, {}, {}, {}};
    return {};
  }

  // A cell's past becomes that of each of its halves.
  void part_cell(Cell& cell, Cell* halves) {
    if (!written(cell)) cell = {};
    if (cell.writer.bits & kParted) return;
    halves[0] = halves[1] = cell;
    cell.writer = {(cell.writer.any() ? cell.writer.bits : first_ << 32) | kParted};
  }

  // Of a word, from one of its bytes to another.
  __attribute__((noinline)) Conflict part(Cell& word, size_t at, size_t end, Access how, const Moment now) {
    Cell* const halves = &halves_.get()[at / 4 * 2];
    part_cell(word, halves);
    Conflict conflict;
    while (at < end && !conflict.what) {
      Cell& half = halves[at / 2 % 2];
      const size_t half_end = at / 2 * 2 + 2;
      if (at % 2 == 0 && half_end <= end && !(half.writer.bits & kParted)) {
        conflict = apply(half, how, now);
        at = half_end;
        continue;
      }
      Cell* const bytes = &bytes_.get()[at / 2 * 2];
      part_cell(half, bytes);
      conflict = apply(bytes[at % 2], how, now);
      ++at;
    }
    return conflict;
  }

  using Cells = std::unique_ptr<Cell, void (*)(void*)>;
  // Zeroed, and no page of it there before it is used.
  static Cells cells(size_t count) {
    return {static_cast<Cell*>(std::calloc(count, sizeof(Cell))), &std::free};
  }
  void forget() {
    words_ = cells(size_ / 4 + 1);
    halves_ = cells(size_ / 2 + 2);
    bytes_ = cells(size_ + 4);
  }

  size_t size_;
  Cells words_{nullptr, &std::free}, halves_{nullptr, &std::free}, bytes_{nullptr, &std::free};
  uint64_t first_ = 0;
};

}  // namespace cuda_emulation
