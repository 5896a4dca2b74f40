// Rotary position embedding: pairs of dimensions turn by an angle that grows with the position. The model
// computes the angles (with its scaling); this applies them to queries and keys in place, a pair a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rope.cuh"

namespace wi::cuda {

__global__ void __launch_bounds__(256) rope_kernel(RopeArgs args) {
  in_turn();
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (number >= pairs_of_row(args)) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) rotate_pair(args, row, number);
}

cudaError_t rope(cudaStream_t stream, const RopeArgs& args) {
  const int64_t pairs = pairs_of_row(args);
  const unsigned rows = static_cast<unsigned>(args.rows < 65535 ? args.rows : 65535);
  return launch(rope_kernel, dim3(static_cast<unsigned>((pairs + 255) / 256), rows), 256, 0, stream, args);
}

}  // namespace wi::cuda
