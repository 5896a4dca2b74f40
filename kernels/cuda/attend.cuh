// What the kernels of exact attention share (attend.cu, attend_tensor.cu): how a lookup's tokens are cut into
// chunks, where in its runs their rows are, and how the chunks' results come together.
//
// A lookup is cut into chunks of tokens (flash decoding), which blocks take in turn. The last block of every
// kMergeFan chunks to end merges their partial softmaxes in order, into the first one's place, and the last of
// those does so with what they left. The cut depends on the lookup's tokens alone, so results are the same bits
// whatever else is in the launch. How many tokens there are is read on the device: a captured launch serves
// every step.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

namespace wi::cuda {

constexpr int kAttendThreads = 128;
constexpr int kAttendWarps = kAttendThreads / kWarp;
constexpr int kTile = kChunkStep;  // tokens
constexpr int kMostHeads = 16;     // of a group in one block
constexpr int kMergeFan = 32;      // chunks merged at a time: a lane each
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
static_assert(kMostChunks <= kMergeFan * kMergeFan);

constexpr int kLeastHeads = 8;  // likewise: columns of a product of tensor cores

constexpr int blocks_of_heads(int group) { return (group + kMostHeads - 1) / kMostHeads; }
// Counters of a lookup and a block of heads: of each kMergeFan chunks, and of those.
constexpr int kArrivals = kMostChunks / kMergeFan + 1;

struct AttendLaunch {
  LookupArgs args;
  AttendWorkspace workspace;
  int32_t stages;  // of attend.cu's tiles in shared memory; 0: half of one, first its keys, then its values
};

__device__ __forceinline__ KvRun run_of(const Lookup& lookup, int32_t number) {
  if (number < lookup.steady_count) return lookup.steady[number];
  if (lookup.runs) return lookup.runs[number - lookup.steady_count];
  const SegmentView& segment = lookup.segments[number - lookup.steady_count];
  return {segment.keys, segment.values, segment.tokens};
}

// ---- where tokens are

constexpr int kRunsOfThread = 3;
constexpr int kWindowRuns = kRunsOfThread * kAttendThreads;

// A part of a lookup's runs, with how many tokens come before each one's end.
struct RunWindow {
  const std::byte* keys[kWindowRuns];
  const std::byte* values[kWindowRuns];
  int32_t ends[kWindowRuns];
  int32_t warp_sums[kAttendWarps];
};

// Tokens [begin, end) of a lookup, one after the other. All threads of the block call everything.
class TokenRows {
 public:
  __device__ TokenRows(const Lookup& lookup, RunWindow& window, int row_bytes, int32_t begin, int32_t end)
      : lookup_(lookup), window_(window), row_bytes_(row_bytes), at_(begin), end_(end) {
    open_window(0, 0);
    while (at_ < end_ && at_ >= window_end_) open_window(window_first_ + kWindowRuns, window_end_);
  }

  // Where the next tokens' keys and values are, up to `most` of them: their number; none: all have been asked
  // for. For others after a barrier.
  __device__ int32_t take(const std::byte** keys, const std::byte** values, int32_t most) {
    const int32_t count = min(max(end_ - at_, 0), most);
    for (int32_t asked = 0; asked < count;) {
      while (at_ == window_end_) open_window(window_first_ + kWindowRuns, window_end_);
      const int32_t here = min(count - asked, window_end_ - at_);
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < here; i += kAttendThreads) {
        const int32_t token = at_ + i;
        // The first run that ends beyond the token.
        int low = 0, high = kWindowRuns - 1;
        while (low < high) {
          const int middle = (low + high) / 2;
          if (window_.ends[middle] > token)
            high = middle;
          else
            low = middle + 1;
        }
        const int32_t run_begin = low == 0 ? window_begin_ : window_.ends[low - 1];
        const int64_t offset = int64_t{token - run_begin} * row_bytes_;
        keys[asked + i] = window_.keys[low] + offset;
        values[asked + i] = window_.values[low] + offset;
      }
      asked += here;
      at_ += here;
    }
    return count;
  }

