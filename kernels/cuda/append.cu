// Keys and values of new tokens into the KV cache: bound by memory. A few blocks share a run, a thread takes
// eight numbers of a key and of a value at a time.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rope.cuh"

namespace wi::cuda {

__device__ __forceinline__ unsigned magnitude(float number) { return __float_as_uint(number) & 0x7FFFFFFFu; }

// Returns the largest magnitude of the eight.
template <DType kKv>
__device__ __forceinline__ unsigned write_eight(const float* from, std::byte* to) {
  float numbers[8];
  load_floats<8>(from, numbers);
  union {
    uint4 words[sizeof(Kv<kKv>) / 2];
    Kv<kKv> narrow[8];
  } out;
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    out.narrow[i] = from_float<Kv<kKv>>(numbers[i]);
    largest = max(largest, magnitude(numbers[i]));
  }
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Kv<kKv>) / 2); i++)
    reinterpret_cast<uint4*>(to)[i] = out.words[i];
  return largest;
}

// By threads first, first + step, …
template <DType kKv>
__device__ __forceinline__ unsigned append_run(const AppendArgs& args, const AppendRun& run, int64_t first,
                                               int64_t step) {
  const int eights = args.head_dim / 8;
  const int64_t per_row = int64_t{args.kv_heads} * eights, count = run.rows * per_row;
  unsigned largest = 0;
  for (int64_t i = first; i < count; i += step) {
    const int64_t row = i / per_row;
    const int head = static_cast<int>(i % per_row / eights), at = static_cast<int>(i % eights) * 8;
    const int64_t from = (run.row + row) * args.stride + int64_t{head} * args.head_dim + at;
    const size_t to = static_cast<size_t>(head) * run.head_stride +
                      static_cast<size_t>(row * args.head_dim + at) * sizeof(Kv<kKv>);
    largest = max(largest, write_eight<kKv>(args.keys + from, run.keys + to));
    largest = max(largest, write_eight<kKv>(args.values + from, run.values + to));
  }
  return largest;
}
__device__ __forceinline__ unsigned append_run(const AppendArgs& args, const AppendRun& run, int64_t first,
                                               int64_t step) {
  return run.kv == DType::f32    ? append_run<DType::f32>(args, run, first, step)
         : run.kv == DType::bf16 ? append_run<DType::bf16>(args, run, first, step)
                                 : append_run<DType::f16>(args, run, first, step);
}

constexpr int kAppendThreads = 256;

__global__ void __launch_bounds__(kAppendThreads) append_kernel(AppendArgs args) {
  in_turn();
  for (int64_t r = blockIdx.y; r < args.run_count; r += gridDim.y) {
    const unsigned largest =
        append_run(args, args.runs[r], int64_t{blockIdx.x} * kAppendThreads + threadIdx.x,
                   int64_t{gridDim.x} * kAppendThreads);
    const unsigned of_warp = __reduce_max_sync(kAllLanes, largest);
    if (lane_of() == 0 && of_warp > 0) atomicMax(args.largest + r, of_warp);
  }
}

// Short runs; a block takes one.
__device__ __forceinline__ void append_by_block(const AppendArgs& args, const AppendRun& run) {
  __shared__ unsigned of_warps[kAppendThreads / kWarp];
  const unsigned largest = append_run(args, run, static_cast<int64_t>(threadIdx.x), int64_t{kAppendThreads});
  const unsigned of_warp = __reduce_max_sync(kAllLanes, largest);
  if (lane_of() == 0) of_warps[warp_of()] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned all = 0;
  for (const unsigned warp : of_warps) all = max(all, warp);
  args.largest[blockIdx.x] = all;
}

// Few of them, which come with the launch.
struct FewRuns {
  AppendArgs args;
  AppendRun runs[kFewRuns];
};
__global__ void __launch_bounds__(kAppendThreads) append_few_kernel(const __grid_constant__ FewRuns few) {
  in_turn();
  append_by_block(few.args, few.runs[blockIdx.x]);
}

// Those of a step, which are there before its first layer.
__global__ void __launch_bounds__(kAppendThreads) append_short_kernel(AppendArgs args) {
  in_turn();
  append_by_block(args, args.runs[blockIdx.x]);
}

// The same after rope, of a row a run. A row's first block has its keys and values, the others have its queries.
__global__ void __launch_bounds__(kAppendThreads) rotate_append_kernel(RotateAppendArgs args) {
  in_turn();
  const int64_t row = blockIdx.x;
  if (blockIdx.y > 0) {
    const int64_t pair = int64_t{blockIdx.y - 1} * kAppendThreads + threadIdx.x;
    if (pair < pairs_of_row(args.queries)) rotate_pair(args.queries, row, pair);
    return;
  }
  for (int64_t pair = threadIdx.x; pair < pairs_of_row(args.keys); pair += kAppendThreads)
    rotate_pair(args.keys, row, pair);
  __syncthreads();
  append_by_block(args.append, args.append.runs[row]);
}

cudaError_t append_few(cudaStream_t stream, const AppendArgs& args) {
  if (args.head_dim % 8 || args.stride % 4 || args.run_count > kFewRuns) return cudaErrorInvalidValue;
  FewRuns few{args, {}};
  for (int64_t r = 0; r < args.run_count; r++) few.runs[r] = args.runs[r];
  return launch(append_few_kernel, static_cast<unsigned>(args.run_count), kAppendThreads, 0, stream, few);
}

cudaError_t append_short(cudaStream_t stream, const AppendArgs& args) {
  if (args.head_dim % 8 || args.stride % 4) return cudaErrorInvalidValue;
  return launch(append_short_kernel, static_cast<unsigned>(args.run_count), kAppendThreads, 0, stream, args);
}

cudaError_t rotate_append(cudaStream_t stream, const RotateAppendArgs& args) {
  if (args.append.head_dim % 8 || args.append.stride % 4) return cudaErrorInvalidValue;
  const int64_t blocks = 1 + (pairs_of_row(args.queries) + kAppendThreads - 1) / kAppendThreads;
  return launch(rotate_append_kernel,
                dim3(static_cast<unsigned>(args.append.run_count), static_cast<unsigned>(blocks)),
                kAppendThreads, 0, stream, args);
}

cudaError_t append(cudaStream_t stream, const AppendArgs& args) {
  if (args.head_dim % 8 || args.stride % 4) return cudaErrorInvalidValue;
  if (args.run_count == 0) return cudaSuccess;
  const cudaError_t error = clear(args.largest, static_cast<size_t>(args.run_count) * 4, stream);
  if (error != cudaSuccess) return error;
  // How long runs are is data of the device's: blocks share them, few runs among many.
  const unsigned runs = static_cast<unsigned>(args.run_count < 65535 ? args.run_count : 65535);
  const unsigned blocks = runs >= 64 ? 1 : runs >= 8 ? 8 : 64;
  return launch(append_kernel, dim3(blocks, runs), kAppendThreads, 0, stream, args);
}

}  // namespace wi::cuda
