// What products of decoding share, whatever the number of rows: rows as left operands of tensor cores, of weights as
// right ones (operands.cuh). Eight rows are sixteen there: each f32 number is a sum of two of f16, after its part of a
// row was scaled by a power of two (of three of bf16 by weights in bf16), and each of the two has a row of its own, so
// that products are exact to 2^-21 of themselves or better. What 32 inputs give is scaled and added in f32.
//
// Inputs are cut into eight slices of whole steps, each summed by one warp, and the eight sums are added up as a tree.
// Which warp of which block has a slice changes no bit: the order of each sum depends on the inputs' count alone.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/operands.cuh"

namespace wi::cuda {

constexpr int kProductThreads = 256;
constexpr int kProductWarps = kProductThreads / kWarp;
constexpr int kSlices = 8;   // of the inputs
constexpr int kFewRows = 8;  // that matmul_decode_few takes
static_assert(kProductWarps == kSlices);

constexpr __host__ __device__ int steps_of(int inputs) { return (inputs + kStepInputs - 1) / kStepInputs; }
constexpr int64_t tiles_of(int64_t outputs, int each) { return (outputs + each - 1) / each; }

struct StepsOfSlice {
  __device__ StepsOfSlice(int inputs, int slice) {
    const int steps = steps_of(inputs);
    first = slice * steps / kSlices;
    count = (slice + 1) * steps / kSlices - first;
  }
  int first, count;
};

template <DType kType>
constexpr int kPairsOf = kType == DType::bf16 ? 2 : 1;  // of numbers that an f32 number is a sum of

// Of one row's step what one lane of each half needs, on its way to shared memory. Four neighbouring lanes have a row.
template <DType kType>
struct RowShare {
  // Zeros where nothing is there, and beyond the last input.
  __device__ __forceinline__ void load(const float* row, int step, int inputs, bool there) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const int column = step * kStepInputs + half * 32 + operand_column<kType>(i);
        const float4 four = there && column < inputs ? *reinterpret_cast<const float4*>(row + column)
                                                     : make_float4(0, 0, 0, 0);
        in[half][i] = four.x;
        in[half][i + 1] = four.y;
        in[half][i + 2] = four.z;
        in[half][i + 3] = four.w;
      }
  }

  // A vector for each sixteen inputs of each pair, `apart` bytes apart, and the row's scale. `half_apart`: from the first
  // half's to the second's; `sums_apart`: floats from the scale to the first half's sum, and on to the second's. All lanes
  // of a warp are here; which of them store is the same of four.
  __device__ __forceinline__ void split(std::byte* to, int apart, int half_apart, float* scales,
                                        int sums_apart, bool stores = true) {
    stores_scales = stores && lane_of() % 4 == 0;
    if constexpr (OperandOf<kType>::kMinimums) store_sums(scales + sums_apart, sums_apart);
    if constexpr (OperandOf<kType>::kNumbers == DType::f16) scale(scales);
    if (!stores) return;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int pair = 0; pair < kPairsOf<kType>; pair++) {
        const uint4 first = next_term(in[half]);
        const uint4 second = pair == 0 ? next_term(in[half]) : make_uint4(0, 0, 0, 0);
        std::byte* const at = to + half * half_apart + pair * 2 * apart;
        *reinterpret_cast<uint4*>(at) = make_uint4(first.x, second.x, first.y, second.y);
        *reinterpret_cast<uint4*>(at + apart) = make_uint4(first.z, second.z, first.w, second.w);
      }
  }

 private:
  __device__ __forceinline__ void store_sums(float* to, int apart) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) sum += in[half][i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (stores_scales) to[half * apart] = sum;
    }
  }

  // By a power of two, so that the largest of a row's step is in [2^14, 2^15), and all that is lost of the others
  // is below 2^-40 of it. Its inverse is stored.
  __device__ __forceinline__ void scale(float* inverse) {
    float most = 0;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(in[half][i]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const unsigned exponent = max(__float_as_uint(most) >> 23, 15u);
    const float by = __uint_as_float((268 - exponent) << 23);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i++) in[half][i] = __fmul_rn(in[half][i], by);
    if (stores_scales) *inverse = __uint_as_float((exponent - 14) << 23);
  }

  // Eight numbers rounded, and what that left of them.
  __device__ __forceinline__ static uint4 next_term(float (&numbers)[8]) {
    constexpr DType kNumbers = OperandOf<kType>::kNumbers;
    const uint4 words = pack_eight<kNumbers>(numbers);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      union {
        unsigned word;
        Kv<kNumbers> pair[2];
      } rounded;
      rounded.word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
      numbers[2 * i] -= to_float(rounded.pair[0]);
      numbers[2 * i + 1] -= to_float(rounded.pair[1]);
    }
    return words;
  }

  bool stores_scales;
  float in[2][8];
};

