// Products of many rows with weights of 16 bits, y = x · Wᵀ, by tensor cores: the projections of prefill. A block of
// eight warps computes a tile of 128 rows by 256 outputs, a warp 64 by 64 of it. Rows come rounded to the weights'
// type (pack_rows_kernel), and both come to shared memory 64 inputs at a time, some such steps ahead of those that are
// multiplied. Each output is summed in f32 in the order of its inputs, so that a row's bits depend on no other row.
//
// Rows that meet weights in f16 are scaled by a power of two each, so that none is beyond f16; outputs are scaled back.
// Quantised weights are unpacked to bf16 beforehand (unpack_weights_kernel), which takes less time than one tile after
// the other would to do it.
//
// Limits: mma.sync reaches some two thirds of what Hopper's wgmma does; a tile reads 48 KB a step for 2^21 products,
// which shared memory gives tensor cores in three quarters of the time that they take.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quants.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

constexpr int kTensorThreads = 256;
constexpr int kRowsOfTile = 128, kOutputsOfTile = 256;
constexpr int kStepInputs = 64, kStepVectors = kStepInputs / 8;  // vectors of 16 bytes
constexpr int kStepRow = kStepInputs * 2;                        // bytes
constexpr int kStageBytes = (kRowsOfTile + kOutputsOfTile) * kStepRow;
constexpr int kFewestStages = 2, kMostStages = 4;
static_assert(kFewestStages * kStageBytes <= kLeastShared);
constexpr int kRowsAtOnce =
    kTensorThreads / kStepVectors;  // a multiple of 8: vectors lie alike in all of them
static_assert(kRowsAtOnce % kStepVectors == 0);

// A product's outputs, or some of them, with weights of the kernel's type.
struct TensorPart {
  const std::byte* weights;  // (outputs, inputs)
  int64_t outputs;
  const float* bias;  // (outputs) or null
  float* out;         // (rows, outputs), row i at out + i * stride
  int64_t stride;
  bool accumulate;
};
struct TensorArgs {
  const std::byte* rows;  // (rows, inputs) in the weights' type
  const float* unscaled;  // (rows) by which outputs are multiplied; null: by 1
  int64_t row_count, inputs;
  TensorPart parts[3];
  uint32_t tiles_before[3];  // of outputs, of the parts before
};

// Vector `vector` of a row of a tile: neighbouring rows have theirs in other banks.
__device__ __forceinline__ int at_in_tile(int row, int vector) {
  return row * kStepRow + ((vector ^ row) & (kStepVectors - 1)) * 16;
}

template <DType kType, int kStages>
__global__ void __launch_bounds__(kTensorThreads, 1) matmul_tensor_kernel(TensorArgs args) {
  in_turn();
  std::byte* const memory = block_memory();
  const int thread = static_cast<int>(threadIdx.x);
  const int number = (blockIdx.y >= args.tiles_before[1]) + (blockIdx.y >= args.tiles_before[2]);
  const TensorPart& part = args.parts[number];
  const int64_t first_row = int64_t{blockIdx.x} * kRowsOfTile;
  const int64_t first_output = int64_t{blockIdx.y - args.tiles_before[number]} * kOutputsOfTile;
  const int rows = static_cast<int>(min(args.row_count - first_row, int64_t{kRowsOfTile}));
  const int outputs = static_cast<int>(min(part.outputs - first_output, int64_t{kOutputsOfTile}));
  const int warp_row = warp_of() / 4 * 64, warp_output = warp_of() % 4 * 64;
  const bool works = warp_row < rows && warp_output < outputs;
  const int64_t row_bytes = args.inputs * 2;
  const std::byte* const left = args.rows + first_row * row_bytes;
  const std::byte* const right = part.weights + first_output * row_bytes;
  const int steps = static_cast<int>((args.inputs + kStepInputs - 1) / kStepInputs);

  // A step's rows and weights to its stage; zeros beyond the last input. Rows and outputs beyond the last are that one
  // again: nobody stores what they give. A thread has the same vector of every 32nd row.
  const int own_row = thread / kStepVectors, vector = thread % kStepVectors;
  const auto stride = static_cast<unsigned>(row_bytes);  // a tile is less than 4 GB
  const auto ask = [&](int step) {
    if (step < steps) {
      std::byte* const stage = memory + step % kStages * kStageBytes + at_in_tile(own_row, vector);
      const unsigned column = static_cast<unsigned>(step) * kStepRow + static_cast<unsigned>(vector) * 16;
      const bool there = column < stride;
      const auto bring = [&]<int kAll>(const std::byte* from, std::byte* to, int count) {
#pragma unroll
        for (int row = 0; row < kAll; row += kRowsAtOnce) {
          const unsigned at = static_cast<unsigned>(min(own_row + row, count - 1)) * stride + column;
          if (there)
            copy_16_ahead(to + row * kStepRow, from + at);
          else
            *reinterpret_cast<uint4*>(to + row * kStepRow) = make_uint4(0, 0, 0, 0);
        }
      };
      bring.template operator()<kRowsOfTile>(left, stage, rows);
      bring.template operator()<kOutputsOfTile>(right, stage + kRowsOfTile * kStepRow, outputs);
    }
    commit_copies();
  };

  float sums[4][8][4] = {};
#pragma unroll
  for (int step = 0; step < kStages - 1; step++) ask(step);
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the step is there, and nobody reads the one before it any more
    ask(step + kStages - 1);
    if (!works) continue;
    const std::byte* const of_rows = memory + step % kStages * kStageBytes;
    const std::byte* const of_weights = of_rows + kRowsOfTile * kStepRow;
#pragma unroll
    for (int some = 0; some < kStepInputs / 16; some++) {
      unsigned a[4][4], b[4][4];
#pragma unroll
      for (int m = 0; m < 4; m++)
        load_matrices(of_rows + at_in_tile(warp_row + m * 16 + lane_of() % 16, some * 2 + lane_of() / 16),
                      a[m]);
#pragma unroll
      for (int n = 0; n < 4; n++)
        load_matrices(of_weights + at_in_tile(warp_output + n * 16 + lane_of() % 8 + lane_of() / 16 * 8,
                                              some * 2 + lane_of() / 8 % 2),
                      b[n]);
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
          multiply_add<kType>(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
  wait_for_copies<0>();
  if (!works) return;

#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row + m * 16 + half * 8 + lane_of() / 4;
      if (row >= rows) continue;
      const float unscaled = args.unscaled ? args.unscaled[first_row + row] : 1.0f;
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int output = warp_output + n * 8 + lane_of() % 4 * 2 + i;
          if (output >= outputs) continue;
          const int64_t at = first_output + output;
          float* const out = part.out + (first_row + row) * part.stride + at;
          const float sum = sums[m][n][half * 2 + i] * unscaled,
                      with_bias = part.bias ? sum + part.bias[at] : sum;
          *out = part.accumulate ? *out + with_bias : with_bias;
        }
    }
}

