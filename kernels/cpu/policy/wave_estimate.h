// One lookup's working memory in wave_estimate.cpp: its estimation zone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

struct EstimateScratch {
  size_t count;       // estimated clusters; lists have room for 16 more
  uint64_t* members;  // for each segment (⌈clusters / 64⌉): a bit for each cluster, whether it is estimated
  float* sizes;       // (count), then 0
  float* spreads;     // (count), then 0
  const std::byte** rows;  // (count) their value means
  float* acc;              // (4, head_dim padded)
  // Of one block of heads: the estimated clusters' scores, then the masses of those that matter.
  float* kept;  // (4, kept_stride)
  size_t kept_stride;
  const std::byte** kept_rows;  // value means
};

}  // namespace wi::cpu
