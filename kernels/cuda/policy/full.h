// The full policy's operations on a device.
#pragma once

#include "kernels/cuda/cuda.h"

namespace wi::cuda {

// Some tokens of a plane of a new segment, which is one partition in order of position: where they are, and where they go.
struct FullRun {
  const void *keys, *values;
  void *keys_to, *values_to;
  uint64_t bytes;  // of its keys, a multiple of 16; of its values
};
// Copies all runs, and numbers the tokens of each plane: places (count) of (tokens). The lists are in device memory.
[[nodiscard]] cudaError_t full_index(cudaStream_t stream, const FullRun* runs, uint32_t run_count,
                                     int32_t* const* places, uint32_t planes, int32_t tokens);

[[nodiscard]] cudaError_t full_select(cudaStream_t stream, const LookupArgs& args);

}  // namespace wi::cuda
