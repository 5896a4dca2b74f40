// A shadow of a block's shared memory, a cell a byte: who wrote it last and who has read it since, and when.
// Two accesses to a byte of which one writes are a race, unless a barrier of the block lies between them, or,
// within a warp, one of the warp; or both are atomic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cuda_emulation {

// A thread's place in the order that barriers make.
struct Moment {
  uint32_t thread = 0;       // in the block
  uint32_t block_epoch = 0;  // barriers of the block before it
  uint32_t warp_epoch = 0;   // barriers of its warp before it
  uint32_t warp() const { return thread / 32; }
  bool before(const Moment& now) const {
    return thread == now.thread || block_epoch < now.block_epoch ||
           (warp() == now.warp() && warp_epoch < now.warp_epoch);
  }
};

enum class Access { read, write, atomic };

struct Conflict {
  const char* what = nullptr;  // null: none
  uint32_t other = 0;          // the thread that it is with
};

class Shadow {
 public:
  explicit Shadow(size_t bytes) : cells_(static_cast<Cell*>(std::calloc(bytes, sizeof(Cell))), &std::free) {}
  void begin_block() { ++block_; }

  Conflict access(size_t offset, size_t bytes, Access access, const Moment& now) {
    for (size_t i = 0; i < bytes; ++i) {
      Cell& cell = cells_.get()[offset + i];
      if (cell.block != block_) {
        cell = {};
        cell.block = block_;
      }
      const Conflict conflict = access == Access::read ? read(cell, now) : write(cell, access, now);
      if (conflict.what) return conflict;
    }
    return {};
  }

 private:
  // Of a byte since it was written: the last reader, and the last of another warp and of another lane before
  // it. More are not needed to find that there is one whom a write does not come after.
  struct Cell {
    uint64_t block = 0;  // what the cell holds is another block's, unless it is this one's
    bool written = false, atomic = false, read = false, read_by_warps = false, read_by_lanes = false;
    Moment writer, reader, other_warp, other_lane;
  };

  static Conflict read(Cell& cell, const Moment& now) {
    if (!cell.written) return {"reads shared memory that nobody has written", now.thread};
    if (!cell.writer.before(now)) return {"reads shared memory in a race with a write", cell.writer.thread};
    if (cell.read) {
      if (cell.reader.warp() != now.warp()) {
        cell.other_warp = cell.reader;
        cell.read_by_warps = true;
        cell.read_by_lanes = false;
      } else if (cell.reader.thread != now.thread) {
        cell.other_lane = cell.reader;
        cell.read_by_lanes = true;
      }
    }
    cell.reader = now;
    cell.read = true;
    return {};
  }

  static Conflict write(Cell& cell, Access access, const Moment& now) {
    const bool atomic = access == Access::atomic;
    if (atomic && !cell.written) return {"adds to shared memory that nobody has written", now.thread};
    if (cell.written && !(atomic && cell.atomic) && !cell.writer.before(now))
      return {"writes shared memory in a race with a write", cell.writer.thread};
    const char* const with_read = "writes shared memory in a race with a read";
    if (cell.read && !cell.reader.before(now)) return {with_read, cell.reader.thread};
    if (cell.read_by_warps && !cell.other_warp.before(now)) return {with_read, cell.other_warp.thread};
    if (cell.read_by_lanes && !cell.other_lane.before(now)) return {with_read, cell.other_lane.thread};
    cell.written = true;
    cell.atomic = atomic;
    cell.writer = now;
    cell.read = cell.read_by_warps = cell.read_by_lanes = false;
    return {};
  }

  std::unique_ptr<Cell, void (*)(void*)> cells_;  // zeroed, and no page of it there before it is used
  uint64_t block_ = 1;
};

}  // namespace cuda_emulation
