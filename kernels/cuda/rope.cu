// Rotary position embedding: pairs of dimensions turn by an angle that grows with the position. The model
// computes the angles (with its scaling); this applies them to queries and keys in place, a pair a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

// Products and sums are rounded one by one, as the CPU does.
__global__ void __launch_bounds__(256) rope_kernel(RopeArgs args) {
  in_turn();
  const int half = args.rotary / 2;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;  // of a row's pairs
  if (number >= int64_t{args.heads} * half) return;
  const int head = static_cast<int>(number / half), pair = static_cast<int>(number % half);
  const int first = args.interleaved ? 2 * pair : pair, second = args.interleaved ? first + 1 : pair + half;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float* x = args.x + row * args.stride + int64_t{head} * args.head_dim;
    const float cos = args.cos[row * half + pair], sin = args.sin[row * half + pair];
    const float a = x[first], b = x[second];
    x[first] = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
    x[second] = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  }
}

cudaError_t rope(cudaStream_t stream, const RopeArgs& args) {
  const int64_t pairs = int64_t{args.heads} * (args.rotary / 2);
  const unsigned rows = static_cast<unsigned>(args.rows < 65535 ? args.rows : 65535);
  return launch(rope_kernel, dim3(static_cast<unsigned>((pairs + 255) / 256), rows), 256, 0, stream, args);
}

}  // namespace wi::cuda
