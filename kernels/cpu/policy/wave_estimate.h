// One lane's working memory in wave_estimate.cpp, n = lane.partition_count.
#pragma once

#include <cstdint>

namespace wi::cpu {

struct EstimateScratch {
  float* weights;  // (n + 16) sizes; 0 where retrieved
  float* radii;    // (n + 16)
  float* acc;      // (4, head_dim padded)
  int32_t* first;  // (segments) number of each segment's first cluster
};

}  // namespace wi::cpu
