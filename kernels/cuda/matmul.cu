// Products of many rows, y = x · Wᵀ: the projections of prefill. A block computes a tile of 128 rows by 128
// outputs. Rows and weights come to shared memory a step of inputs at a time, weights as they are stored and
// unpacked on the way, and while one step is multiplied, the next is on its way through registers.
//
// Weights narrower than f32 are multiplied in bf16 by tensor cores, as the CPU's dense products are, both
// operands rounded to nearest; by f32 weights, and where another precision asks for it, products are in f32 by
// CUDA cores. Each output is summed in the order of its inputs, so that a row's bits depend on no other row.
//
// Limits: mma.sync reaches some two thirds of what Hopper's wgmma does, and a tile of 128 x 128 reads 24 bytes
// of f32 rows and 16-bit weights for every 512 products, which L2 serves slower than that. For weights in f16
// and bf16 cuBLAS on rows rounded beforehand is faster there; for quantised ones it would have to have them
// unpacked to memory first.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quants.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

constexpr int kTileRows = 128, kTileOutputs = 128;
constexpr int kDenseThreads = 256;

struct DenseArgs {
  const float* in;  // (rows, inputs)
  int64_t rows, inputs;
  MatmulPart parts[3];
  uint32_t tiles_before[3];  // of outputs, of the parts before
};

__device__ __forceinline__ int part_of(const DenseArgs& args, uint32_t tile) {
  return (tile >= args.tiles_before[1]) + (tile >= args.tiles_before[2]);
}

// What a block computes.
struct DenseTile {
  __device__ explicit DenseTile(const DenseArgs& args) : DenseTile(args, part_of(args, blockIdx.y)) {}
  __device__ DenseTile(const DenseArgs& args, int number)
      : part(args.parts[number]),
        first_row(int64_t{blockIdx.x} * kTileRows),
        first_output(int64_t{blockIdx.y - args.tiles_before[number]} * kTileOutputs),
        rows(static_cast<int>(min(args.rows - first_row, int64_t{kTileRows}))),
        outputs(static_cast<int>(min(part.weight.rows - first_output, int64_t{kTileOutputs}))) {}

  __device__ void store(int row, int output, float sum) const {
    if (row >= rows || output >= outputs) return;
    const int64_t at = first_output + output;
    float* out = part.out + (first_row + row) * part.weight.rows + at;
    const float with_bias = part.bias ? sum + part.bias[at] : sum;
    *out = part.accumulate ? *out + with_bias : with_bias;
  }

  const MatmulPart& part;
  int64_t first_row, first_output;
  int rows, outputs;  // there are
};

// Eight inputs of a row and of an output's weights on their way to shared memory; zeros beyond the last input.
// Rows and outputs beyond the last are that one again: nobody stores what they give.
template <DType kType>
struct Eights {
  __device__ void load(const DenseArgs& args, const DenseTile& tile, int row, int64_t column) {
    const bool there = column < args.inputs;
    const int64_t from = there ? column : 0;
    load_floats<8>(args.in + (tile.first_row + min(row, tile.rows - 1)) * args.inputs + from, in);
    load_weights<kType>(static_cast<const std::byte*>(tile.part.weight.data) +
                            (tile.first_output + min(row, tile.outputs - 1)) *
                                static_cast<int64_t>(row_bytes(kType, args.inputs)),
                        from, weights);
    if (there) return;
#pragma unroll
    for (int i = 0; i < 8; i++) in[i] = weights[i] = 0;
  }

  float in[8], weights[8];
};

// ---- bf16

constexpr int kStep = 32;  // inputs
constexpr int kStepStride = padded_row(kStep * 2);
constexpr int kStepBytes = (kTileRows + kTileOutputs) * kStepStride;
constexpr int kBf16Blocks = 2;  // to a multiprocessor: 128 registers a thread, and so much shared memory
static_assert(kBf16Blocks * (2 * kStepBytes + 1024) <= 164 << 10);

