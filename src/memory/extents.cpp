#include "src/memory/extents.h"

#include <algorithm>
#include <cassert>

namespace wi {

uint64_t Extents::take(uint64_t bytes, uint64_t most_end) {
  assert(bytes > 0);
  if (free_.capacity() < taken_ + 1) free_.reserve(std::max<uint64_t>(16, 2 * (taken_ + 1)));
  const auto fits =
      std::find_if(free_.begin(), free_.end(), [&](const Range& range) { return range.bytes >= bytes; });
  uint64_t offset = end_;
  if (fits != free_.end()) {
    offset = fits->offset;
    if (fits->bytes == bytes)
      free_.erase(fits);
    else
      *fits = {fits->offset + bytes, fits->bytes - bytes};
  } else {
    if (end_ > most_end || bytes > most_end - end_) return kNowhere;
    end_ += bytes;
  }
  ++taken_;
  used_ += bytes;
  return offset;
}

void Extents::give(uint64_t offset, uint64_t bytes) noexcept {
  assert(taken_ > 0 && bytes <= used_ && offset + bytes <= end_);
  --taken_;
  used_ -= bytes;
  auto after = std::lower_bound(free_.begin(), free_.end(), offset,
                                [](const Range& range, uint64_t at) { return range.offset < at; });
  assert(after == free_.end() || offset + bytes <= after->offset);
  if (after != free_.end() && offset + bytes == after->offset) {
    bytes += after->bytes;
    after = free_.erase(after);
  }
  if (after != free_.begin() && (after - 1)->offset + (after - 1)->bytes == offset) {
    --after;
    offset = after->offset;
    bytes += after->bytes;
    after = free_.erase(after);
  }
  if (offset + bytes == end_)
    end_ = offset;
  else
    free_.insert(after, {offset, bytes});
}

}  // namespace wi
