// Tokens of whatever has a copy_tokens() to where they go in a tail.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/memory/memory.h"

namespace wi {

// Keys and values of one head's positions [first, first + rows of all runs), which begin with runs[0]'s. From
// the slow tier they come at once, since each copy there is a read of its own, and so they do where copies are a
// device's.
template <class From>
void copy_rows(const From& from, bool slow, int32_t layer, int32_t head, int64_t first, size_t row_bytes,
               std::span<const AppendRun> runs, Memory& memory, std::vector<std::byte>& room) {
  int64_t rows = 0;
  for (const AppendRun& run : runs) rows += run.rows;
  const size_t half = static_cast<size_t>(rows) * row_bytes;
  const bool at_once = slow || !memory.host_loads();
  if (at_once) {
    room.resize(2 * half);
    from.copy_tokens(layer, head, first, rows, room.data(), room.data() + half);
  }
  for (const AppendRun& run : runs) {
    const size_t to = static_cast<size_t>(head) * run.head_stride;
    const int64_t row = run.row - runs.front().row;
    const size_t at = static_cast<size_t>(row) * row_bytes, bytes = static_cast<size_t>(run.rows) * row_bytes;
    if (!at_once) {
      from.copy_tokens(layer, head, first + row, run.rows, run.keys + to, run.values + to);
      continue;
    }
    const CopyPiece pieces[] = {{run.keys + to, room.data() + at, bytes},
                                {run.values + to, room.data() + half + at, bytes}};
    memory.copy(pieces);
  }
}

}  // namespace wi
