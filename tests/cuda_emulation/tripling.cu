#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "tests/cuda_emulation/tripling.h"

namespace wi::cuda_test {

__global__ void tripling_kernel(unsigned* number) {
  cuda::in_turn();
  if (threadIdx.x == 0) *number = *number * 3 + 1;
}
cudaError_t triple_plus_one(cudaStream_t stream, unsigned* number) {
  return cuda::launch(tripling_kernel, 1, 32, 0, stream, number);
}

}  // namespace wi::cuda_test
