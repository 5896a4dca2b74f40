// The full policy's one operation on a device.
#pragma once

#include "kernels/cuda/cuda.h"

namespace wi::cuda {

[[nodiscard]] cudaError_t full_select(cudaStream_t stream, const LookupArgs& args);

}  // namespace wi::cuda
