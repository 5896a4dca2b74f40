// A kernel that follows a wild pointer, as one with a mistake does: the device is lost to the process.
#pragma once

#include <cuda_runtime.h>

namespace wi::gpu_test {

void write_astray(cudaStream_t stream);

}  // namespace wi::gpu_test
