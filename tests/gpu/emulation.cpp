#include "tests/gpu/emulation.h"

#include <algorithm>
#include <cuda_runtime.h>

#include "tests/cuda_emulation/traffic.h"
#include "tests/gpu/fault.h"
#include "tests/test.h"

namespace {

int64_t allocations_left = -1, launches_left = -1;               // until one fails; negative: none does
int64_t launches_to_refuse = -1, graph_launches_to_refuse = -1;  // the same, and the next is taken again
uint64_t calls, graph_calls;
int64_t alive;
bool captures = true;

}  // namespace

// The linker has the kernels' calls come here (--wrap).
extern "C" {

cudaError_t __real_cudaMalloc(void** out, size_t bytes);
cudaError_t __real_cudaMallocHost(void** out, size_t bytes);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments);

cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream);
cudaError_t __real_cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t __real_cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t __real_cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags);
cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t __real_cudaGraphExecDestroy(cudaGraphExec_t graph);

static bool refused() { return allocations_left >= 0 && (allocations_left == 0 || allocations_left-- == 0); }

cudaError_t __wrap_cudaMalloc(void** out, size_t bytes) {
  return refused() ? cudaErrorMemoryAllocation : __real_cudaMalloc(out, bytes);
}
cudaError_t __wrap_cudaMallocHost(void** out, size_t bytes) {
  return refused() ? cudaErrorMemoryAllocation : __real_cudaMallocHost(out, bytes);
}
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  if (launches_to_refuse >= 0 && launches_to_refuse-- == 0) return cudaErrorMemoryAllocation;
  ++calls;
  if (launches_left >= 0 && launches_left-- == 0) wi::gpu_test::write_astray(config->stream);
  return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  ++calls;
  return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}
cudaError_t __wrap_cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  ++calls;
  return __real_cudaMemsetAsync(to, value, bytes, stream);
}
cudaError_t __wrap_cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return captures ? __real_cudaStreamBeginCapture(stream, mode) : cudaErrorStreamCaptureUnsupported;
}
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  const cudaError_t error =
      refused() ? cudaErrorMemoryAllocation : __real_cudaGraphInstantiate(out, graph, flags);
  alive += error == cudaSuccess;
  return error;
}
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (graph_launches_to_refuse >= 0 && graph_launches_to_refuse-- == 0) return cudaErrorMemoryAllocation;
  ++calls, ++graph_calls;
  if (launches_left >= 0) {
    launches_left = -1;
    wi::gpu_test::write_astray(stream);
  }
  return __real_cudaGraphLaunch(graph, stream);
}
cudaError_t __wrap_cudaGraphExecDestroy(cudaGraphExec_t graph) {
  --alive;
  return __real_cudaGraphExecDestroy(graph);
}

}  // extern "C"

namespace cuda_emulation {

void reset(uint64_t) {
  allocations_left = launches_left = launches_to_refuse = graph_launches_to_refuse = -1;
  calls = graph_calls = 0;
  captures = true;
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
void refuse_launch(int64_t nth) { launches_to_refuse = nth; }
void refuse_graph_launch(int64_t nth) { graph_launches_to_refuse = nth; }
uint64_t api_calls() { return calls; }
uint64_t graph_launches() { return graph_calls; }
int64_t graphs() { return alive; }
void allow_capture(bool allowed) { captures = allowed; }

void set_machine(const Machine&) { skip(); }
Traffic traffic() { return skip(), Traffic{}; }

size_t limit_shared(size_t bytes) {
  int most = 0;
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) != cudaSuccess) most = 0;
  return std::min(bytes, static_cast<size_t>(most));
}

}  // namespace cuda_emulation
