// Products of small matrices of 16-bit numbers by tensor cores, a warp at a time: what the lanes hold, how it
// comes from shared memory, and the product itself, with sums in f32 (PTX ISA, mma.m16n8k16 and ldmatrix); and of
// bytes, with sums in 32 bits (mma.m16n8k32).
// tests/cuda_emulation/tensor_cores.cpp does the same, lane by lane, without.
#pragma once

#include "kernels/cuda/device.cuh"

namespace wi::cuda {

// Rows in shared memory are 16 bytes further apart than they are long: of eight rows that are a multiple of 32
// bytes long, the same 16 bytes then lie in different banks.
constexpr __host__ __device__ int padded_row(int bytes) { return bytes + 16; }

// Two numbers in a word, the first in its low half, each rounded to nearest even.
template <DType kType>
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
  static_assert(kType == DType::f16 || kType == DType::bf16);
  union {
    Kv<kType> numbers[2];
    unsigned word;
  } pair;
#if defined(__CUDA_ARCH__)
  if constexpr (kType == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair.word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair.word) : "f"(high), "f"(low));
  }
#else
  pair.numbers[0] = from_float<Kv<kType>>(low);
  pair.numbers[1] = from_float<Kv<kType>>(high);
#endif
  return pair.word;
}

template <DType kType>
__device__ __forceinline__ uint4 pack_eight(const float (&numbers)[8]) {
  return make_uint4(pack_pair<kType>(numbers[0], numbers[1]), pack_pair<kType>(numbers[2], numbers[3]),
                    pack_pair<kType>(numbers[4], numbers[5]), pack_pair<kType>(numbers[6], numbers[7]));
}

// Four matrices of 8 x 8 numbers from shared memory. Lane i gives the address of row i % 8 of matrix i / 8, a
// multiple of 16 bytes, and gets of each the two numbers of row lane / 4 from column 2 · (lane % 4) on; of
// their transposes in the second form.
__device__ __forceinline__ void load_matrices(const std::byte* row, unsigned (&out)[4]) {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::load_matrices(row, false, out);
#elif defined(__CUDA_ARCH__)
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(at)
               : "memory");
#endif
}
__device__ __forceinline__ void load_matrices_transposed(const std::byte* row, unsigned (&out)[4]) {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::load_matrices(row, true, out);
#elif defined(__CUDA_ARCH__)
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(at)
               : "memory");
#endif
}

// What lane i of a warp says to load_matrices() for operands that lie in rows of shared memory. `at`: where the
// operand's first number is; `stride`: bytes from row to row.
//  - left (16 rows, 16 inputs), a row of memory a row: what multiply_add() takes as `left`;
//  - right (16 columns, 16 inputs), a row of memory a column: `right` of the first eight columns, then that of
//    the others;
//  - right_transposed, the same with a row of memory an input, for load_matrices_transposed().
__device__ __forceinline__ const std::byte* left_row(const std::byte* at, int stride) {
  return at + lane_of() % 16 * stride + lane_of() / 16 * 16;
}
__device__ __forceinline__ const std::byte* right_row(const std::byte* at, int stride) {
  return at + (lane_of() % 8 + lane_of() / 16 * 8) * stride + lane_of() / 8 % 2 * 16;
}
__device__ __forceinline__ const std::byte* right_transposed_row(const std::byte* at, int stride) {
  return left_row(at, stride);
}

// sums (16 rows, 8 columns) += left (16 rows, 16 inputs) · right (16 inputs, 8 columns). A lane holds of the
// sums columns 2 · (lane % 4) and the next, first of row lane / 4, then of the one 8 further down; of the
// operands pairs of inputs from 2 · (lane % 4) on, and from 8 further on: left[0], [2] of row lane / 4, [1],
// [3] of the one 8 further down, right[0], [1] of column lane / 4.
template <DType kType>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&left)[4],
                                             unsigned right_first, unsigned right_second) {
  static_assert(kType == DType::f16 || kType == DType::bf16);
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::Operands own{{sums[0], sums[1], sums[2], sums[3]},
                               {left[0], left[1], left[2], left[3]},
                               {right_first, right_second}};
  cuda_emulation::multiply_add(own, kType == DType::f16 ? "mma.f16" : "mma.bf16",
                               [](unsigned short bits) { return to_float(std::bit_cast<Kv<kType>>(bits)); });
  for (int i = 0; i < 4; i++) sums[i] = own.sums[i];
#elif defined(__CUDA_ARCH__)
  if constexpr (kType == DType::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_first), "r"(right_second));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_first), "r"(right_second));
  }
#endif
}

// The same of signed bytes, with integer sums: of the operands fours of inputs from 4 · (lane % 4) on, and from 16
// further on. Rows of 32 bytes are loaded as those of 16 numbers are.
__device__ __forceinline__ void multiply_add_bytes(int (&sums)[4], const unsigned (&left)[4],
                                                   unsigned right_first, unsigned right_second) {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::ByteOperands own{{sums[0], sums[1], sums[2], sums[3]},
                                   {left[0], left[1], left[2], left[3]},
                                   {right_first, right_second}};
  cuda_emulation::multiply_add(own);
  for (int i = 0; i < 4; i++) sums[i] = own.sums[i];
#elif defined(__CUDA_ARCH__)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_first), "r"(right_second));
#endif
}

}  // namespace wi::cuda
