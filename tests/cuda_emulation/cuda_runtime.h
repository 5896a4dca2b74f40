// In the place of the toolkit's header of this name: what kernels/cuda uses of it, run by emulation.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>

#include "tests/cuda_emulation/emulation.h"

#define WI_CUDA_EMULATION 1

#define __grid_constant__
#define __global__ __attribute__((visibility("default"), noinline))
#define __device__
#define __host__
#define __forceinline__ inline
#define __constant__ const
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)

// ---- types

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Read as numbers, by calls: they are in no memory that a kernel sees.
namespace cuda_emulation {
template <uint3 (*kPlace)(), unsigned uint3::*kMember>
struct Coordinate {
  operator unsigned() const { return kPlace().*kMember; }
};
template <uint3 (*kPlace)()>
struct Place {
  Coordinate<kPlace, &uint3::x> x;
  Coordinate<kPlace, &uint3::y> y;
  Coordinate<kPlace, &uint3::z> z;
};
}  // namespace cuda_emulation
inline constexpr cuda_emulation::Place<cuda_emulation::thread_index> threadIdx{};
inline constexpr cuda_emulation::Place<cuda_emulation::block_index> blockIdx{};
inline constexpr cuda_emulation::Place<cuda_emulation::block_size> blockDim{};
inline constexpr cuda_emulation::Place<cuda_emulation::grid_size> gridDim{};

// ---- the runtime

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorContained = 226,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorTensorMemoryLeak = 721,
  cudaErrorMpsRpcFailure = 806,
  cudaErrorMpsClientTerminated = 810,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorExternalDevice = 911,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeRelaxed = 2 };
using cudaEvent_t = struct CUevent_st*;
inline const cudaStream_t cudaStreamPerThread = reinterpret_cast<cudaStream_t>(2);
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount, l2CacheSize, pageableMemoryAccess;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

cudaError_t cudaGetDeviceCount(int* out);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device);
cudaError_t cudaDeviceGetPCIBusId(char* out, int room, int device);
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int device);
enum { cudaEnableDefault = 0 };
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned version,
                                             unsigned long long flags, void* status);
cudaError_t cudaGetDevice(int* out);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes);
cudaError_t cudaDriverGetVersion(int* out);
cudaError_t cudaRuntimeGetVersion(int* out);
cudaError_t cudaMalloc(void** out, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** out, size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
struct cudaFuncAttributes {
  size_t sharedSizeBytes;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);

namespace cuda_emulation {
template <class... Params>
struct Parameters {
  void (*kernel)(Params...);
  std::tuple<Params...> values;
};
}  // namespace cuda_emulation

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  static_assert((std::is_trivially_copyable_v<Params> && ...), "parameters are copied as bytes");
  using Parameters = cuda_emulation::Parameters<Params...>;
  cuda_emulation::Launch launch{.kernel = reinterpret_cast<const void*>(kernel),
                                .parameters = {new Parameters{kernel, {Params(std::forward<Args>(args))...}},
                                               [](void* own) { delete static_cast<Parameters*>(own); }},
                                .parameter_bytes = sizeof(Parameters),
                                .invoke = [](const void* given) {
                                  const auto& own = *static_cast<const Parameters*>(given);
                                  std::apply(own.kernel, own.values);
                                }};
  return cuda_emulation::enqueue(*config, std::move(launch));
}

// ---- a block and its warps

