// Kernels with a mistake each, and the same without it, for the emulation's own tests.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

namespace wi::cuda_test {

struct Mistake {
  const char* name;
  const char* report;  // words of it
  cudaError_t (*run)(cudaStream_t stream, bool wrong, int* device, int* host);
};
extern const Mistake kMistakes[];
extern const int kMistakeCount;

// out (blocks): sums of the block's threads' numbers, by shuffles and shared memory.
cudaError_t block_sums(cudaStream_t stream, const int* in, int* out, int blocks, int threads);
// out (8, threads): what each lane gets of its warp's votes, reductions and shuffles.
cudaError_t warp_operations(cudaStream_t stream, const int* in, int* out, int threads);
// *count += threads of all blocks, in shared memory first; *largest: the largest number.
cudaError_t count_and_largest(cudaStream_t stream, const int* in, int* count, int* largest, int blocks);
// *out = *out * 3 + number
cudaError_t times_three_plus(cudaStream_t stream, int* out, int number);
// *out = 1 by a kernel that is launched with so many bytes of shared memory, as all are, or as one that another thread
// has asked for already.
cudaError_t write_one(cudaStream_t stream, int* out, size_t shared_bytes, bool asks);
// out[i] = in[i + 1] where all in[i] = i were written just before, without a barrier between.
cudaError_t neighbours_without_barrier(cudaStream_t stream, int* in, int* out, int threads);
// Of f16 and bf16: bits of each number, and what the bits of i are, for i < 65,536.
cudaError_t convert_floats(cudaStream_t stream, const float* in, uint16_t* half, uint16_t* brain, int count);
cudaError_t convert_bits(cudaStream_t stream, float* half, float* brain);

}  // namespace wi::cuda_test
