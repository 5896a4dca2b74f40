// Exact attention of lookups (one query position at one KV head each) over their steady zone and retrieved
// runs: softmax(q·k/√d)·v with an online softmax, f32 throughout, by CUDA cores. Bound by reading keys and
// values, each once for all query heads of the group (up to 16).
//
// A lookup is cut into chunks of tokens (flash decoding), a block each; the last block of a lookup to end
// merges their results in order. The cut depends on the lookup's tokens alone, so results are the same bits
// whatever else is in the launch. How many tokens there are is read on the device: a captured launch serves
// every step.
//
// A block goes through its chunk in tiles of 64 tokens, whose rows are on their way to shared memory while the
// tile before is worked on, if shared memory has room for two; where it has none for one, a tile's values take the
// place of its keys. Two threads share a token's scores, each with half of the dimensions; then a
// thread has two dimensions of the values, for as many tokens as it takes to give each thread work.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

constexpr int kAttendThreads = 128;
constexpr int kAttendWarps = kAttendThreads / kWarp;
constexpr int kTile = 64;       // tokens
constexpr int kMostHeads = 16;  // of a group in one block
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

constexpr int blocks_of_heads(int group) { return (group + kMostHeads - 1) / kMostHeads; }

struct AttendLaunch {
  LookupArgs args;
  AttendWorkspace workspace;
  int32_t stages;  // tiles in shared memory; 0: half of one, first its keys, then its values
};

// A part of a lookup's runs, with how many tokens come before each one's end.
struct RunWindow {
  const std::byte* keys[kAttendThreads];
  const std::byte* values[kAttendThreads];
  int32_t ends[kAttendThreads];
  int32_t warp_sums[kAttendWarps];
};

struct TileRows {
  const std::byte* keys[kTile];
  const std::byte* values[kTile];
};

// Shared memory; then the query (head_dim / 8, kHeads, 8), then the tiles: each the keys' rows, then the
// values'.
template <int kHeads>
struct AttendMemory {
  RunWindow window;
  TileRows rows[2];  // of each stage
  alignas(16) float weights[kTile][kHeads];
  float warp_maxima[kAttendWarps][kHeads];
  float maxima[kHeads], factors[kHeads];
  int32_t sums[kAttendWarps];
  int32_t last;
};

__device__ __forceinline__ const KvRun& run_of(const Lookup& lookup, int32_t number) {
  return number < lookup.steady_count ? lookup.steady[number] : lookup.runs[number - lookup.steady_count];
}

// Rows are 16 bytes further apart than they are long, so that neighbours' begin in other banks.
template <DType kKv>
constexpr __host__ __device__ int tile_stride(int head_dim) {
  return head_dim * static_cast<int>(sizeof(Kv<kKv>)) + 16;
}

// A chunk's tiles, one after the other. All threads of the block call everything.
template <DType kKv, int kHeads>
class Tiles {
 public:
  __device__ Tiles(const Lookup& lookup, AttendMemory<kHeads>& memory, std::byte* tiles, bool halves,
                   int head_dim, int32_t begin, int32_t end)
      : lookup_(lookup),
        memory_(memory),
        tiles_(tiles),
        halves_(halves),
        head_dim_(head_dim),
        at_(begin),
        end_(end) {
    open_window(0, 0);
    while (at_ < end_ && at_ >= window_end_) open_window(window_first_ + kAttendThreads, window_end_);
  }

