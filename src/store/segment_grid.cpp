#include "src/store/segment_grid.h"

#include <algorithm>

namespace wi {

int64_t SegmentGrid::sealed_end(int64_t tokens) const {
  const int64_t sealable = tokens - kSinkTokens - window_;
  if (sealable <= 0) return kSinkTokens;
  const int64_t begun = sealable % block_;  // of the block that is not whole
  return kSinkTokens + sealable - begun + begun / unit_ * unit_;
}

SegmentSpan SegmentGrid::longest(int64_t first, int64_t end) const {
  const int64_t offset = first - kSinkTokens;
  if (border_from(offset) == offset) {
    for (int64_t size = block_; size > unit_; size /= 2) {
      if (offset % block_ % size == 0 && first + size <= end) return {first, static_cast<int32_t>(size)};
      if (size % (2 * unit_) != 0) break;  // half of it is not whole units
    }
  }
  const SegmentSpan span = unit(first);
  return span.end() <= end ? span : SegmentSpan{first, 0};
}

SegmentSpan SegmentGrid::unit(int64_t first) const {
  const int64_t offset = first - kSinkTokens;
  const bool on_grid = border_from(offset) == offset;
  const int64_t border = border_from(offset + (on_grid ? 1 : std::min(unit_, block_)));
  return {first, static_cast<int32_t>(border - offset)};
}

// The first border at `offset` or behind it. Borders are those of the blocks and, within a block, those of
// its units; where units do not fill a block, its last one is shorter.
int64_t SegmentGrid::border_from(int64_t offset) const {
  const int64_t within = offset % block_;
  return offset - within + std::min((within + unit_ - 1) / unit_ * unit_, block_);
}

}  // namespace wi