constexpr int kPackThreads = 256;

// Rows rounded to f16 after scaling, so that their largest number is at most 2^15, or to bf16 as they are; a block
// takes one. Of infinities and what is no number, no scale is made: they stay what they are.
template <DType kType>
__global__ void __launch_bounds__(kPackThreads)
    pack_rows_kernel(const float* in, int64_t inputs, std::byte* out, float* unscaled) {
  in_turn();
  __shared__ float scratch[kPackThreads / kWarp];
  const float* const row = in + blockIdx.x * inputs;
  uint4* const packed = reinterpret_cast<uint4*>(out + blockIdx.x * inputs * 2);
  float scale = 1;
  if constexpr (kType == DType::f16) {
    float largest = 0;
    for (int64_t i = threadIdx.x; i < inputs / 4; i += kPackThreads) {
      const float4 x = reinterpret_cast<const float4*>(row)[i];
      largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
    }
    largest = block_max(largest, scratch);
    int exponent = 0;  // of the scale
    if (largest > 0 && largest < INFINITY)
      exponent = max(min(15 - (static_cast<int>(__float_as_uint(largest) >> 23) - 126), 120), -120);
    scale = __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
    if (threadIdx.x == 0) unscaled[blockIdx.x] = __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);
  }
  for (int64_t i = threadIdx.x; i < inputs / 8; i += kPackThreads) {
    float numbers[8];
    load_floats<8>(row + i * 8, numbers);
#pragma unroll
    for (int j = 0; j < 8; j++) numbers[j] *= scale;
    packed[i] = pack_eight<kType>(numbers);
  }
}

// (outputs, inputs) weights as stored to bf16; a thread takes eight.
template <DType kType>
__global__ void __launch_bounds__(kPackThreads)
    unpack_weights_kernel(const std::byte* weights, int64_t inputs, int64_t eights, uint4* out) {
  in_turn();
  const int64_t of_row = inputs / 8, stride = static_cast<int64_t>(row_bytes(kType, inputs));
  for (int64_t i = int64_t{blockIdx.x} * kPackThreads + threadIdx.x; i < eights;
       i += int64_t{gridDim.x} * kPackThreads) {
    float numbers[8];
    load_weights<kType>(weights + i / of_row * stride, i % of_row * 8, numbers);
    out[i] = pack_eight<DType::bf16>(numbers);
  }
}

constexpr size_t kUnpackedBytes = size_t{64} << 20;  // at a time, or a row
constexpr size_t whole_256(size_t bytes) { return (bytes + 255) / 256 * 256; }
static int64_t unpacked_outputs(const Matrix& weight) {
  const int64_t most = static_cast<int64_t>(kUnpackedBytes) / (weight.cols * 2);
  return std::min(std::max(most, int64_t{1}), weight.rows);
}

size_t matmul_workspace_bytes(const MatmulArgs& args) {
  size_t inputs = 0, unpacked = 0;
  for (int p = 0; p < args.part_count; p++) {
    const Matrix& weight = args.parts[p].weight;
    inputs = static_cast<size_t>(weight.cols);
    if (weight.type != DType::f16 && weight.type != DType::bf16)
      unpacked = std::max(unpacked, static_cast<size_t>(unpacked_outputs(weight)) * inputs * 2);
  }
  const size_t rows = static_cast<size_t>(args.rows);
  return whole_256(rows * inputs * 2) + whole_256(rows * sizeof(float)) + whole_256(unpacked);
}