 private:
  __device__ void open_window(int32_t first, int32_t tokens_before) {
    __syncthreads();  // nobody looks at the last one any more
    const int mine = static_cast<int>(threadIdx.x) * kRunsOfThread;
    int32_t tokens[kRunsOfThread], sum = 0;
#pragma unroll
    for (int i = 0; i < kRunsOfThread; i++) {
      tokens[i] = 0;
      if (first + mine + i >= lookup_.steady_count + lookup_.run_count) continue;
      const KvRun run = run_of(lookup_, first + mine + i);
      tokens[i] = static_cast<int32_t>(run.tokens);
      window_.keys[mine + i] = static_cast<const std::byte*>(run.keys);
      window_.values[mine + i] = static_cast<const std::byte*>(run.values);
    }
#pragma unroll
    for (int i = 0; i < kRunsOfThread; i++) sum += tokens[i];
    int32_t all = 0;
    int32_t before = tokens_before + block_running_sum(sum, window_.warp_sums, all);
#pragma unroll
    for (int i = 0; i < kRunsOfThread; i++) window_.ends[mine + i] = before += tokens[i];
    __syncthreads();
    window_first_ = first;
    window_begin_ = tokens_before;
    window_end_ = tokens_before + all;
  }

  const Lookup& lookup_;
  RunWindow& window_;
  int row_bytes_;
  int32_t at_, end_;
  int32_t window_first_ = 0, window_begin_ = 0, window_end_ = 0;
};

// Tokens of a lookup: the same number to all threads.
__device__ __forceinline__ int32_t tokens_of(const Lookup& lookup, int32_t* sums) {
  int32_t tokens = 0;
  const int32_t runs = lookup.steady_count + lookup.run_count;
#pragma unroll 4
  for (int32_t run = static_cast<int32_t>(threadIdx.x); run < runs; run += kAttendThreads)
    tokens += static_cast<int32_t>(run_of(lookup, run).tokens);
  tokens = __reduce_add_sync(kAllLanes, tokens);
  if (lane_of() == 0) sums[warp_of()] = tokens;
  __syncthreads();
  tokens = 0;
#pragma unroll
  for (int warp = 0; warp < kAttendWarps; warp++) tokens += sums[warp];
  return tokens;
}

__device__ __forceinline__ void count_attended(const Lookup& lookup, int32_t tokens) {
  if (blockIdx.x != 0 || blockIdx.z != 0 || threadIdx.x != 0) return;
  LookupCounters& counters = *lookup.counters;
  atomicAdd(reinterpret_cast<unsigned long long*>(&counters.attended_tokens),
            static_cast<unsigned long long>(tokens));
  if (lookup.runs) return;  // what was picked, select has counted
  counters.retrieved += lookup.segment_count;
  counters.retrieved_tokens += lookup.indexed_tokens;
}

// ---- partial results

// Of a chunk: acc (group, head_dim), not normalised, then max (group), in units of ln 2, then sum (group).
struct MergeMemory {
  float factors[kMostHeads][kMergeFan];
  float maxima[kMostHeads], sums[kMostHeads];
  int32_t last;
};

// The last of `count` threads to call this with a counter: true. It counts anew then.
__device__ __forceinline__ bool is_last(uint32_t* arrived, uint32_t count) {
  const bool last = atomicAdd(arrived, 1u) + 1 == count;
  if (last) *arrived = 0;
  return last;
}

