// Products of many rows, y = x · Wᵀ: the projections of prefill. Weights narrower than f32 are multiplied by tensor
// cores (matmul_tensor.cu), as the CPU's dense products are; by f32 weights, and where another precision asks for it,
// products are in f32 by CUDA cores, here. A block computes a tile of 128 rows by 128 outputs. Rows and weights come to
// shared memory a step of inputs at a time, weights as they are stored and unpacked on the way, and while one step is
// multiplied, the next is on its way through registers. Each output is summed in the order of its inputs, so that a
// row's bits depend on no other row.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quants.cuh"

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

constexpr int kWideStep = 16;
constexpr int kWideStride = kTileRows + 4;  // floats
constexpr int kWideStepFloats = 2 * kWideStep * kWideStride;
static_assert(kTileRows == kTileOutputs);

// A thread has 8 rows by 8 outputs, in fours that are 64 apart, so that a warp reads neighbouring vectors.
// Shared memory holds a step input by input: of each the tile's rows, and after all of those the outputs.
template <DType kType>
__global__ void __launch_bounds__(kDenseThreads, 1) matmul_f32_kernel(DenseArgs args) {
  in_turn();
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

static bool by_tensor_cores(DType type, Precision precision) {
  return type != DType::f32 && (precision == Precision::fast || precision == Precision::int8);
}

cudaError_t matmul(cudaStream_t stream, const MatmulArgs& args, const DenseWorkspace& workspace) {
  for (int p = 0; p < args.part_count; p++)
    if (args.parts[p].weight.cols % 8 || !reads_weights(args.parts[p].weight.type))
      return cudaErrorInvalidValue;
  for (int p = 0; p < args.part_count;) {
    // Neighbours of one type go together.
    const DType type = args.parts[p].weight.type;
    MatmulArgs same = args;
    for (same.part_count = 0; p < args.part_count && args.parts[p].weight.type == type; p++)
      same.parts[same.part_count++] = args.parts[p];
    cudaError_t error = cudaSuccess;
    if (by_tensor_cores(type, args.precision)) {
      error = matmul_tensor(stream, same, workspace);
    } else {
      DenseArgs some = {args.in, args.rows, same.parts[0].weight.cols, {}, {~0u, ~0u, ~0u}};
      uint32_t tiles = 0;
      for (int own = 0; own < same.part_count; own++) {
        some.parts[own] = same.parts[own];
        some.tiles_before[own] = tiles;
        tiles += static_cast<uint32_t>((same.parts[own].weight.rows + kTileOutputs - 1) / kTileOutputs);
      }
      const dim3 grid(static_cast<unsigned>((args.rows + kTileRows - 1) / kTileRows), tiles);
      error = with_weights(type, [&]<DType kType>() {
        return launch(matmul_f32_kernel<kType>, grid, kDenseThreads, 2 * kWideStepFloats * sizeof(float),
                      stream, some);
      });
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
