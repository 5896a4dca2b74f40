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

cudaError_t full_select(cudaStream_t stream, const LookupArgs& args) {
  return launch(full_select_kernel, static_cast<unsigned>(args.count), kFullThreads, 0, stream, args);
}

}  // namespace wi::cuda
