// The first step of the forward pass: each token's row of the embedding table, as f32. A thread unpacks eight
// numbers; a row is a few kilobytes, so this is bound by its launch.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quants.cuh"

namespace wi::cuda {

template <DType kType>
__global__ void __launch_bounds__(256) embed_kernel(EmbedArgs args) {
  in_turn();
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (column >= args.table.cols) return;
  const int64_t stride = static_cast<int64_t>(row_bytes(kType, args.table.cols));
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float numbers[8];
    load_weights<kType>(static_cast<const std::byte*>(args.table.data) + args.tokens[row] * stride, column,
                        numbers);
    float4* out = reinterpret_cast<float4*>(args.out + row * args.table.cols + column);
    out[0] = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
    out[1] = make_float4(numbers[4], numbers[5], numbers[6], numbers[7]);
  }
}

cudaError_t embed(cudaStream_t stream, const EmbedArgs& args) {
  if (args.table.cols % 8) return cudaErrorInvalidValue;
  return with_weights(args.table.type, [&]<DType kType>() {
    const unsigned blocks = static_cast<unsigned>((args.table.cols / 8 + 255) / 256);
    const unsigned rows = static_cast<unsigned>(args.rows < 65535 ? args.rows : 65535);
    return launch(embed_kernel<kType>, dim3(blocks, rows), 256, 0, stream, args);
  });
}

}  // namespace wi::cuda
