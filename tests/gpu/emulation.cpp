#include "tests/gpu/emulation.h"

#include <algorithm>
#include <cuda_runtime.h>

#include "tests/gpu/fault.h"
#include "tests/test.h"

namespace {

int64_t allocations_left = -1, launches_left = -1;  // until one fails; negative: none does

}  // namespace

// The linker has the kernels' calls come here (--wrap).
extern "C" {

cudaError_t __real_cudaMalloc(void** out, size_t bytes);
cudaError_t __real_cudaMallocHost(void** out, size_t bytes);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments);

static bool refused() { return allocations_left >= 0 && (allocations_left == 0 || allocations_left-- == 0); }

cudaError_t __wrap_cudaMalloc(void** out, size_t bytes) {
  return refused() ? cudaErrorMemoryAllocation : __real_cudaMalloc(out, bytes);
}
cudaError_t __wrap_cudaMallocHost(void** out, size_t bytes) {
  return refused() ? cudaErrorMemoryAllocation : __real_cudaMallocHost(out, bytes);
}
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  if (launches_left >= 0 && launches_left-- == 0) wi::gpu_test::write_astray(config->stream);
  return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

}  // extern "C"

namespace cuda_emulation {

void reset(uint64_t) {
  allocations_left = launches_left = -1;
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return;
  std::printf("the device is lost: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

const std::string& report() {
  static std::string words;
  cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaGetLastError();
  words = error == cudaSuccess ? "" : cudaGetErrorString(error);
  return words;
}

void fail_allocations_from(int64_t nth) { allocations_left = nth; }
void fail_launch(int64_t nth) { launches_left = nth; }

void set_machine(const Machine&) { skip(); }

size_t limit_shared(size_t bytes) {
  int most = 0;
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) != cudaSuccess) most = 0;
  return std::min(bytes, static_cast<size_t>(most));
}

}  // namespace cuda_emulation
