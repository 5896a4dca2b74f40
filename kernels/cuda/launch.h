// The one way in which kernels start. No launch happens elsewhere, so that tests can run the same sources
// without a device (tests/cuda_emulation), and no launch goes unchecked.
//
// Where devices can (compute capability 9.0), a kernel's blocks come while the one before it in its stream still runs,
// and wait at in_turn() (device.cuh) until that has ended: a step is some hundreds of small kernels, between any two
// of which the device would do nothing for a microsecond or two.
#pragma once

#include <cuda_runtime.h>

namespace wi::cuda {

// Of the current device.
bool launches_early();

constexpr size_t kSharedWithoutAsking = size_t{48} << 10;
// Lets the kernel's blocks have as much as the current device gives: one number, whatever this launch takes, for it is
// the kernel's, and another thread may be about to launch it with more.
cudaError_t allow_shared(const void* kernel);

// Arguments are copied when this is called. Nothing is waited for.
template <class... Params, class... Args>
[[nodiscard]] cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;  // nothing to do is no error here
  if (shared_bytes > kSharedWithoutAsking) {
    const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = launches_early() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace wi::cuda
