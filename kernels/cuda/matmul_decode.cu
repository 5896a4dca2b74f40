// Products of up to eight rows with weights as they are stored: bound by reading the weights, each once for
// all rows. A warp computes kOutputs outputs: its lanes stride over the inputs eight at a time (a warp's
// step is 256 weights of a row, one block of the K-quants), keep the rows' inputs for all outputs, and are
// added up at the end. The order of each sum depends on the inputs' count alone.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quants.cuh"

namespace wi::cuda {

constexpr int kProductThreads = 128;
constexpr int kProductWarps = kProductThreads / kWarp;
constexpr int kMostRows = 8;

// More outputs to a warp read inputs less often, fewer keep more warps busy: rows decide.
constexpr int outputs_of(int rows) { return rows > 4 ? 4 : 2; }

struct ProductArgs {
  const float* in;  // (rows, inputs)
  int64_t rows;     // ≤ the kernel's
  MatmulPart parts[3];
};

template <DType kType, int kRows>
__global__ void __launch_bounds__(kProductThreads, 2) matmul_decode_kernel(ProductArgs args) {
  in_turn();
  constexpr int kOutputs = outputs_of(kRows);
  const MatmulPart& part = args.parts[blockIdx.y];
  const int64_t outputs = part.weight.rows;
  const int inputs = static_cast<int>(part.weight.cols);
  const int64_t first = (int64_t{blockIdx.x} * kProductWarps + warp_of()) * kOutputs;
  if (first >= outputs) return;
  const int64_t stride = static_cast<int64_t>(row_bytes(kType, inputs));
  const std::byte* weights = static_cast<const std::byte*>(part.weight.data) + first * stride;

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
      load_weights<kType>(weights + own * stride, column, w);
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

template <DType kType, int kRows>
cudaError_t multiply(cudaStream_t stream, const ProductArgs& args, int parts) {
  constexpr int64_t kPerBlock = kProductWarps * outputs_of(kRows);
  int64_t most = 0;
  for (int p = 0; p < parts; p++) most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const unsigned blocks = static_cast<unsigned>((most + kPerBlock - 1) / kPerBlock);
  return launch(matmul_decode_kernel<kType, kRows>, dim3(blocks, static_cast<unsigned>(parts)),
                kProductThreads, 0, stream, args);
}

template <DType kType>
cudaError_t multiply_rows(cudaStream_t stream, const ProductArgs& args, int parts) {
  if (args.rows == 1) return multiply<kType, 1>(stream, args, parts);
  if (args.rows == 2) return multiply<kType, 2>(stream, args, parts);
  if (args.rows <= 4) return multiply<kType, 4>(stream, args, parts);
  return multiply<kType, 8>(stream, args, parts);
}

cudaError_t matmul_decode(cudaStream_t stream, const MatmulArgs& args) {
  for (int p = 0; p < args.part_count; p++)
    if (args.parts[p].weight.cols % 8 || !reads_weights(args.parts[p].weight.type))
      return cudaErrorInvalidValue;
  for (int64_t row = 0; row < args.rows; row += kMostRows) {
    const int64_t rows = args.rows - row < kMostRows ? args.rows - row : kMostRows;
    for (int p = 0; p < args.part_count;) {
      // Neighbours of one type go together.
      const DType type = args.parts[p].weight.type;
      ProductArgs some = {args.in + row * args.parts[p].weight.cols, rows, {}};
      int parts = 0;
      for (; p < args.part_count && args.parts[p].weight.type == type; p++, parts++) {
        some.parts[parts] = args.parts[p];
        some.parts[parts].out += row * args.parts[p].weight.rows;
      }
      const cudaError_t error =
          with_weights(type, [&]<DType kType>() { return multiply_rows<kType>(stream, some, parts); });
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
