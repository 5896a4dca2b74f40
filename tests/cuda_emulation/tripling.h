// The kernel of steps that tests know the outcome of.
#pragma once

#include <cuda_runtime.h>

namespace wi::cuda_test {

// *number = *number * 3 + 1, of 32 bits.
cudaError_t triple_plus_one(cudaStream_t stream, unsigned* number);

}  // namespace wi::cuda_test
