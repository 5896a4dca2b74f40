// A pair of a row's dimensions, turned in place. Products and sums are rounded one by one, as the CPU does.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/ops.h"

namespace wi::cuda {

__host__ __device__ inline int64_t pairs_of_row(const RopeArgs& args) {
  return int64_t{args.heads} * (args.rotary / 2);
}

__device__ __forceinline__ void rotate_pair(const RopeArgs& args, int64_t row, int64_t number) {
  const int half = args.rotary / 2;
  const int head = static_cast<int>(number / half), pair = static_cast<int>(number % half);
  const int first = args.interleaved ? 2 * pair : pair, second = args.interleaved ? first + 1 : pair + half;
  float* x = args.x + row * args.stride + int64_t{head} * args.head_dim;
  const float cos = args.cos[row * half + pair], sin = args.sin[row * half + pair];
  const float a = x[first], b = x[second];
  x[first] = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  x[second] = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
}

}  // namespace wi::cuda
