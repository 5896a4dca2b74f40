// The full policy: every query reads every segment, each of which is one partition.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/full.h"

namespace wi::cuda {

constexpr int kFullThreads = 128;

__global__ void __launch_bounds__(kFullThreads) full_select_kernel(LookupArgs args) {
  in_turn();
  Lookup& lookup = args.lookups[blockIdx.x];
  for (int32_t s = static_cast<int32_t>(threadIdx.x); s < lookup.segment_count; s += kFullThreads)
    lookup.retrieved[s] = {s, 0};
  if (threadIdx.x != 0) return;
  lookup.retrieved_count = lookup.segment_count;
  lookup.estimated_count = 0;
  lookup.counters->retrieved += lookup.segment_count;
  lookup.counters->retrieved_tokens += lookup.indexed_tokens;
}

// 16 bytes a thread at a time.
__global__ void __launch_bounds__(kFullThreads) full_copy_kernel(const FullRun* runs) {
  in_turn();
  const FullRun& run = runs[blockIdx.x];
#pragma unroll 2
  for (uint64_t i = threadIdx.x; i < run.bytes / 16; i += kFullThreads) {
    static_cast<uint4*>(run.keys_to)[i] = static_cast<const uint4*>(run.keys)[i];
    static_cast<uint4*>(run.values_to)[i] = static_cast<const uint4*>(run.values)[i];
  }
}
__global__ void __launch_bounds__(kFullThreads) full_places_kernel(int32_t* const* places, int32_t tokens) {
  in_turn();
  int32_t* const own = places[blockIdx.x];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < tokens; i += kFullThreads) own[i] = i;
}

cudaError_t full_index(cudaStream_t stream, const FullRun* runs, uint32_t run_count, int32_t* const* places,
                       uint32_t planes, int32_t tokens) {
  const cudaError_t error = launch(full_copy_kernel, run_count, kFullThreads, 0, stream, runs);
  return error == cudaSuccess ? launch(full_places_kernel, planes, kFullThreads, 0, stream, places, tokens)
                              : error;
}

cudaError_t full_select(cudaStream_t stream, const LookupArgs& args) {
  return launch(full_select_kernel, static_cast<unsigned>(args.count), kFullThreads, 0, stream, args);
}

}  // namespace wi::cuda
