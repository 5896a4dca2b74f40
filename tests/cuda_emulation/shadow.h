// A shadow of a block's shared memory: of each byte, who wrote it last and who has read it since, and when. Two
// accesses to a byte of which one writes are a race, unless a barrier of the block lies between them, or, within a
// warp, one of the warp; or both are atomic.
//
// The bytes of a word that have only ever been accessed together have the same past, and one cell; an access to some
// of them gives each half, or byte, a cell of its own until the block has ended.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cuda_emulation {

// A thread's place in the order that barriers make.
struct Moment {
  uint32_t block_epoch = 0;      // barriers of the block before it
  uint32_t warp_epoch : 21 = 0;  // since the last of those, barriers of its warp before it
  uint32_t thread : 10 = 0;      // in the block
  uint32_t any : 1 = 0;          // 0: none
  uint32_t warp() const { return thread / 32; }
  bool before(const Moment& now) const {
    return block_epoch < now.block_epoch || thread == now.thread ||
           (warp() == now.warp() && warp_epoch < now.warp_epoch);
  }
  bool operator==(const Moment& other) const {
    return std::bit_cast<uint64_t>(*this) == std::bit_cast<uint64_t>(other);
  }
};
constexpr uint32_t kMostWarpEpochs = 1u << 21;

enum class Access { read, write, atomic };

struct Conflict {
  const char* what = nullptr;  // null: none
  uint32_t other = 0;          // the thread that it is with
};

class Shadow {
 public:
  explicit Shadow(size_t bytes)
      : words_(cells(bytes / 4 + 1)), halves_(cells(bytes / 2 + 2)), bytes_(cells(bytes + 4)) {}
  void begin_block() { ++block_; }

  Conflict access(size_t at, size_t bytes, Access how, const Moment& now) {
    for (const size_t end = at + bytes; at < end;) {
      Cell& word = words_.get()[at / 4];
      if (word.block != block_) {
        word = {};
        word.block = block_;
      }
      const size_t word_end = at / 4 * 4 + 4;
      Conflict conflict;
      if (at % 4 == 0 && word_end <= end && !word.parted)
        conflict = word.access(how, now);
      else
        conflict = part(word, at, std::min(word_end, end), how, now);
      if (conflict.what) return conflict;
      at = word_end;
    }
    return {};
  }

 private:
  // Since it was written: the last reader, and the last of another warp and of another lane before it. More are not
  // needed to find that there is one whom a write does not come after.
  struct Cell {
    uint32_t block = 0;  // what the cell holds is another block's, unless it is this one's
    bool parted = false, atomic = false;
    Moment writer, reader, other_warp, other_lane;

    Conflict access(Access how, const Moment& now) {
      return how == Access::read ? read(now) : write(how == Access::atomic, now);
    }

    Conflict read(const Moment& now) {
      if (reader == now) return {};
      if (!writer.any) return {"reads shared memory that nobody has written", now.thread};
      if (!writer.before(now)) return {"reads shared memory in a race with a write", writer.thread};
      if (reader.any) {
        if (reader.warp() != now.warp()) {
          other_warp = reader;
          other_lane = {};
        } else if (reader.thread != now.thread) {
          other_lane = reader;
        }
      }
      reader = now;
      return {};
    }

    Conflict write(bool atomically, const Moment& now) {
      if (atomically && !writer.any) return {"adds to shared memory that nobody has written", now.thread};
      if (writer.any && !(atomically && atomic) && !writer.before(now))
        return {"writes shared memory in a race with a write", writer.thread};
      if (reader.any)
        for (const Moment& each : {reader, other_warp, other_lane})
          if (each.any && !each.before(now))
            return {"writes shared memory in a race with a read", each.thread};
      atomic = atomically;
      writer = now;
      reader = other_warp = other_lane = {};
      return {};
    }
  };
  using Cells = std::unique_ptr<Cell, void (*)(void*)>;
  // Zeroed, and no page of it there before it is used.
  static Cells cells(size_t count) {
    return {static_cast<Cell*>(std::calloc(count, sizeof(Cell))), &std::free};
  }

  // Of a word, from one of its bytes to another.
  Conflict part(Cell& word, size_t at, size_t end, Access how, const Moment& now) {
    Cell* const halves = &halves_.get()[at / 4 * 2];
    if (!word.parted) {
      halves[0] = halves[1] = word;
      word.parted = true;
    }
    Conflict conflict;
    while (at < end && !conflict.what) {
      Cell& half = halves[at / 2 % 2];
      const size_t half_end = at / 2 * 2 + 2;
      if (at % 2 == 0 && half_end <= end && !half.parted) {
        conflict = half.access(how, now);
        at = half_end;
        continue;
      }
      Cell* const bytes = &bytes_.get()[at / 2 * 2];
      if (!half.parted) {
        bytes[0] = bytes[1] = half;
        half.parted = true;
      }
      conflict = bytes[at % 2].access(how, now);
      ++at;
    }
    return conflict;
  }

  Cells words_, halves_, bytes_;
  uint32_t block_ = 1;
};

}  // namespace cuda_emulation
