// What lookups retrieve, as runs of keys and values where they are at home: a thread a partition.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kRetrieveThreads = 128;

__global__ void __launch_bounds__(kRetrieveThreads) retrieve_kernel(LookupArgs args) {
  in_turn();
  Lookup& lookup = args.lookups[blockIdx.x];
  const int64_t row = static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  int32_t missing = 0;  // what is not in the device's own memory
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < lookup.retrieved_count; i += kRetrieveThreads) {
    const PartitionRef ref = lookup.retrieved[i];
    const SegmentView& segment = lookup.segments[ref.segment];
    const int32_t begin = segment.offsets[ref.partition];
    missing += segment.first_page != 0;
    lookup.runs[i] = {static_cast<const std::byte*>(segment.keys) + begin * row,
                      static_cast<const std::byte*>(segment.values) + begin * row,
                      segment.offsets[ref.partition + 1] - begin};
  }
  missing = __reduce_add_sync(kAllLanes, missing);
  if (lane_of() == 0 && missing > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&lookup.counters->misses),
              static_cast<unsigned long long>(missing));
  if (threadIdx.x == 0) lookup.run_count = lookup.retrieved_count;
}

cudaError_t retrieve(cudaStream_t stream, const LookupArgs& args) {
  return launch(retrieve_kernel, static_cast<unsigned>(args.count), kRetrieveThreads, 0, stream, args);
}

}  // namespace wi::cuda
