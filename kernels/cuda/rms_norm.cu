// RMS norm: out = in / sqrt(mean(in²) + epsilon) * weight, each row by itself. Rows as long as a head (QK
// norm) take a warp each, longer ones a block. A thread writes what it has read, so that in place is fine.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kNormThreads = 256;
constexpr int64_t kWarpColumns = 512;  // at most, of a row that is a warp's

// Four numbers at a time where all rows begin at multiples of 16 bytes.
template <bool kVector, int kThreads>
__device__ __forceinline__ float sum_of_squares(const float* in, int64_t cols, int thread) {
  float sum = 0;
  if constexpr (kVector) {
    for (int64_t i = thread; i < cols / 4; i += kThreads) {
      const float4 x = reinterpret_cast<const float4*>(in)[i];
      sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
    }
  } else {
    for (int64_t i = thread; i < cols; i += kThreads) sum = fmaf(in[i], in[i], sum);
  }
  return sum;
}

template <bool kVector, int kThreads>
__device__ __forceinline__ void write_normed(const float* in, const float* weight, float scale, float* out,
                                             int64_t cols, int thread) {
  if constexpr (kVector) {
    for (int64_t i = thread; i < cols / 4; i += kThreads) {
      const float4 x = reinterpret_cast<const float4*>(in)[i];
      const float4 w = reinterpret_cast<const float4*>(weight)[i];
      reinterpret_cast<float4*>(out)[i] =
          make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
    }
  } else {
    for (int64_t i = thread; i < cols; i += kThreads) out[i] = in[i] * scale * weight[i];
  }
}

__device__ __forceinline__ float norm_scale(float sum, const RmsNormArgs& args) {
  return 1 / sqrtf(sum / static_cast<float>(args.cols) + args.epsilon);
}

template <bool kVector>
__global__ void __launch_bounds__(kNormThreads) rms_norm_warp_kernel(RmsNormArgs args) {
  in_turn();
  const int64_t row = int64_t{blockIdx.x} * (kNormThreads / kWarp) + warp_of();
  if (row >= args.rows) return;
  const float* in = args.in + row * args.in_stride;
  const float sum = warp_sum(sum_of_squares<kVector, kWarp>(in, args.cols, lane_of()));
  write_normed<kVector, kWarp>(in, args.weight, norm_scale(sum, args), args.out + row * args.out_stride,
                               args.cols, lane_of());
}

template <bool kVector>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNormArgs args) {
  in_turn();
  __shared__ float scratch[kNormThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const float* in = args.in + row * args.in_stride;
  const float sum = block_sum(sum_of_squares<kVector, kNormThreads>(in, args.cols, thread), scratch);
  write_normed<kVector, kNormThreads>(in, args.weight, norm_scale(sum, args),
                                      args.out + row * args.out_stride, args.cols, thread);
}

cudaError_t rms_norm(cudaStream_t stream, const RmsNormArgs& args) {
  const auto at_16 = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool vector = args.cols % 4 == 0 && args.in_stride % 4 == 0 && args.out_stride % 4 == 0 &&
                      at_16(args.in) && at_16(args.weight) && at_16(args.out);
  if (args.cols <= kWarpColumns) {
    constexpr int64_t kRows = kNormThreads / kWarp;
    const unsigned blocks = static_cast<unsigned>((args.rows + kRows - 1) / kRows);
    return launch(vector ? rms_norm_warp_kernel<true> : rms_norm_warp_kernel<false>, blocks, kNormThreads, 0,
                  stream, args);
  }
  return launch(vector ? rms_norm_kernel<true> : rms_norm_kernel<false>, static_cast<unsigned>(args.rows),
                kNormThreads, 0, stream, args);
}

}  // namespace wi::cuda
