// What policies without clusters share: a segment stays in the order of its tokens and is cut into pages of
// 16 consecutive ones, each a partition.
#pragma once

#include <algorithm>
#include <cmath>

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

// Tokens that a lane may retrieve, rounded up as the wave policy does.
inline int64_t budget_tokens(const LanesArgs& args, const Lane& lane) {
  const float share = std::clamp(args.params->budget, 0.0f, 1.0f);
  return share >= 1 ? lane.indexed_tokens
                    : static_cast<int64_t>(std::ceil(share * static_cast<float>(lane.indexed_tokens)));
}

// Copies a segment's tokens in their order (full.cpp).
void keep_order(const IndexArgs& args);

}  // namespace wi::cpu
