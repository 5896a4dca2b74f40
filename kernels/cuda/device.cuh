// What kernels share: vectors of 16 bytes, numbers of any KV type as f32, reductions over a warp and over a
// block, and memory of a block. Blocks are whole warps throughout.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/types.h"

namespace wi::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr float kLowest = -3.402823466e+38f;

// The memory that a launch gave the block, shared_bytes of it; 16-byte aligned.
#ifdef WI_CUDA_EMULATION
inline std::byte* block_memory() { return cuda_emulation::dynamic_shared(); }
#else
__device__ __forceinline__ std::byte* block_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<std::byte*>(memory);
}
#endif

// What each kernel begins with, before it reads or writes anything: it was launched while those before it ran
// (launch.h). The next one may come then.
__device__ __forceinline__ void in_turn() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x / kWarp); }

// ---- copies that run ahead

// 16 bytes from device memory to the block's, both aligned to as many. They are there once the thread has
// waited, and for others after a barrier then. Copies since the last commit are a group.
__device__ __forceinline__ void copy_16_ahead(void* to, const void* from) {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::copy_later(to, from, 16);
#elif defined(__CUDA_ARCH__)
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::commit_copies();
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// To the L2 cache, of which nothing waits: what is asked for later is nearer then.
__device__ __forceinline__ void fetch_ahead(const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
  static_cast<void>(from);
#endif
}
// Until at most kLater of the newest groups are not there.
template <int kLater>
__device__ __forceinline__ void wait_for_copies() {
#if defined(WI_CUDA_EMULATION)
  cuda_emulation::wait_for_copies(kLater);
#elif defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

// ---- loads that bring their line

// What is only read by the kernel: 2, 4, 8 or 16 bytes, and the rest of their 128 to L2, where who reads a few bytes of
// many lines finds it then: device memory is slower by halves of lines.
__device__ __forceinline__ unsigned short load_line(const unsigned short* at) {
#if defined(__CUDA_ARCH__)
  unsigned short number;
  asm volatile("ld.global.nc.L2::128B.u16 %0, [%1];" : "=h"(number) : "l"(at));
  return number;
#else
  return *at;
#endif
}
__device__ __forceinline__ unsigned load_line(const unsigned* at) {
#if defined(__CUDA_ARCH__)
  unsigned word;
  asm volatile("ld.global.nc.L2::128B.u32 %0, [%1];" : "=r"(word) : "l"(at));
  return word;
#else
  return *at;
#endif
}
__device__ __forceinline__ uint2 load_line(const uint2* at) {
#if defined(__CUDA_ARCH__)
  uint2 words;
  asm volatile("ld.global.nc.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(at));
  return words;
#else
  return *at;
#endif
}
__device__ __forceinline__ uint4 load_line(const uint4* at) {
#if defined(__CUDA_ARCH__)
  uint4 words;
  asm volatile("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(at));
  return words;
#else
  return *at;
#endif
}

// ---- KV types

template <DType kKv>
struct KvNumber;
template <>
struct KvNumber<DType::f32> {
  using Type = float;
};
template <>
struct KvNumber<DType::f16> {
  using Type = __half;
};
template <>
struct KvNumber<DType::bf16> {
  using Type = __nv_bfloat16;
};
template <DType kKv>
using Kv = typename KvNumber<kKv>::Type;

__device__ __forceinline__ float to_float(float number) { return number; }
__device__ __forceinline__ float to_float(__half number) { return __half2float(number); }
__device__ __forceinline__ float to_float(__nv_bfloat16 number) { return __bfloat162float(number); }

// Rounded to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float number);
template <>
__device__ __forceinline__ float from_float<float>(float number) {
  return number;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float number) {
  return __float2half_rn(number);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float number) {
  return __float2bfloat16_rn(number);
}

// kCount numbers as f32, in loads of 16 bytes where they are as many. `from` is aligned to what is loaded.
template <int kCount, class T>
__device__ __forceinline__ void load_floats(const T* from, float (&out)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static_assert(kBytes % 16 == 0 || kBytes == 8 || kBytes == 4 || kBytes == 2);
  if constexpr (kBytes % 16 == 0) {
    constexpr int kEach = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kBytes / 16; i++) {
      union {
        uint4 words;
        T numbers[kEach];
      } loaded;
      loaded.words = reinterpret_cast<const uint4*>(from)[i];
#pragma unroll
      for (int j = 0; j < kEach; j++) out[i * kEach + j] = to_float(loaded.numbers[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i++) out[i] = to_float(from[i]);
  }
}

// sum + the four products of bytes: unsigned ones with signed ones.
__device__ __forceinline__ int dot_bytes(unsigned codes, int numbers, int sum) {
#if defined(__CUDA_ARCH__)
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(codes), "r"(numbers));
#else
  for (int i = 0; i < 32; i += 8)
    sum += static_cast<int>(codes >> i & 255) * static_cast<int8_t>(numbers >> i & 255);
#endif
  return sum;
}

// ---- reductions

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// The sum of the lanes before, and with it the lane's own.
template <class T>
__device__ __forceinline__ T warp_running_sum(T value) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T before = __shfl_up_sync(kAllLanes, value, step);
    if (lane_of() >= step) value += before;
  }
  return value;
}

// Over all threads of a block, who all get the result, in an order that depends on nothing. `scratch`: a
// number per warp of shared memory, free again when the next barrier has passed.
template <class Combine>
__device__ __forceinline__ float block_combine(float value, float* scratch, float rest, Combine combine) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  if (lane_of() == 0) scratch[warp_of()] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = lane_of() < warps ? scratch[lane_of()] : rest;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  return block_combine(value, scratch, 0.0f, [](float a, float b) { return a + b; });
}
__device__ __forceinline__ float block_max(float value, float* scratch) {
  return block_combine(value, scratch, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
}

// The values of the threads before, over a block's threads in order, and all threads' together. `scratch` as above,
// and free as that is.
template <class T>
__device__ __forceinline__ T block_running_sum(std::type_identity_t<T> value, T* scratch, T& total) {
  const T with_own = warp_running_sum(value);
  __syncthreads();  // nobody reads the last call's sums any more
  if (lane_of() == kWarp - 1) scratch[warp_of()] = with_own;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const T of_warps = warp_running_sum(lane_of() < warps ? scratch[lane_of()] : T{0});
  total = __shfl_sync(kAllLanes, of_warps, kWarp - 1);
  const T before = __shfl_sync(kAllLanes, of_warps, warp_of() == 0 ? 0 : warp_of() - 1);
  return with_own - value + (warp_of() == 0 ? T{0} : before);
}

}  // namespace wi::cuda
