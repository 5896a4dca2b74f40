// The one way in which kernels start. No launch happens elsewhere, so that tests can run the same sources
// without a device (tests/cuda_emulation), and no launch goes unchecked.
//
// Where devices can (compute capability 9.0), a kernel's blocks come while the one before it in its stream still runs,
// and wait at in_turn() (device.cuh) until that has ended: a step is some hundreds of small kernels, between any two
// of which the device would do nothing for a microsecond or two.
#pragma once

#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/cuda/step.h"

namespace wi::cuda {

int current_device();  // negative: the runtime does not say
bool launches_early(int device);

constexpr size_t kSharedWithoutAsking = size_t{48} << 10;
// Lets the kernel's blocks have as much as the device gives, which is the current one: one number, whatever this launch
// takes, for it is the kernel's, and another thread may be about to launch it with more. Each thread asks once, and
// again where a host has reset the device, which then knows nothing of it.
cudaError_t allow_shared(const void* kernel, int device, bool again);

// A step is told from others by the bytes of its launches, of which those between a struct's members are of no meaning and
// whatever they happen to be. Where the compiler does not clear them, steps that are alike may not be seen to be.
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define WI_CLEARS_PADDING 1
#endif
#endif
#ifdef WI_CLEARS_PADDING
inline constexpr bool kClearsPadding = true;
template <class T>
void clear_padding(T& value) {
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&value);
}
#else
inline constexpr bool kClearsPadding = false;
template <class T>
void clear_padding(T&) {}
#endif

// A kernel's parameters, one behind the other.
template <class... Params>
struct Parameters {
  template <class Use, class... Before>
  cudaError_t with(Use&& use, const Before&... before) const {
    return use(before...);
  }
};
template <class First, class... Rest>
struct Parameters<First, Rest...> {
  First first;
  Parameters<Rest...> rest;
  template <class Use, class... Before>
  cudaError_t with(Use&& use, const Before&... before) const {
    return rest.with(use, before..., first);
  }
  template <class Value, class... Values>
  void set(Value&& value, Values&&... values) {
    first = static_cast<First>(value);
    clear_padding(first);
    if constexpr (sizeof...(Values) > 0) rest.set(static_cast<Values&&>(values)...);
  }
};
template <class... Params>
struct KernelCall {
  void (*kernel)(Params...);
  dim3 grid, block;
  size_t shared_bytes;
  Parameters<Params...> parameters;
};

template <class... Params>
cudaError_t launch_now(const std::byte* given, cudaStream_t stream) {
  const auto& call = *reinterpret_cast<const KernelCall<Params...>*>(given);
  const int device = current_device();
  cudaLaunchConfig_t config = {};
  config.gridDim = call.grid;
  config.blockDim = call.block;
  config.dynamicSmemBytes = call.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = launches_early(device) ? 1 : 0;
  const auto begin = [&] {
    return call.parameters.with(
        [&](const auto&... each) { return cudaLaunchKernelEx(&config, call.kernel, each...); });
  };
  if (call.shared_bytes <= kSharedWithoutAsking) return begin();
  cudaError_t error = cudaSuccess;
  for (const bool again : {false, true}) {
    error = allow_shared(reinterpret_cast<const void*>(call.kernel), device, again);
    if (error == cudaSuccess) error = begin();
    if (error != cudaErrorInvalidValue) break;  // which is what a launch with more than is allowed says
    (void)cudaGetLastError();
  }
  return error;
}

// Arguments are copied when this is called. Nothing is waited for.
template <class... Params, class... Args>
[[nodiscard]] cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;  // nothing to do is no error here
  using Call = KernelCall<Params...>;
  alignas(16)
      std::byte room[sizeof(Call)] = {};  // a step is told from others by its bytes: none is left as it was
  Call& call = *reinterpret_cast<Call*>(room);
  call.kernel = kernel;
  call.grid = grid;
  call.block = block;
  call.shared_bytes = shared_bytes;
  call.parameters.set(static_cast<Args&&>(args)...);
  return noting() ? noting()->note(launch_now<Params...>, call, stream) : launch_now<Params...>(room, stream);
}

// The same of zeros for the device's memory, and of copies, which the queue's own functions ask for.
[[nodiscard]] cudaError_t clear(void* to, size_t bytes, cudaStream_t stream);
[[nodiscard]] cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                               cudaStream_t stream);

}  // namespace wi::cuda
