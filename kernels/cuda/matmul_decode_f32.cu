// Products of few rows with weights in f32, by CUDA cores: tensor cores have no use for them. Bound by reading the
// weights, each once for up to eight rows. A warp computes kOutputs outputs: its lanes stride over the inputs
// eight at a time, keep the rows' inputs for all outputs, and are added up at the end. The order of each sum
// depends on the inputs' count alone.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kWideThreads = 128;
constexpr int kWideWarps = kWideThreads / kWarp;
constexpr int kWideRows = 8;

// More outputs to a warp read inputs less often, fewer keep more warps busy: rows decide.
constexpr int outputs_of(int rows) { return rows > 4 ? 4 : 2; }

struct WideProductArgs {
  const float* in;  // (rows, inputs)
  int64_t rows;     // ≤ the kernel's
  MatmulPart parts[3];
};

template <int kRows>
__global__ void __launch_bounds__(kWideThreads, 2) matmul_decode_f32_kernel(WideProductArgs args) {
  in_turn();
  constexpr int kOutputs = outputs_of(kRows);
  const MatmulPart& part = args.parts[blockIdx.y];
  const int64_t outputs = part.weight.rows;
  const int inputs = static_cast<int>(part.weight.cols);
  const int64_t first = (int64_t{blockIdx.x} * kWideWarps + warp_of()) * kOutputs;
  if (first >= outputs) return;
  const float* weights = static_cast<const float*>(part.weight.data) + first * inputs;

  float sums[kOutputs][kRows] = {};
  for (int column = lane_of() * 8; column < inputs; column += kWarp * 8) {
    float in[kRows][8];
#pragma unroll
    for (int row = 0; row < kRows; row++) {
      const int64_t own = row < args.rows ? row : args.rows - 1;  // what is beyond the last is that one again
      load_floats<8>(args.in + own * int64_t{inputs} + column, in[row]);
    }
#pragma unroll
    for (int o = 0; o < kOutputs; o++) {
      float w[8];
      const int64_t own = first + o < outputs ? o : outputs - 1 - first;
      load_floats<8>(weights + own * inputs + column, w);
#pragma unroll
      for (int row = 0; row < kRows; row++)
#pragma unroll
        for (int i = 0; i < 8; i++) sums[o][row] = fmaf(w[i], in[row][i], sums[o][row]);
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; o++)
#pragma unroll
    for (int row = 0; row < kRows; row++) {
      const float sum = warp_sum(sums[o][row]);
      if (lane_of() != 0 || first + o >= outputs || row >= args.rows) continue;
      float* out = part.out + row * outputs + first + o;
      const float with_bias = part.bias ? sum + part.bias[first + o] : sum;
      *out = part.accumulate ? *out + with_bias : with_bias;
    }
}

template <int kRows>
static cudaError_t multiply(cudaStream_t stream, const WideProductArgs& args, int parts) {
  constexpr int64_t kPerBlock = kWideWarps * outputs_of(kRows);
  int64_t most = 0;
  for (int p = 0; p < parts; p++) most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const unsigned blocks = static_cast<unsigned>((most + kPerBlock - 1) / kPerBlock);
  return launch(matmul_decode_f32_kernel<kRows>, dim3(blocks, static_cast<unsigned>(parts)), kWideThreads, 0,
                stream, args);
}

static cudaError_t multiply_wide(cudaStream_t stream, const WideProductArgs& args, int parts) {
  if (args.rows == 1) return multiply<1>(stream, args, parts);
  if (args.rows == 2) return multiply<2>(stream, args, parts);
  if (args.rows <= 4) return multiply<4>(stream, args, parts);
  return multiply<8>(stream, args, parts);
}

cudaError_t matmul_decode_f32(cudaStream_t stream, const MatmulArgs& args) {
  for (int64_t row = 0; row < args.rows; row += kWideRows) {
    const int64_t rows = args.rows - row < kWideRows ? args.rows - row : kWideRows;
    WideProductArgs some = {args.in + row * args.parts[0].weight.cols, rows, {}};
    for (int p = 0; p < args.part_count; p++) {
      some.parts[p] = args.parts[p];
      some.parts[p].out += row * args.parts[p].weight.rows;
    }
    const cudaError_t error = multiply_wide(stream, some, args.part_count);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