  // Asks for the next tile's rows, for this stage: of halves, for its keys. Returns its tokens; none: the chunk has
  // ended. Tiles are of the chunk's tokens, wherever windows end: how tokens are cut into runs changes no bit.
  __device__ int32_t ask(int stage) {
    const int32_t count = min(max(end_ - at_, 0), kTile);
    const int thread = static_cast<int>(threadIdx.x);
    const int row_size = head_dim_ * static_cast<int>(sizeof(Kv<kKv>));
    for (int32_t asked = 0; asked < count;) {
      while (at_ == window_end_) open_window(window_first_ + kAttendThreads, window_end_);
      const int32_t here = min(count - asked, window_end_ - at_);
      if (thread >= asked && thread < asked + here) {
        const int32_t token = at_ + thread - asked;
        // The first run that ends beyond the token.
        int low = 0, high = kAttendThreads - 1;
        while (low < high) {
          const int middle = (low + high) / 2;
          if (memory_.window.ends[middle] > token)
            high = middle;
          else
            low = middle + 1;
        }
        const int32_t run_begin = low == 0 ? window_begin_ : memory_.window.ends[low - 1];
        const int64_t offset = int64_t{token - run_begin} * row_size;
        memory_.rows[stage].keys[thread] = memory_.window.keys[low] + offset;
        memory_.rows[stage].values[thread] = memory_.window.values[low] + offset;
      }
      asked += here;
      at_ += here;
    }
    __syncthreads();
    const int vectors = row_size / 16;
    std::byte* keys = keys_of(stage);
    std::byte* values = values_of(stage);
    for (int i = thread; i < count * vectors; i += kAttendThreads) {
      const int row = i / vectors, vector = i - row * vectors;
      const int to = row * tile_stride<kKv>(head_dim_) + vector * 16;
      copy_16_ahead(keys + to, memory_.rows[stage].keys[row] + vector * 16);
      if (!halves_) copy_16_ahead(values + to, memory_.rows[stage].values[row] + vector * 16);
    }
    commit_copies();
    return count;
  }

  // Of halves, for the values of the tile whose keys nobody needs any more.
  __device__ void ask_values(int32_t count) {
    const int vectors = head_dim_ * static_cast<int>(sizeof(Kv<kKv>)) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += kAttendThreads) {
      const int row = i / vectors, vector = i - row * vectors;
      copy_16_ahead(values_of(0) + row * tile_stride<kKv>(head_dim_) + vector * 16,
                    memory_.rows[0].values[row] + vector * 16);
    }
    commit_copies();
  }

  __device__ std::byte* keys_of(int stage) const {
    return tiles_ + stage * 2 * kTile * tile_stride<kKv>(head_dim_);
  }
  __device__ std::byte* values_of(int stage) const {
    return halves_ ? tiles_ : keys_of(stage) + kTile * tile_stride<kKv>(head_dim_);
  }

 private:
  __device__ void open_window(int32_t first, int32_t tokens_before) {
    __syncthreads();  // nobody looks at the last one any more
    const int thread = static_cast<int>(threadIdx.x);
    RunWindow& window = memory_.window;
    int32_t tokens = 0;
    if (first + thread < lookup_.steady_count + lookup_.run_count) {
      const KvRun& run = run_of(lookup_, first + thread);
      tokens = static_cast<int32_t>(run.tokens);
      window.keys[thread] = static_cast<const std::byte*>(run.keys);
      window.values[thread] = static_cast<const std::byte*>(run.values);
    }
    int32_t sum = tokens;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, step);
      if (lane_of() >= step) sum += before;
    }
    if (lane_of() == kWarp - 1) window.warp_sums[warp_of()] = sum;
    __syncthreads();
    int32_t all = tokens_before;
#pragma unroll
    for (int warp = 0; warp < kAttendWarps; warp++) {
      if (warp < warp_of()) sum += window.warp_sums[warp];
      all += window.warp_sums[warp];
    }
    window.ends[thread] = tokens_before + sum;
    __syncthreads();
    window_first_ = first;
    window_begin_ = tokens_before;
    window_end_ = all;
  }

  const Lookup& lookup_;
  AttendMemory<kHeads>& memory_;
  std::byte* tiles_;
  bool halves_;
  int head_dim_;
  int32_t at_, end_;
  int32_t window_first_ = 0, window_begin_ = 0, window_end_ = 0;
};

