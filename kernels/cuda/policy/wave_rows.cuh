// What the stages of Index read of keys and values, and the sums that they have in common, in the CPU's order.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/policy/wave_build.h"

namespace wi::cuda {

constexpr int kMostDim = 256;
constexpr int kLaneDims = kMostDim / kWarp;  // dimensions of a lane: every 32nd
constexpr float kMostFloat = 3.402823466e+38f;

__device__ __forceinline__ WaveBuild build_of(const WaveIndexArgs& args, unsigned plane) {
  return wave_build(args.workspace + plane * args.layout.bytes, args.layout);
}

// Numbers that are not finite count as 0 here, so that one bad key spoils no centroid.
__device__ __forceinline__ float finite(float number) { return fabsf(number) <= kMostFloat ? number : 0.0f; }

template <DType kKv>
__device__ __forceinline__ const Kv<kKv>* row_of(const std::byte* rows, int32_t token, int32_t dim) {
  return reinterpret_cast<const Kv<kKv>*>(rows) + int64_t{token} * dim;
}

template <class T>
__device__ __forceinline__ void load_finite(const T* from, float (&out)[8]) {
  load_floats<8>(from, out);
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = finite(out[i]);
}

// Of a row from `other` (head_dim floats), by one thread.
template <class T>
__device__ __forceinline__ float squared_distance(const T* row, const float* other, int32_t dim) {
  float squares = 0;
#pragma unroll 1
  for (int32_t i = 0; i < dim; i += 8) {
    float numbers[8];
    load_finite(row + i, numbers);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float off = __fsub_rn(numbers[j], other[i + j]);
      squares = __fadd_rn(squares, __fmul_rn(off, off));
    }
  }
  return squares;
}

// A row's numbers of a lane's dimensions; zeros beyond the last.
template <class T>
__device__ __forceinline__ void load_of_lane(const T* row, int32_t dim, T (&numbers)[kLaneDims]) {
#pragma unroll
  for (int j = 0; j < kLaneDims; j++) {
    const int i = j * kWarp + lane_of();
    numbers[j] = i < dim ? row[i] : T{};
  }
}

constexpr int kRowsAhead = 4;

// use(numbers, factor) of each member's row, in order, by a warp: each lane its dimensions. factor: factor_of(member).
// Members and factors come by the 32, and rows as many at a time as are on their way together: a cluster's lie anywhere,
// and one by one each would be waited for twice.
template <DType kKv, class FactorOf, class Use>
__device__ __forceinline__ void each_row(const std::byte* rows, const int32_t* members, int32_t count,
                                         int32_t dim, FactorOf&& factor_of, Use&& use) {
#pragma unroll 1
  for (int32_t first = 0; first < count; first += kWarp) {
    const int32_t here = min(count - first, kWarp);
    const int32_t own = members[first + min(lane_of(), here - 1)];
    const float own_factor = factor_of(own);
#pragma unroll 1
    for (int32_t next = 0; next < here; next += kRowsAhead) {
      Kv<kKv> numbers[kRowsAhead][kLaneDims];
#pragma unroll
      for (int r = 0; r < kRowsAhead; r++) {
        const int32_t member = __shfl_sync(kAllLanes, own, min(next + r, here - 1));
        load_of_lane(row_of<kKv>(rows, member, dim), dim, numbers[r]);
      }
#pragma unroll
      for (int r = 0; r < kRowsAhead; r++) {
        const float factor = __shfl_sync(kAllLanes, own_factor, min(next + r, here - 1));
        if (next + r < here) use(numbers[r], factor);
      }
    }
  }
}

// The mean of so many members' rows, by a warp: each lane its dimensions.
template <DType kKv>
__device__ __forceinline__ void mean_of(const std::byte* rows, const int32_t* members, int32_t count,
                                        int32_t dim, float (&mean)[kLaneDims]) {
  const float share = 1.0f / static_cast<float>(count);
#pragma unroll
  for (int j = 0; j < kLaneDims; j++) mean[j] = 0;
  each_row<kKv>(
      rows, members, count, dim, [share](int32_t) { return share; },
      [&](const Kv<kKv>(&numbers)[kLaneDims], float factor) {
#pragma unroll
        for (int j = 0; j < kLaneDims; j++)
          mean[j] = __fadd_rn(mean[j], __fmul_rn(finite(to_float(numbers[j])), factor));
      });
}

// kernel(DType) for the arguments' KV type.
#define WI_WAVE_BY_KV(kernel, kv) \
  ((kv) == DType::f32 ? kernel<DType::f32> : (kv) == DType::bf16 ? kernel<DType::bf16> : kernel<DType::f16>)

}  // namespace wi::cuda
