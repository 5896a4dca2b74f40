// Where segments begin and end: a function of positions alone, so that a prompt that is read in pieces is
// cut as one that is read at once, whatever came between the pieces. Positions behind the sink are divided
// into units (decode segments); a segment is one unit, or an aligned block of them that is segment_tokens
// long, or half of that, or a quarter …, as blocks are in a buddy allocator.
#pragma once

#include <cstdint>

#include "kernels/policy.h"

namespace wi {

constexpr int32_t kSinkTokens = 4;  // always attended exactly, never indexed (RetroInfer §4.2, steady zone)
constexpr int32_t kBlockTokens = 64;  // of the tail; segments are whole blocks
constexpr int64_t in_blocks(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

struct SegmentSpan {
  int64_t first = 0;
  int32_t tokens = 0;  // 0: there is none
  int64_t end() const { return first + tokens; }
  bool operator==(const SegmentSpan&) const = default;
};

class SegmentGrid {
 public:
  explicit SegmentGrid(const PolicyParams& params)
      : block_(params.segment_tokens), unit_(params.decode_segment_tokens), window_(params.local_window) {}

  // Where segments end in a sequence of so many tokens: as many whole units as leave the local window.
  int64_t sealed_end(int64_t tokens) const;

  // The longest segment that may begin at `first` and ends by `end`.
  SegmentSpan longest(int64_t first, int64_t end) const;

  // The one unit that begins at `first`, which is what decoding seals. Where a segment was cut off the grid,
  // the next one goes on to the first border of the grid that gives it a unit's tokens at least.
  SegmentSpan unit(int64_t first) const;

 private:
  int64_t border_from(int64_t offset) const;
  int64_t block_, unit_, window_;
};

}  // namespace wi
