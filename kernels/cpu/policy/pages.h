// What policies without clusters share: a segment stays in the order of its tokens and is cut into pages of
// 16 consecutive ones, each a partition.
#pragma once

#include <algorithm>

#include "kernels/policy.h"

namespace wi::cpu {

constexpr int32_t kPageTokens = 16;

inline int32_t page_count(int32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

inline void page_range(const SegmentView& segment, int32_t page, int32_t* begin, int32_t* end) {
  *begin = page * kPageTokens;
  *end = std::min(segment.tokens, *begin + kPageTokens);
}

inline int32_t page_tokens(const SegmentView& segment, int32_t page) {
  return std::min(segment.tokens - page * kPageTokens, kPageTokens);
}

// Copies a segment's tokens in their order (full.cpp).
void keep_order(const IndexArgs& args);

}  // namespace wi::cpu