template <DType kType, int kStages>
cudaError_t launch_tiles(cudaStream_t stream, const TensorArgs& args, uint32_t tiles) {
  const dim3 grid(static_cast<unsigned>((args.row_count + kRowsOfTile - 1) / kRowsOfTile), tiles);
  return launch(matmul_tensor_kernel<kType, kStages>, grid, kTensorThreads,
                static_cast<size_t>(kStages) * kStageBytes, stream, args);
}

// The first `count` parts.
template <DType kType>
cudaError_t multiply_tiles(cudaStream_t stream, TensorArgs args, int count, size_t shared_bytes) {
  uint32_t tiles = 0;
  for (int p = 0; p < 3; p++) {
    args.tiles_before[p] = p < count ? tiles : ~0u;
    if (p < count)
      tiles += static_cast<uint32_t>((args.parts[p].outputs + kOutputsOfTile - 1) / kOutputsOfTile);
  }
  if (shared_bytes >= static_cast<size_t>(kMostStages) * kStageBytes)
    return launch_tiles<kType, kMostStages>(stream, args, tiles);
  if (shared_bytes >= static_cast<size_t>(kMostStages - 1) * kStageBytes)
    return launch_tiles<kType, kMostStages - 1>(stream, args, tiles);
  return launch_tiles<kType, kFewestStages>(stream, args, tiles);
}

// Weights of other types, as many outputs at a time as there is room for.
template <DType kType>
cudaError_t multiply_unpacked(cudaStream_t stream, const MatmulPart& part, TensorArgs args,
                              std::byte* unpacked, size_t shared_bytes) {
  const int64_t at_once = unpacked_outputs(part.weight), outputs = part.weight.rows;
  const std::byte* const weights = static_cast<const std::byte*>(part.weight.data);
  const auto stride = static_cast<int64_t>(row_bytes(kType, args.inputs));
  for (int64_t first = 0; first < outputs; first += at_once) {
    const int64_t count = std::min(outputs - first, at_once), eights = count * args.inputs / 8;
    const auto blocks =
        static_cast<unsigned>(std::min((eights + kPackThreads - 1) / kPackThreads, int64_t{4096}));
    cudaError_t error =
        launch(unpack_weights_kernel<kType>, blocks, kPackThreads, 0, stream, weights + first * stride,
               args.inputs, eights, reinterpret_cast<uint4*>(unpacked));
    args.parts[0] = {unpacked,         count,   part.bias ? part.bias + first : nullptr,
                     part.out + first, outputs, part.accumulate};
    if (error == cudaSuccess) error = multiply_tiles<DType::bf16>(stream, args, 1, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <DType kType>
cudaError_t multiply_parts(cudaStream_t stream, const MatmulArgs& all, const DenseWorkspace& workspace) {
  constexpr DType kTo = kType == DType::f16 ? DType::f16 : DType::bf16;
  const int64_t inputs = all.parts[0].weight.cols;
  std::byte* const packed = workspace.memory;
  std::byte* const scales = packed + whole_256(static_cast<size_t>(all.rows * inputs) * 2);
  std::byte* const unpacked = scales + whole_256(static_cast<size_t>(all.rows) * sizeof(float));
  auto* const unscaled = reinterpret_cast<float*>(scales);
  TensorArgs args{packed, kTo == DType::f16 ? unscaled : nullptr, all.rows, inputs, {}, {}};
  cudaError_t error = launch(pack_rows_kernel<kTo>, static_cast<unsigned>(all.rows), kPackThreads, 0, stream,
                             all.in, inputs, packed, unscaled);
  if constexpr (kType == kTo) {
    for (int p = 0; p < all.part_count; p++) {
      const MatmulPart& part = all.parts[p];
      args.parts[p] = {static_cast<const std::byte*>(part.weight.data),
                       part.weight.rows,
                       part.bias,
                       part.out,
                       part.weight.rows,
                       part.accumulate};
    }
    if (error == cudaSuccess)
      error = multiply_tiles<kTo>(stream, args, all.part_count, workspace.shared_bytes);
  } else {
    for (int p = 0; p < all.part_count && error == cudaSuccess; p++)
      error = multiply_unpacked<kType>(stream, all.parts[p], args, unpacked, workspace.shared_bytes);
  }
  return error;
}

cudaError_t matmul_tensor(cudaStream_t stream, const MatmulArgs& args, const DenseWorkspace& workspace) {
  if (args.rows == 0) return cudaSuccess;
  return with_weights(args.parts[0].weight.type, [&]<DType kType>() {
    if constexpr (kType == DType::f32)
      return cudaErrorInvalidValue;
    else
      return multiply_parts<kType>(stream, args, workspace);
  });
}

}  // namespace wi::cuda
