// The cache of hot pages (kernels/hot_pages.h), kept by the device itself. Once a step its frames are put in order:
// counted by bucket, then placed. For each pass of lookups three launches: one finds what is in frames and lists what
// is not, one takes frames for that and copies, a warp a page, and one writes the lookups' runs. No launch needs
// another block of its own to make progress, and which frame a page gets depends on who comes first: no bit does.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kOrderThreads = 256;
constexpr int kFramesEach = 8;  // of a thread
constexpr int kOrderTile = kOrderThreads * kFramesEach;
constexpr int kLookUpThreads = 128;
constexpr int kCopyThreads = 128;
constexpr int kMostCopyBlocks = 128;  // a megabyte and more on its way: a bus needs a tenth of that

using Wide = unsigned long long;

// ---- the order of a step

// 63 would be: used in this step. Frames that nobody used for 63 steps and more are alike.
__device__ __forceinline__ int bucket_of(const HotPages& hot, uint64_t step, int32_t frame) {
  const uint64_t age = step - hot.last_use[frame];
  return kHotPageBuckets - 1 - static_cast<int>(min(age, uint64_t{kHotPageBuckets - 1}));
}

__device__ __forceinline__ bool is_gone(const HotPageStep& now, uint64_t page) {
  for (int32_t i = 0; i < now.gone_count; i++)
    if (page >= now.gone[i].first && page < now.gone[i].end) return true;
  return false;
}

__global__ void __launch_bounds__(kOrderThreads) count_frames_kernel(HotPages hot) {
  in_turn();
  __shared__ uint32_t counts[kHotPageBuckets];
  const HotPageStep now = *hot.now;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHotPageBuckets) counts[thread] = 0;
  __syncthreads();
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kOrderThreads;
  for (int32_t frame = static_cast<int32_t>(blockIdx.x) * kOrderThreads + thread; frame < hot.frames;
       frame += stride) {
    if (now.gone_count > 0 && is_gone(now, hot.pages[frame])) {
      hot.pages[frame] = 0;
      hot.last_use[frame] = 0;
    }
    atomicAdd(&counts[bucket_of(hot, now.step, frame)], 1u);
  }
  __syncthreads();
  if (thread < kHotPageBuckets && counts[thread] > 0) atomicAdd(&hot.counts->frames[thread], counts[thread]);
}

// A block takes room in each bucket for all frames of a tile at once.
__global__ void __launch_bounds__(kOrderThreads) order_frames_kernel(HotPages hot) {
  in_turn();
  __shared__ uint32_t counts[kHotPageBuckets], places[kHotPageBuckets], begins[kHotPageBuckets];
  const uint64_t step = hot.now->step;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHotPageBuckets) {
    uint32_t before = 0;
    for (int i = 0; i < thread; i++) before += hot.counts->frames[i];
    begins[thread] = before;
  }
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kOrderTile;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x) * kOrderTile; tile < hot.frames; tile += stride) {
    if (thread < kHotPageBuckets) counts[thread] = 0;
    __syncthreads();
    for (int i = 0; i < kFramesEach; i++) {
      const int32_t frame = tile + i * kOrderThreads + thread;
      if (frame < hot.frames) atomicAdd(&counts[bucket_of(hot, step, frame)], 1u);
    }
    __syncthreads();
    if (thread < kHotPageBuckets)
      places[thread] = begins[thread] + atomicAdd(&hot.counts->placed[thread], counts[thread]);
    __syncthreads();
    for (int i = 0; i < kFramesEach; i++) {
      const int32_t frame = tile + i * kOrderThreads + thread;
      if (frame < hot.frames) hot.order[atomicAdd(&places[bucket_of(hot, step, frame)], 1u)] = frame;
    }
    __syncthreads();
  }
}

cudaError_t order_hot_pages(cudaStream_t stream, const HotPages& hot) {
  if (hot.frames < 1) return cudaErrorInvalidValue;
  const cudaError_t error = clear(hot.counts, sizeof(HotPageCounts), stream);
  if (error != cudaSuccess) return error;
  const unsigned tiles = static_cast<unsigned>((hot.frames + kOrderTile - 1) / kOrderTile);
  const unsigned blocks = tiles < 256 ? tiles : 256;
  const cudaError_t counted = launch(count_frames_kernel, blocks, kOrderThreads, 0, stream, hot);
  return counted == cudaSuccess ? launch(order_frames_kernel, blocks, kOrderThreads, 0, stream, hot)
                                : counted;
}

// ---- a pass

// Pages of a partition, one after the other.
struct PartitionPages {
  int32_t begin, tokens;  // in the stored order
  int32_t count;
  int32_t* slots;       // of the table
  uint64_t first_page;  // number
  bool cached;          // they may be in frames

  __device__ PartitionPages(const SegmentView& segment, int32_t partition)
      : begin(segment.offsets[partition]),
        tokens(segment.offsets[partition + 1] - begin),
        count(hot_pages_of(tokens)),
        slots(segment.frames + hot_page_slot(partition, begin)),
        first_page(segment.first_page + static_cast<uint64_t>(hot_page_slot(partition, begin))),
        cached(segment.first_page != 0 && count > 0 && count <= kMostHotPages) {}

