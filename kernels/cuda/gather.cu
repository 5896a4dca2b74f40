// Pieces of device memory brought together, a block a piece: what is sealed lies in hundreds of blocks of tokens, each
// of which would be a copy of its own over the bus.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kGatherThreads = 128;

__global__ void __launch_bounds__(kGatherThreads) gather_kernel(const GatheredPiece* pieces, std::byte* to) {
  in_turn();
  const GatheredPiece piece = pieces[blockIdx.x];
  const uint4* const from = static_cast<const uint4*>(piece.from);
  uint4* const out = reinterpret_cast<uint4*>(to + piece.at);
  for (uint64_t i = threadIdx.x; i < piece.bytes / sizeof(uint4); i += kGatherThreads) out[i] = from[i];
}

cudaError_t gather(cudaStream_t stream, const GatheredPiece* pieces, uint32_t count, std::byte* to) {
  return launch(gather_kernel, count, kGatherThreads, 0, stream, pieces, to);
}

}  // namespace wi::cuda