inline void __syncthreads() { cuda_emulation::meet_block(); }
inline int __syncthreads_count(int predicate) { return cuda_emulation::meet_block_counting(predicate != 0); }
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { cuda_emulation::order_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

namespace cuda_emulation {
template <class T>
T exchange(unsigned mask, const char* operation, T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = meet_warp_for(mask, operation, bits, from % 32);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace cuda_emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned lane = cuda_emulation::lane(), first = lane - lane % static_cast<unsigned>(width);
  return cuda_emulation::exchange(mask, "__shfl_sync", value,
                                  first + static_cast<unsigned>(from) % static_cast<unsigned>(width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const unsigned lane = cuda_emulation::lane(), other = lane ^ static_cast<unsigned>(with);
  const unsigned end = lane - lane % static_cast<unsigned>(width) + static_cast<unsigned>(width);
  return cuda_emulation::exchange(mask, "__shfl_xor_sync", value, other < end ? other : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = cuda_emulation::lane(), at = lane % static_cast<unsigned>(width);
  return cuda_emulation::exchange(mask, "__shfl_down_sync", value,
                                  at + by < static_cast<unsigned>(width) ? lane + by : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = cuda_emulation::lane(), at = lane % static_cast<unsigned>(width);
  return cuda_emulation::exchange(mask, "__shfl_up_sync", value, at >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return cuda_emulation::vote(mask, "__ballot_sync", predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }
inline unsigned __match_any_sync(unsigned mask, int value) {
  const cuda_emulation::Lanes lanes =
      cuda_emulation::meet_warp(mask, "__match_any_sync", static_cast<uint32_t>(value));
  unsigned same = 0;
  for (unsigned i = 0; i < 32; ++i) same |= unsigned{lanes.of[i] == static_cast<uint32_t>(value)} << i;
  return same;
}
namespace cuda_emulation {
template <class T, class Combine>
T reduce(unsigned mask, const char* operation, T value, Combine combine) {
  const Lanes lanes = meet_warp(mask, operation, static_cast<uint32_t>(value));
  T all = static_cast<T>(lanes.of[0]);
  for (int i = 1; i < 32; ++i) all = combine(all, static_cast<T>(lanes.of[i]));
  return all;
}
}  // namespace cuda_emulation
#define WI_REDUCE(name, T, ...) \
  inline T name(unsigned mask, T value) { return cuda_emulation::reduce(mask, #name, value, __VA_ARGS__); }
WI_REDUCE(__reduce_add_sync, unsigned, [](unsigned a, unsigned b) { return a + b; })
WI_REDUCE(__reduce_max_sync, unsigned, [](unsigned a, unsigned b) { return std::max(a, b); })
WI_REDUCE(__reduce_min_sync, unsigned, [](unsigned a, unsigned b) { return std::min(a, b); })
WI_REDUCE(__reduce_or_sync, unsigned, [](unsigned a, unsigned b) { return a | b; })
WI_REDUCE(__reduce_and_sync, unsigned, [](unsigned a, unsigned b) { return a & b; })
WI_REDUCE(__reduce_add_sync, int, [](int a, int b) { return a + b; })
WI_REDUCE(__reduce_max_sync, int, [](int a, int b) { return std::max(a, b); })
WI_REDUCE(__reduce_min_sync, int, [](int a, int b) { return std::min(a, b); })
#undef WI_REDUCE

// ---- atomics

namespace cuda_emulation {
template <class T, class Change>
__attribute__((no_sanitize("thread"))) T change(T* at, Change&& next) {
  atomic_access(at, sizeof(T));
  const T old = *at;
  *at = next(old);
  return old;
}
}  // namespace cuda_emulation
#define WI_ATOMIC(name, T, next)                                                          \
  inline T name(T* at, T value) {                                                         \
    return cuda_emulation::change(                                                        \
        at, [value]([[maybe_unused]] T old)                                               \
                __attribute__((no_sanitize("thread"))) { return static_cast<T>(next); }); \
  }
#define WI_ATOMICS(T)                              \
  WI_ATOMIC(atomicAdd, T, old + value)             \
  WI_ATOMIC(atomicMax, T, std::max<T>(old, value)) \
  WI_ATOMIC(atomicMin, T, std::min<T>(old, value)) \
  WI_ATOMIC(atomicExch, T, value)
WI_ATOMICS(int)
WI_ATOMICS(unsigned)
WI_ATOMICS(unsigned long long)
WI_ATOMIC(atomicAdd, float, old + value)
WI_ATOMIC(atomicAdd, double, old + value)
WI_ATOMIC(atomicExch, float, value)
WI_ATOMIC(atomicOr, unsigned, old | value)
WI_ATOMIC(atomicAnd, unsigned, old& value)
WI_ATOMIC(atomicSub, unsigned, old - value)
#undef WI_ATOMICS
#undef WI_ATOMIC
#define WI_COMPARE_AND_SWAP(T)                                                                            \
  inline T atomicCAS(T* at, T expected, T value) {                                                        \
    return cuda_emulation::change(                                                                        \
        at, [=](T old) __attribute__((no_sanitize("thread"))) { return old == expected ? value : old; }); \
  }
WI_COMPARE_AND_SWAP(int)
WI_COMPARE_AND_SWAP(unsigned)
#undef WI_COMPARE_AND_SWAP

// ---- arithmetic

using std::max;
using std::min;
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (b >> i & 255);
  return sum;
}
inline unsigned __byte_perm(unsigned first, unsigned second, unsigned selectors) {
  unsigned out = 0;
  for (int i = 0; i < 32; i += 8) {
    const unsigned from = selectors >> i / 2 & 7;
    out |= ((from < 4 ? first : second) >> from % 4 * 8 & 255) << i;
  }
  return out;
}
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
// Not fused, whatever the compiler is allowed.
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline double __dmul_rn(double a, double b) {
  volatile double product = a * b;
  return product;
}
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