  __device__ int32_t tokens_of(int32_t page) const {
    return min(tokens - page * kHotPageTokens, kHotPageTokens);
  }
};

// Others may be noting their claim there.
__device__ __forceinline__ int32_t entry_at(const int32_t* slot) {
  return *const_cast<const volatile int32_t*>(slot);
}

__device__ __forceinline__ bool has_page(const HotPages& hot, int32_t entry, uint64_t page) {
  return entry >= 0 && entry < hot.frames && hot.pages[entry] == page;
}

// A thread a partition. A page that several lookups miss is listed once: by whoever notes his claim in the table,
// which is a number below 0 that is this pass's own. What finds no room in the list is read where it lies, and
// comes again with the next step that wants it.
__global__ void __launch_bounds__(kLookUpThreads) look_up_kernel(LookupArgs args, HotPages hot) {
  in_turn();
  const Lookup& lookup = args.lookups[blockIdx.x];
  const size_t row = row_bytes(args.kv, args.head_dim);
  const uint64_t step = hot.now->step;
  const int32_t claim = -1 - static_cast<int32_t>((hot.now->passes + hot.pass) & 0x3FFFFFFF);
  int32_t missing = 0;  // partitions
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < lookup.retrieved_count; i += kLookUpThreads) {
    const PartitionRef ref = lookup.retrieved[i];
    const SegmentView& segment = lookup.segments[ref.segment];
    if (segment.first_page == 0) continue;
    const PartitionPages pages(segment, ref.partition);
    bool found_all = pages.cached;
    for (int32_t j = 0; pages.cached && j < pages.count; j++) {
      int32_t* const slot = pages.slots + j;
      const uint64_t page = pages.first_page + static_cast<uint64_t>(j);
      const int32_t entry = entry_at(slot);
      if (has_page(hot, entry, page)) {
        atomicExch(reinterpret_cast<Wide*>(hot.last_use + entry), static_cast<Wide>(step));
        continue;
      }
      found_all = false;
      if (entry == claim || atomicCAS(slot, entry, claim) != entry) continue;
      const uint32_t at = atomicAdd(&hot.counts->misses, 1u);
      if (at >= static_cast<uint32_t>(hot.most_misses)) continue;
      const size_t offset = static_cast<size_t>(pages.begin + j * kHotPageTokens) * row;
      hot.misses[at] = {slot, page, static_cast<const std::byte*>(segment.keys) + offset,
                        static_cast<const std::byte*>(segment.values) + offset,
                        static_cast<uint32_t>(static_cast<size_t>(pages.tokens_of(j)) * row)};
    }
    missing += !found_all;
  }
  missing = __reduce_add_sync(kAllLanes, missing);
  if (lane_of() == 0 && missing > 0)
    atomicAdd(reinterpret_cast<Wide*>(&lookup.counters->misses), static_cast<Wide>(missing));
}

// The next frame that this step has not used; none: -1.
__device__ __forceinline__ int32_t take_frame(const HotPages& hot, uint64_t step) {
  for (;;) {
    const uint32_t at = atomicAdd(&hot.counts->taken, 1u);
    if (at >= static_cast<uint32_t>(hot.frames)) return -1;
    const int32_t frame = hot.order[at];
    if (hot.last_use[frame] != step) return frame;
  }
}

// Keys and values of a page, by a warp, some vectors a lane on their way at a time.
__device__ __forceinline__ void copy_page(const HotPageMiss& miss, std::byte* frame, size_t frame_bytes) {
  constexpr int kAhead = 8;
  const int half = static_cast<int>(miss.bytes / 16);
  const uint4* const keys = static_cast<const uint4*>(miss.keys);
  const uint4* const values = static_cast<const uint4*>(miss.values);
  uint4* const to_keys = reinterpret_cast<uint4*>(frame);
  uint4* const to_values = reinterpret_cast<uint4*>(frame + frame_bytes / 2);
  for (int first = lane_of(); first < 2 * half; first += kAhead * kWarp) {
    uint4 words[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const int at = first + i * kWarp;
      if (at < 2 * half) words[i] = at < half ? keys[at] : values[at - half];
    }
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const int at = first + i * kWarp;
      if (at < half)
        to_keys[at] = words[i];
      else if (at < 2 * half)
        to_values[at - half] = words[i];
    }
  }
}

__global__ void __launch_bounds__(kCopyThreads) copy_misses_kernel(HotPages hot) {
  in_turn();
  const uint64_t step = hot.now->step;
  const uint32_t count = min(hot.counts->misses, static_cast<uint32_t>(hot.most_misses));
  const uint32_t warps = gridDim.x * (kCopyThreads / kWarp);
  for (uint32_t i = blockIdx.x * (kCopyThreads / kWarp) + static_cast<uint32_t>(warp_of()); i < count;
       i += warps) {
    const HotPageMiss miss = hot.misses[i];
    int32_t frame = -1;
    if (lane_of() == 0) {
      frame = take_frame(hot, step);
      if (frame >= 0) {
        hot.pages[frame] = miss.page;
        hot.last_use[frame] = step;
        *miss.slot = frame;
      }
    }
    frame = __shfl_sync(kAllLanes, frame, 0);
    if (frame < 0) return;  // nor is there one for the next
    copy_page(miss, hot.memory[frame], hot.frame_bytes);
  }
}

