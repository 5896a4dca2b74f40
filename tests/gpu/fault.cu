#include "tests/gpu/fault.h"

namespace wi::gpu_test {

__global__ void astray_kernel(int* wild) { *wild = 1; }

void write_astray(cudaStream_t stream) {
  // Not by launch(): of the backend's launches this is none.
  astray_kernel<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(uintptr_t{64}));
}

}  // namespace wi::gpu_test
