// One lane's working memory in wave_estimate.cpp, n = lane.partition_count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi::cpu {

struct EstimateScratch {
  float* sizes;            // (n + 16); 0 where retrieved
  uint32_t* extents;       // (n + 16)
  float* acc;              // (4, head_dim padded)
  int32_t* first;          // (segments) number of each segment's first cluster
  int32_t* clusters;       // (estimated + 64) numbers of the estimated clusters, then 0
  const std::byte** rows;  // (estimated) their value means
  // Of one block of heads: the estimated clusters that matter.
  float* kept;                  // (4, kept_stride) mass
  size_t kept_stride;           // > estimated
  const std::byte** kept_rows;  // (estimated + 1) value means
};

}  // namespace wi::cpu