// Which of a partition's pages are in frames, a bit each; and how many runs they and the rest are: a page in a frame
// is one, and so are pages between such that lie where they are at home.
struct PartitionRuns {
  uint32_t in_frames = 0;
  int32_t count = 1;

  __device__ PartitionRuns(const HotPages& hot, const PartitionPages& pages) {
    if (!pages.cached) return;
    for (int32_t j = 0; j < pages.count; j++)
      if (has_page(hot, pages.slots[j], pages.first_page + static_cast<uint64_t>(j))) in_frames |= 1u << j;
    const uint32_t home = ~in_frames & (0xFFFFFFFFu >> (kMostHotPages - pages.count));
    count = __popc(in_frames) + __popc(home & ~(home << 1));
  }
};
static_assert(kMostHotPages == 32);

// A thread a partition, in the order of selection.
__global__ void __launch_bounds__(kLookUpThreads) write_runs_kernel(LookupArgs args, HotPages hot) {
  in_turn();
  __shared__ int32_t warp_sums[kLookUpThreads / kWarp];
  Lookup& lookup = args.lookups[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const size_t row = row_bytes(args.kv, args.head_dim);
  if (blockIdx.x == 0 && thread == 0) hot.counts->misses = 0;  // for the next pass
  int32_t written = 0;
  for (int32_t tile = 0; tile < lookup.retrieved_count; tile += kLookUpThreads) {
    const int32_t i = tile + thread, left = lookup.retrieved_count - tile;
    const bool own = thread < left;
    const PartitionRef ref = lookup.retrieved[own ? i : tile];
    const SegmentView& segment = lookup.segments[ref.segment];
    const PartitionPages pages(segment, ref.partition);
    const PartitionRuns runs(hot, pages);
    int32_t count = own ? runs.count : 0;
    const int32_t of_warp = warp_running_sum(count);
    if (lane_of() == kWarp - 1) warp_sums[warp_of()] = of_warp;
    __syncthreads();
    int32_t all = 0, before = of_warp - count;
    for (int warp = 0; warp < kLookUpThreads / kWarp; warp++) {
      if (warp < warp_of()) before += warp_sums[warp];
      all += warp_sums[warp];
    }
    __syncthreads();
    const int32_t here = min(left, kLookUpThreads);
    // What would leave less room than a run each for those that follow is read where it lies.
    const bool in_pages = written + all + (left - here) <= lookup.run_room;
    if (own) {
      const std::byte* const keys =
          static_cast<const std::byte*>(segment.keys) + static_cast<size_t>(pages.begin) * row;
      const std::byte* const values =
          static_cast<const std::byte*>(segment.values) + static_cast<size_t>(pages.begin) * row;
      KvRun* to = lookup.runs + written + (in_pages ? before : thread);
      if (!in_pages || runs.in_frames == 0) {
        *to = {keys, values, pages.tokens};
      } else {
        for (int32_t j = 0; j < pages.count;) {
          const size_t offset = static_cast<size_t>(j * kHotPageTokens) * row;
          int32_t end = j + 1;
          if (runs.in_frames >> j & 1) {
            const std::byte* const frame = hot.memory[pages.slots[j]];
            *to++ = {frame, frame + hot.frame_bytes / 2, pages.tokens_of(j)};
          } else {
            while (end < pages.count && (runs.in_frames >> end & 1) == 0) end++;
            *to++ = {keys + offset, values + offset,
                     min(pages.tokens, end * kHotPageTokens) - j * kHotPageTokens};
          }
          j = end;
        }
      }
    }
    written += in_pages ? all : here;
  }
  if (thread == 0) lookup.run_count = written;
}

cudaError_t retrieve_hot(cudaStream_t stream, const LookupArgs& args, const HotPages& hot) {
  if (hot.frame_bytes != 2 * kHotPageTokens * row_bytes(args.kv, args.head_dim) || hot.frame_bytes % 32)
    return cudaErrorInvalidValue;
  const auto lookups = static_cast<unsigned>(args.count);
  const int32_t copies = (hot.most_misses + kCopyThreads / kWarp - 1) / (kCopyThreads / kWarp);
  cudaError_t error = launch(look_up_kernel, lookups, kLookUpThreads, 0, stream, args, hot);
  if (error == cudaSuccess)
    error =
        launch(copy_misses_kernel, static_cast<unsigned>(copies < kMostCopyBlocks ? copies : kMostCopyBlocks),
               kCopyThreads, 0, stream, hot);
  if (error == cudaSuccess) error = launch(write_runs_kernel, lookups, kLookUpThreads, 0, stream, args, hot);
  return error;
}

}  // namespace wi::cuda