// Of eight rows and a half of a step, from shared memory as RowShare leaves it: `at` is the lane's first vector, `of_row`
// the scale of its row.
template <DType kType>
struct LeftOperands {
  __device__ __forceinline__ void load(const std::byte* at, int apart, const float* of_row, int half,
                                       int sums_apart) {
#pragma unroll
    for (int i = 0; i < kPairsOf<kType> * 2; i++) {
      const uint4 four = *reinterpret_cast<const uint4*>(at + i * apart);
      words[i / 2][i % 2][0] = four.x;
      words[i / 2][i % 2][1] = four.y;
      words[i / 2][i % 2][2] = four.z;
      words[i / 2][i % 2][3] = four.w;
    }
    if constexpr (OperandOf<kType>::kNumbers == DType::f16) inverse = *of_row;
    if constexpr (OperandOf<kType>::kMinimums) in_sum = of_row[(1 + half) * sums_apart];
  }

  unsigned words[kPairsOf<kType>][2][4];
  float inverse = 1, in_sum = 0;
};

// Of the two outputs whose sums a lane has: what the lanes that loaded their weights know.
template <DType kType>
struct Factors {
  using Of = OperandOf<kType>;
  __device__ __forceinline__ void load(const LaneWeights<kType>& weights, int step, int half) {
    if constexpr (Of::kQuantised) {
      constexpr int kScales = Of::kScaleEach16 ? 2 : 1;
#pragma unroll
      for (int sixteen = 0; sixteen < kScales; sixteen++)
        of_own_outputs(weights.scale(step, half, sixteen), scales[sixteen]);
    }
    if constexpr (Of::kMinimums) of_own_outputs(weights.minimum(step, half), minimums);
  }
  __device__ __forceinline__ static void of_own_outputs(float loaded, float (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) out[i] = __shfl_sync(kAllLanes, loaded, (lane_of() % 4 * 2 + i) * 4);
  }

  float scales[2][2], minimums[2];
};

// Adds what a half of a step gives of eight rows by eight outputs: a lane has the sums of row lane / 4 and outputs
// 2 · (lane % 4) and the next.
template <DType kType>
__device__ __forceinline__ void add_products(const LeftOperands<kType>& left, const unsigned (&right)[4],
                                             const Factors<kType>& factors, float (&sums)[2]) {
  using Of = OperandOf<kType>;
  float part[4] = {};
#pragma unroll
  for (int sixteen = 0; sixteen < 2; sixteen++) {
#pragma unroll
    for (int pair = 0; pair < kPairsOf<kType>; pair++)
      multiply_add<Of::kNumbers>(part, left.words[pair][sixteen], right[2 * sixteen], right[2 * sixteen + 1]);
    if (!Of::kScaleEach16 && sixteen == 0) continue;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float both = part[i] + part[i + 2];
      if constexpr (Of::kQuantised) both *= factors.scales[Of::kScaleEach16 ? sixteen : 0][i];
      sums[i] = fmaf(both, left.inverse, sums[i]);
      if constexpr (Of::kMinimums) sums[i] = fmaf(factors.minimums[i], left.in_sum, sums[i]);
      part[i] = part[i + 2] = 0;
    }
  }
}

// Of kCount numbers, two by two.
template <int kCount, class Get>
__device__ __forceinline__ float tree_sum(Get&& get) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i++) sums[i] = get(i);
#pragma unroll
  for (int apart = 1; apart < kCount; apart *= 2)
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * apart) sums[i] += sums[i + apart];
  return sums[0];
}

}  // namespace wi::cuda