// Tokens of a lookup: the same number to all threads.
__device__ __forceinline__ int32_t tokens_of(const Lookup& lookup, int32_t* sums) {
  int32_t tokens = 0;
  const int32_t runs = lookup.steady_count + lookup.run_count;
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

// Of so many tokens: chunks of whole tiles, at most kMostChunks.
__device__ __forceinline__ int32_t chunk_tokens(int32_t tokens) {
  const int32_t even = (tokens + kMostChunks - 1) / kMostChunks;
  return max((even + kTile - 1) / kTile * kTile, kLeastChunk);
}

// Attends tokens [begin, end) of a lookup with heads [first_head, first_head + heads) of its group. partial:
// acc (group, head_dim), not normalised, then max (group), in units of ln 2, then sum (group).
template <DType kKv, int kHeads>
__device__ void attend_tokens(const AttendLaunch& launch, const Lookup& lookup, AttendMemory<kHeads>& memory,
                              const float* query, std::byte* tile_memory, int32_t begin, int32_t end,
                              int first_head, int heads, float* partial) {
  const int head_dim = launch.args.head_dim, group = launch.args.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int token = thread / 2, half = thread % 2;  // of the scores
  // Of the values: two dimensions, of every `strands`th token. Threads that have none do as the first do.
  const int pairs = head_dim / 2;
  const int strands = max(kAttendThreads / pairs, 1);
  const int strand = thread / pairs, pair = thread - strand * pairs;
  const bool has_values = strand < strands;
  const int stride = tile_stride<kKv>(head_dim);

  Tiles<kKv, kHeads> tiles(lookup, memory, tile_memory, launch.stages == 0, head_dim, begin, end);
  if (thread < kHeads) memory.maxima[thread] = kLowest;
  float sums[kHeads] = {};  // of this thread's tokens; of every second head
  float acc[kHeads][2] = {};

  int stage = 0;
  int32_t count = tiles.ask(0);
  while (count > 0) {
    int32_t coming = 0;
    if (launch.stages > 1) {
      coming = tiles.ask(1 - stage);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();

    float scores[kHeads] = {};
    if (token < count) {
      const std::byte* row = tiles.keys_of(stage) + token * stride;
      for (int eight = half; eight < head_dim / 8; eight += 2) {
        float key[8];
        load_floats<8>(reinterpret_cast<const Kv<kKv>*>(row) + eight * 8, key);
        const float* q = query + eight * 8 * kHeads;
#pragma unroll
        for (int h = 0; h < kHeads; h++) {
          float own[8];
          load_floats<8>(q + h * 8, own);
#pragma unroll
          for (int i = 0; i < 8; i++) scores[h] = fmaf(key[i], own[i], scores[h]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      scores[h] += __shfl_xor_sync(kAllLanes, scores[h], 1);
      float highest = token < count ? scores[h] : kLowest;
#pragma unroll
      for (int step = 2; step < kWarp; step *= 2)
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
      if (lane_of() == 0) memory.warp_maxima[warp_of()][h] = highest;
    }
    __syncthreads();
    if (thread < kHeads) {
      const float old = memory.maxima[thread];
      float highest = old;
#pragma unroll
      for (int warp = 0; warp < kAttendWarps; warp++)
        highest = fmaxf(highest, memory.warp_maxima[warp][thread]);
      memory.factors[thread] = exp2f(old - highest);
      memory.maxima[thread] = highest;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      const float factor = memory.factors[h];
      acc[h][0] *= factor;
      acc[h][1] *= factor;
      if (h % 2 != half && kHeads > 1) continue;
      const float weight = token < count ? exp2f(scores[h] - memory.maxima[h]) : 0.0f;
      sums[h] = fmaf(sums[h], factor, weight);
      if (kHeads > 1 || half == 0) memory.weights[token][h] = weight;
    }
    __syncthreads();
    if (launch.stages == 0) {
      tiles.ask_values(count);
      wait_for_copies<0>();
      __syncthreads();
    }
    if (has_values) {
      const std::byte* values = tiles.values_of(stage) + pair * 2 * static_cast<int>(sizeof(Kv<kKv>));
      for (int t = strand; t < count; t += strands) {
        const Kv<kKv>* value = reinterpret_cast<const Kv<kKv>*>(values + t * stride);
        const float first = to_float(value[0]), second = to_float(value[1]);
#pragma unroll
        for (int h = 0; h < kHeads; h++) {
          const float weight = memory.weights[t][h];
          acc[h][0] = fmaf(weight, first, acc[h][0]);
          acc[h][1] = fmaf(weight, second, acc[h][1]);
        }
      }
    }
    __syncthreads();
    if (launch.stages > 1) {
      count = coming;
      stage = 1 - stage;
    } else {
      count = tiles.ask(0);
    }
  }
  wait_for_copies<0>();

  // Strands, and tokens' sums, in order. Where the tiles were is room: strands · head_dim ≤ 256.
  float* strand_sums = reinterpret_cast<float*>(tile_memory);
#pragma unroll
  for (int h = 0; h < kHeads; h++) {
    float sum = kHeads > 1 ? sums[h] : (half == 0 ? sums[h] : 0.0f);
    sum = warp_sum(sum);
    if (lane_of() == 0) memory.warp_maxima[warp_of()][h] = sum;
    if (has_values) {
      strand_sums[strand * head_dim + pair * 2] = acc[h][0];
      strand_sums[strand * head_dim + pair * 2 + 1] = acc[h][1];
    }
    __syncthreads();
    if (h < heads) {
      const int head = first_head + h;
      for (int i = thread; i < head_dim; i += kAttendThreads) {
        float all = 0;
        for (int s = 0; s < strands; s++) all += strand_sums[s * head_dim + i];
        partial[head * head_dim + i] = all;
      }
      if (thread == 0) {
        float all = 0;
#pragma unroll
        for (int warp = 0; warp < kAttendWarps; warp++) all += memory.warp_maxima[warp][h];
        partial[group * head_dim + head] = memory.maxima[h];
        partial[group * head_dim + group + head] = all;
      }
    }
    __syncthreads();
  }
}

// Partial softmaxes of a lookup's chunks to its output, in the order of the chunks.
__device__ void merge_chunks(const LookupArgs& args, const Lookup& lookup, const float* partials,
                             int32_t chunks, int first_head, int heads) {
  const int head_dim = args.head_dim, group = args.group;
  const int64_t stride = partial_floats(group, head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < heads * head_dim; i += kAttendThreads) {
    const int head = first_head + i / head_dim, at = i % head_dim;
    const float* maxima = partials + group * head_dim + head;
    float highest = kLowest;
    for (int32_t c = 0; c < chunks; c++) highest = fmaxf(highest, __ldcg(maxima + c * stride));
    float sum = 0, acc = 0;
    for (int32_t c = 0; c < chunks; c++) {
      const float factor = exp2f(__ldcg(maxima + c * stride) - highest);
      sum = fmaf(__ldcg(maxima + group + c * stride), factor, sum);
      acc = fmaf(__ldcg(partials + c * stride + head * head_dim + at), factor, acc);
    }
    lookup.out[head * head_dim + at] = sum == 0 ? 0.0f : acc / sum;
    if (at == 0) lookup.lse[head] = sum == 0 ? -INFINITY : fmaf(highest, kLn2, logf(sum));
  }
}

template <DType kKv, int kHeads>
__global__ void __launch_bounds__(kAttendThreads, kHeads > 8 ? 2 : 3) attend_kernel(AttendLaunch launch) {
  AttendMemory<kHeads>& memory = *reinterpret_cast<AttendMemory<kHeads>*>(block_memory());
  const LookupArgs& args = launch.args;
  const int head_dim = args.head_dim, thread = static_cast<int>(threadIdx.x);
  const int number = static_cast<int>(blockIdx.y);
  const int first_head = static_cast<int>(blockIdx.z) * kMostHeads;
  const int heads = min(args.group - first_head, kHeads);
  const Lookup& lookup = args.lookups[number];
  const int32_t tokens = tokens_of(lookup, memory.sums);
  const int32_t step = chunk_tokens(tokens);
  const int32_t chunks = max((tokens + step - 1) / step, 1);
  if (static_cast<int32_t>(blockIdx.x) >= chunks) return;
  if (blockIdx.x == 0 && blockIdx.z == 0 && thread == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&lookup.counters->attended_tokens),
              static_cast<unsigned long long>(tokens));

  float* query = reinterpret_cast<float*>(block_memory() + sizeof(AttendMemory<kHeads>));
  std::byte* tile_memory = reinterpret_cast<std::byte*>(query + head_dim * kHeads);
  for (int i = thread; i < head_dim * kHeads; i += kAttendThreads) {
    const int h = i / 8 % kHeads, at = i / 8 / kHeads * 8 + i % 8;
    query[i] = h < heads ? lookup.query[(first_head + h) * head_dim + at] * (args.scale * kLog2E) : 0.0f;
  }
  __syncthreads();

  const int64_t stride = partial_floats(args.group, head_dim);
  float* partials = launch.workspace.partials + number * kMostChunks * stride;
  uint32_t done = 0;
  for (int32_t chunk = static_cast<int32_t>(blockIdx.x); chunk < chunks;
       chunk += static_cast<int32_t>(gridDim.x), done++)
    attend_tokens<kKv, kHeads>(launch, lookup, memory, query, tile_memory, chunk * step,
                               min(tokens, (chunk + 1) * step), first_head, heads, partials + chunk * stride);

  __threadfence();
  __syncthreads();
  if (thread == 0) {
    unsigned* arrived = launch.workspace.arrived + number * gridDim.z + blockIdx.z;
    const bool last = atomicAdd(arrived, done) + done == static_cast<uint32_t>(chunks);
    if (last) *arrived = 0;
    memory.last = last;
  }
  __syncthreads();
  if (!memory.last) return;
  __threadfence();
  merge_chunks(args, lookup, partials, chunks, first_head, heads);
}

AttendWorkspaceSize attend_workspace(int32_t lookups, int32_t group, int32_t head_dim) {
  const size_t count = static_cast<size_t>(lookups);
  return {.floats = count * kMostChunks * static_cast<size_t>(partial_floats(group, head_dim)),
          .counts = count * static_cast<size_t>(blocks_of_heads(group))};
}

template <DType kKv, int kHeads>
constexpr size_t attend_shared(int head_dim, int stages) {
  const size_t half = kTile * static_cast<size_t>(tile_stride<kKv>(head_dim));
  return sizeof(AttendMemory<kHeads>) + static_cast<size_t>(head_dim) * kHeads * sizeof(float) +
         (stages > 0 ? 2 * static_cast<size_t>(stages) * half : half);
}

template <DType kKv, int kHeads>
cudaError_t launch_attend(cudaStream_t stream, AttendLaunch given) {
  static_assert(attend_shared<kKv, kHeads>(256, 0) <= kLeastShared);
  given.stages = 2;
  while (given.stages > 0 &&
         attend_shared<kKv, kHeads>(given.args.head_dim, given.stages) > given.workspace.shared_bytes)
    given.stages--;
  const dim3 grid(static_cast<unsigned>(given.workspace.blocks), static_cast<unsigned>(given.args.count),
                  static_cast<unsigned>(blocks_of_heads(given.args.group)));
  return launch(attend_kernel<kKv, kHeads>, grid, kAttendThreads,
                attend_shared<kKv, kHeads>(given.args.head_dim, given.stages), stream, given);
}

template <DType kKv>
cudaError_t launch_heads(cudaStream_t stream, const AttendLaunch& given) {
  const int group = given.args.group;
  if (group == 1) return launch_attend<kKv, 1>(stream, given);
  if (group == 2) return launch_attend<kKv, 2>(stream, given);
  if (group <= 4) return launch_attend<kKv, 4>(stream, given);
  if (group <= 8) return launch_attend<kKv, 8>(stream, given);
  return launch_attend<kKv, 16>(stream, given);
}

cudaError_t attend(cudaStream_t stream, const LookupArgs& args, const AttendWorkspace& workspace) {
  if (args.head_dim % 8 || args.head_dim > 256 || args.head_dim < 8 || args.group < 1 ||
      workspace.blocks < 1 || workspace.blocks > kMostChunks || workspace.shared_bytes < kLeastShared)
    return cudaErrorInvalidValue;
  const AttendLaunch given = {args, workspace, 0};
  switch (args.kv) {
    case DType::f32:
      return launch_heads<DType::f32>(stream, given);
    case DType::f16:
      return launch_heads<DType::f16>(stream, given);
    case DType::bf16:
      return launch_heads<DType::bf16>(stream, given);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wi::cuda
