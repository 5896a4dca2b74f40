// What lookups retrieve, as runs of keys and values: a thread a partition.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kRetrieveThreads = 128;

__global__ void __launch_bounds__(kRetrieveThreads) retrieve_kernel(LookupArgs args) {
  Lookup& lookup = args.lookups[blockIdx.x];
  const int64_t row = static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < lookup.retrieved_count; i += kRetrieveThreads) {
    const PartitionRef ref = lookup.retrieved[i];
    const SegmentView& segment = lookup.segments[ref.segment];
    const int32_t begin = segment.offsets[ref.partition];
    lookup.runs[i] = {static_cast<const std::byte*>(segment.keys) + begin * row,
                      static_cast<const std::byte*>(segment.values) + begin * row,
                      segment.offsets[ref.partition + 1] - begin};
  }
  if (threadIdx.x == 0) lookup.run_count = lookup.retrieved_count;
}

cudaError_t retrieve(cudaStream_t stream, const LookupArgs& args) {
  return launch(retrieve_kernel, static_cast<unsigned>(args.count), kRetrieveThreads, 0, stream, args);
}

}  // namespace wi::cuda
