// Kernels that do a thing twice: by an instruction of the hardware's own, as kernels/cuda has it, and plainly.
// On a device the two are held together; run on the CPU, the plain one is held to what stands in for the other.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/types.h"

namespace wi::cuda_test {

// Each of `count` warps by itself; matrices of 16-bit numbers of a KV type (f16 or bf16) as bits.
struct ProductTwins {
  DType type;
  int count;
  const uint16_t* left;   // (count, 16 rows, 16 inputs)
  const uint16_t* right;  // (count, 16 inputs, 16 columns)
  const float* before;    // (count, 16 rows, 16 columns): sums are added to these
  float* out;             // (count, 16 rows, 16 columns) by tensor cores, right's columns in memory's rows
  float* transposed;      // the same, right's inputs in memory's rows
  float* plain;           // the same without
};
cudaError_t products(cudaStream_t stream, const ProductTwins& twins);

// The same of signed bytes, exactly.
struct ByteProductTwins {
  int count;
  const int8_t* left;     // (count, 16 rows, 32 inputs)
  const int8_t* right;    // (count, 16 columns, 32 inputs)
  const int32_t* before;  // (count, 16 rows, 16 columns)
  int32_t *out, *plain;   // likewise
};
cudaError_t products(cudaStream_t stream, const ByteProductTwins& twins);

// The words that lanes get of four matrices of 8 x 8 numbers: (count, 32 lanes, 4) each.
struct MatrixTwins {
  int count;
  const uint16_t* matrices;  // (count, 4, 8 rows, 8 columns)
  uint32_t *loaded, *loaded_plainly, *transposed, *transposed_plainly;
};
cudaError_t matrices(cudaStream_t stream, const MatrixTwins& twins);

// Pairs of numbers in a word each, the first in its low half.
cudaError_t pairs(cudaStream_t stream, DType type, const float* in, uint32_t* packed, uint32_t* plain,
                  int count);

// before[i] + the four products of the bytes of codes[i] and numbers[i].
cudaError_t byte_products(cudaStream_t stream, const uint32_t* codes, const int32_t* numbers,
                          const int32_t* before, int32_t* out, int32_t* plain, int count);

// in (count, 16 bytes) to each of out (4, count), loaded with its line by 16, 8, 4 and 2 bytes.
cudaError_t loads(cudaStream_t stream, const uint4* in, uint4* out, int count);

// in (count, 16 bytes) to out, by copies that run ahead in groups; blocks of 256.
cudaError_t copies(cudaStream_t stream, const uint4* in, uint4* out, int count);

}  // namespace wi::cuda_test