// Eight warps, two by four, each with 64 rows by 32 outputs: 4 x 4 products of tensor cores every 16 inputs.
// A thread brings two eights of rows and two of weights a step, the second pair while the second half of the
// step before is multiplied.
template <DType kType>
__global__ void __launch_bounds__(kDenseThreads, kBf16Blocks) matmul_bf16_kernel(DenseArgs args) {
  const DenseTile tile(args);
  std::byte* const memory = block_memory();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = warp_of() / 4 * 64, warp_output = warp_of() % 4 * 32;
  const bool works = warp_row < tile.rows && warp_output < tile.outputs;

  float sums[4][4][4] = {};
  Eights<kType> eights;
  const auto load = [&](int half, int64_t step) {
    eights.load(args, tile, half * 64 + thread / 4, step * kStep + thread % 4 * 8);
  };
  const auto store = [&](int half, int64_t step) {
    std::byte* to = memory + step % 2 * kStepBytes + (half * 64 + thread / 4) * kStepStride + thread % 4 * 16;
    *reinterpret_cast<uint4*>(to) = pack_eight<DType::bf16>(eights.in);
    *reinterpret_cast<uint4*>(to + kTileRows * kStepStride) = pack_eight<DType::bf16>(eights.weights);
  };
  const auto multiply = [&](int half, int64_t step) {
    if (!works) return;
    const std::byte* rows = memory + step % 2 * kStepBytes + half * 32;
    const std::byte* weights = rows + kTileRows * kStepStride;
    unsigned left[4][4], right[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
      load_matrices(right_row(weights + (warp_output + n * 16) * kStepStride, kStepStride), right[n]);
#pragma unroll
    for (int m = 0; m < 4; m++)
      load_matrices(left_row(rows + (warp_row + m * 16) * kStepStride, kStepStride), left[m]);
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
      for (int n = 0; n < 4; n++)
        multiply_add<DType::bf16>(sums[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
  };

  const int64_t steps = (args.inputs + kStep - 1) / kStep;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    load(half, 0);
    store(half, 0);
  }
  __syncthreads();
  for (int64_t step = 0; step < steps; step++) {
    const bool more = step + 1 < steps;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (more) load(half, step + 1);
      multiply(half, step);
      if (more) store(half, step + 1);
    }
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        tile.store(warp_row + m * 16 + lane_of() / 4 + i / 2 * 8,
                   warp_output + n * 8 + lane_of() % 4 * 2 + i % 2, sums[m][n][i]);
}

// ---- f32

constexpr int kWideStep = 16;
constexpr int kWideStride = kTileRows + 4;  // floats
constexpr int kWideStepFloats = 2 * kWideStep * kWideStride;
static_assert(kTileRows == kTileOutputs);

// A thread has 8 rows by 8 outputs, in fours that are 64 apart, so that a warp reads neighbouring vectors.
// Shared memory holds a step input by input: of each the tile's rows, and after all of those the outputs.
template <DType kType>
__global__ void __launch_bounds__(kDenseThreads, 1) matmul_f32_kernel(DenseArgs args) {
  const DenseTile tile(args);
  float* const memory = reinterpret_cast<float*>(block_memory());
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4, output = thread % 16 * 4;
  const bool works = row < tile.rows && output < tile.outputs;

  float sums[8][8] = {};
  Eights<kType> eights;
  const auto load = [&](int64_t step) {
    eights.load(args, tile, thread / 2, step * kWideStep + thread % 2 * 8);
  };
  const auto store = [&](int64_t step) {
    float* to = memory + step % 2 * kWideStepFloats + thread % 2 * 8 * kWideStride + thread / 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      to[i * kWideStride] = eights.in[i];
      to[(kWideStep + i) * kWideStride] = eights.weights[i];
    }
  };
  const auto multiply = [&](int64_t step) {
    const float* rows = memory + step % 2 * kWideStepFloats + row;
    const float* weights = memory + step % 2 * kWideStepFloats + kWideStep * kWideStride + output;
#pragma unroll 4
    for (int input = 0; input < kWideStep; input++) {
      float left[2][4], right[2][4];
#pragma unroll
      for (int far = 0; far < 2; far++) {
        load_floats<4>(rows + input * kWideStride + far * 64, left[far]);
        load_floats<4>(weights + input * kWideStride + far * 64, right[far]);
      }
#pragma unroll
      for (int r = 0; r < 8; r++)
#pragma unroll
        for (int o = 0; o < 8; o++) sums[r][o] = fmaf(left[r / 4][r % 4], right[o / 4][o % 4], sums[r][o]);
    }
  };

  const int64_t steps = (args.inputs + kWideStep - 1) / kWideStep;
  load(0);
  store(0);
  __syncthreads();
  for (int64_t step = 0; step < steps; step++) {
    const bool more = step + 1 < steps;
    if (more) load(step + 1);
    if (works) multiply(step);
    if (more) store(step + 1);
    __syncthreads();
  }

#pragma unroll
  for (int r = 0; r < 8; r++)
#pragma unroll
    for (int o = 0; o < 8; o++) tile.store(row + r / 4 * 64 + r % 4, output + o / 4 * 64 + o % 4, sums[r][o]);
}

template <DType kType>
cudaError_t multiply_tiles(cudaStream_t stream, const DenseArgs& args, uint32_t tiles, Precision precision) {
  const dim3 grid(static_cast<unsigned>((args.rows + kTileRows - 1) / kTileRows), tiles);
  if (kType != DType::f32 && (precision == Precision::fast || precision == Precision::int8))
    return launch(matmul_bf16_kernel<kType>, grid, kDenseThreads, size_t{2} * kStepBytes, stream, args);
  return launch(matmul_f32_kernel<kType>, grid, kDenseThreads, 2 * kWideStepFloats * sizeof(float), stream,
                args);
}

cudaError_t matmul(cudaStream_t stream, const MatmulArgs& args) {
  for (int p = 0; p < args.part_count; p++)
    if (args.parts[p].weight.cols % 8 || !reads_weights(args.parts[p].weight.type))
      return cudaErrorInvalidValue;
  for (int p = 0; p < args.part_count;) {
    // Neighbours of one type go together.
    const DType type = args.parts[p].weight.type;
    DenseArgs some = {args.in, args.rows, args.parts[p].weight.cols, {}, {~0u, ~0u, ~0u}};
    uint32_t tiles = 0;
    for (int own = 0; p < args.part_count && args.parts[p].weight.type == type; p++, own++) {
      some.parts[own] = args.parts[p];
      some.tiles_before[own] = tiles;
      tiles += static_cast<uint32_t>((args.parts[p].weight.rows + kTileOutputs - 1) / kTileOutputs);
    }
    const cudaError_t error = with_weights(
        type, [&]<DType kType>() { return multiply_tiles<kType>(stream, some, tiles, args.precision); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
