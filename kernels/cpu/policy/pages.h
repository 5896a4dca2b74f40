// What policies without clusters share: a segment stays in the order of its tokens and is cut into pages of
// 16 consecutive ones, each a partition.
#pragma once

#include <algorithm>

#include "kernels/policy.h"

namespace wi::cpu {

constexpr int32_t kPageTokens = 16;

inline int32_t page_count(int32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

inline int32_t most_pages(const PolicyParams&, int32_t tokens) { return page_count(tokens); }

inline void page_offsets(const void*, int32_t pages, int32_t tokens, int32_t* offsets) {
  for (int32_t page = 0; page < pages; page++) offsets[page] = page * kPageTokens;
  offsets[pages] = tokens;
}

inline int32_t page_tokens(const SegmentView& segment, int32_t page) {
  return segment.offsets[page + 1] - segment.offsets[page];
}

// Copies a segment's tokens in their order (full.cpp).
void keep_order(const IndexArgs& args);

}  // namespace wi::cpu
