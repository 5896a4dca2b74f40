// How one (layer, KV head) of a segment lies in the slow tier and in a saved session: partition by partition,
// each in pages of kFrameTokens tokens (the last one of fewer), keys, then values. What is read of a file that
// others may change has a checksum a page: every read is of whole pages, but not of whole partitions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/buffer/page_cache.h"

namespace wi {

// offsets (partitions + 1) in the stored order.
struct PlaneLayout {
  const int32_t* offsets = nullptr;
  int32_t partitions = 0;
  int32_t tokens() const { return offsets[partitions]; }
};

struct PlanePage {
  int32_t first, tokens;  // in the stored order
  int32_t slot;           // of its checksum
};

// Where the checksum of a partition's first page is; those of its other pages follow. A partition of n tokens
// has at most n / kFrameTokens + 1 pages, so that no two share a slot; some have none.
constexpr int32_t page_slot(int32_t partition, int32_t offset) { return offset / kFrameTokens + partition; }
constexpr size_t page_slots(int32_t tokens, int32_t partitions) {
  return static_cast<size_t>(page_slot(partitions, tokens));
}

// A plane's keys, then values in the stored order as they are packed in pages; both 2 * tokens * row_bytes.
void pack_plane(const PlaneLayout& plane, size_t row_bytes, const std::byte* stored, std::byte* packed);

uint32_t page_checksum(const std::byte* page, size_t bytes);

// visit(page) for each page with some of the rows [first, end), in order.
template <class Visit>
void each_page(const PlaneLayout& plane, int32_t first, int32_t end, Visit&& visit) {
  const int32_t* const last = plane.offsets + plane.partitions;
  for (const int32_t* p = std::upper_bound(plane.offsets, last, first) - 1; p < last && *p < end; ++p) {
    int32_t slot = page_slot(static_cast<int32_t>(p - plane.offsets), *p);
    for (int32_t at = *p; at < p[1] && at < end; at += kFrameTokens, ++slot)
      if (at + kFrameTokens > first) visit(PlanePage{at, std::min(kFrameTokens, p[1] - at), slot});
  }
}

}  // namespace wi