// `count` partial softmaxes, `stride` floats apart, in order: into the first one, or, to_out, to the lookup's
// output.
__device__ inline void merge_partials(const LookupArgs& args, const Lookup& lookup, float* partials,
                                      int64_t stride, int32_t count, int first_head, int heads, bool to_out,
                                      MergeMemory& memory) {
  const int head_dim = args.head_dim, group = args.group, thread = static_cast<int>(threadIdx.x);
  const int64_t maxima = int64_t{group} * head_dim + first_head;
  for (int h = warp_of(); h < heads; h += kAttendWarps) {
    const bool one = lane_of() < count;
    const float* own = partials + lane_of() * stride + maxima + h;
    const float highest = one ? __ldcg(own) : kLowest, sum = one ? __ldcg(own + group) : 0.0f;
    const float all = warp_max(highest), factor = one ? exp2f(highest - all) : 0.0f;
    memory.factors[h][lane_of()] = factor;
    const float of_all = warp_sum(sum * factor);
    if (lane_of() == 0) {
      memory.maxima[h] = all;
      memory.sums[h] = of_all;
    }
  }
  __syncthreads();
  const int quads = head_dim / 4;
  for (int i = thread; i < heads * quads; i += kAttendThreads) {
    const int h = i / quads;
    float4* const own = reinterpret_cast<float4*>(partials + first_head * head_dim) + i;
    const float* factors = memory.factors[h];
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int32_t c = 0; c < count; c++) {
      const float4 part = __ldcg(own + c * (stride / 4));
      const float factor = factors[c];
      sum = make_float4(fmaf(part.x, factor, sum.x), fmaf(part.y, factor, sum.y), fmaf(part.z, factor, sum.z),
                        fmaf(part.w, factor, sum.w));
    }
    if (to_out) {
      const float all = memory.sums[h], by = all == 0 ? 0.0f : 1 / all;
      float* out = lookup.out + first_head * head_dim + i * 4;
      out[0] = sum.x * by;
      out[1] = sum.y * by;
      out[2] = sum.z * by;
      out[3] = sum.w * by;
    } else {
      *own = sum;
    }
  }
  if (thread >= heads) return;
  const float all = memory.sums[thread];
  if (to_out) {
    lookup.lse[first_head + thread] = all == 0 ? -INFINITY : fmaf(memory.maxima[thread], kLn2, logf(all));
  } else {
    partials[maxima + thread] = memory.maxima[thread];
    partials[maxima + group + thread] = all;
  }
}

__device__ __forceinline__ float* partial_of(const AttendLaunch& launch, int number, int32_t chunk) {
  const int64_t stride = partial_floats(launch.args.group, launch.args.head_dim);
  return launch.workspace.partials + (number * kMostChunks + chunk) * stride;
}

// A block has written the partial result of a chunk.
__device__ inline void chunk_is_done(const AttendLaunch& launch, const Lookup& lookup, int number,
                                     int32_t chunk, int32_t chunks, int first_head, int heads,
                                     MergeMemory& memory) {
  const int64_t stride = partial_floats(launch.args.group, launch.args.head_dim);
  float* const partials = partial_of(launch, number, 0);
  uint32_t* const arrived = launch.workspace.arrived +
                            (number * static_cast<int>(gridDim.z) + static_cast<int>(blockIdx.z)) * kArrivals;
  const int32_t some = chunk / kMergeFan, somes = (chunks + kMergeFan - 1) / kMergeFan;
  const auto all_have = [&](uint32_t* counter, int32_t count) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) memory.last = is_last(counter, static_cast<uint32_t>(count));
    __syncthreads();
    const bool last = memory.last != 0;
    if (last) __threadfence();
    return last;
  };
  const int32_t count = min(chunks - some * kMergeFan, kMergeFan);
  if (!all_have(arrived + some, count)) return;
  merge_partials(launch.args, lookup, partials + some * kMergeFan * stride, stride, count, first_head, heads,
                 somes == 1, memory);
  if (somes == 1 || !all_have(arrived + kArrivals - 1, somes)) return;
  merge_partials(launch.args, lookup, partials, kMergeFan * stride, somes, first_head, heads, true, memory);
}

// Keys and values of 16 bits, by tensor cores (attend_tensor.cu); and the blocks of it that a multiprocessor has at a time.
int attend_tensor_blocks(const LookupArgs& args);
[[nodiscard]] cudaError_t attend_tensor(cudaStream_t stream, const AttendLaunch& given);

}  // namespace wi::cuda
