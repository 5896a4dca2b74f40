// Exact attention of lookups (one query position at one KV head each) over their steady zone and retrieved
// runs: softmax(q·k/√d)·v with an online softmax. Here what is in f32, by CUDA cores; keys and values of 16 bits
// go through attend_tensor.cu.
//
// A block goes through its chunk in tiles of 64 tokens, whose rows are on their way to shared memory while the
// tile before is worked on, or other blocks are: as many tiles of a block as leave room for as many blocks as there can
// be; where not one does, a tile's values take the place of its keys. Two threads share a token's scores, each with half of the dimensions; then a
// thread has two dimensions of the values, for as many tokens as it takes to give each thread work.
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/launch.h"

namespace wi::cuda {

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
  MergeMemory merge;
};

// Rows are 16 bytes further apart than they are long, so that neighbours' begin in other banks.
constexpr __host__ __device__ int tile_stride(int head_dim) {
  return head_dim * static_cast<int>(sizeof(float)) + 16;
}

// A chunk's tiles, one after the other. All threads of the block call everything.
template <int kHeads>
class Tiles {
 public:
  __device__ Tiles(const Lookup& lookup, AttendMemory<kHeads>& memory, std::byte* tiles, bool halves,
                   int head_dim, int32_t begin, int32_t end)
      : memory_(memory),
        tiles_(tiles),
        halves_(halves),
        head_dim_(head_dim),
        rows_(lookup, memory.window, head_dim * static_cast<int>(sizeof(float)), begin, end) {}

  // Asks for the next tile's rows, for this stage: of halves, for its keys. Returns its tokens; none: the chunk has
  // ended. Tiles are of the chunk's tokens, wherever windows end: how tokens are cut into runs changes no bit.
  __device__ int32_t ask(int stage) {
    TileRows& rows = memory_.rows[stage];
    const int32_t count = rows_.take(rows.keys, rows.values, kTile);
    __syncthreads();
    const int vectors = head_dim_ / 4;
    for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += kAttendThreads) {
      const int row = i / vectors, vector = i - row * vectors;
      const int to = row * tile_stride(head_dim_) + vector * 16;
      copy_16_ahead(keys_of(stage) + to, rows.keys[row] + vector * 16);
      if (!halves_) copy_16_ahead(values_of(stage) + to, rows.values[row] + vector * 16);
    }
    commit_copies();
    return count;
  }

  // Of halves, for the values of the tile whose keys nobody needs any more.
  __device__ void ask_values(int32_t count) {
    const int vectors = head_dim_ / 4;
    for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += kAttendThreads) {
      const int row = i / vectors, vector = i - row * vectors;
      copy_16_ahead(values_of(0) + row * tile_stride(head_dim_) + vector * 16,
                    memory_.rows[0].values[row] + vector * 16);
    }
    commit_copies();
  }

  __device__ std::byte* keys_of(int stage) const {
    return tiles_ + stage * 2 * kTile * tile_stride(head_dim_);
  }
  __device__ std::byte* values_of(int stage) const {
    return halves_ ? tiles_ : keys_of(stage) + kTile * tile_stride(head_dim_);
  }

 private:
  AttendMemory<kHeads>& memory_;
  std::byte* tiles_;
  bool halves_;
  int head_dim_;
  TokenRows rows_;
};

// Attends tokens [begin, end) of a lookup with heads [first_head, first_head + heads) of its group. partial:
// acc (group, head_dim), not normalised, then max (group), in units of ln 2, then sum (group).
template <int kHeads>
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
  const int stride = tile_stride(head_dim);

  Tiles<kHeads> tiles(lookup, memory, tile_memory, launch.stages == 0, head_dim, begin, end);
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
        load_floats<8>(reinterpret_cast<const float*>(row) + eight * 8, key);
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
      const std::byte* values = tiles.values_of(stage) + pair * 2 * static_cast<int>(sizeof(float));
      for (int t = strand; t < count; t += strands) {
        const float* value = reinterpret_cast<const float*>(values + t * stride);
        const float first = value[0], second = value[1];
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

// Blocks to a multiprocessor, of which more have no room in registers.
template <int kHeads>
constexpr int kMostBlocks = kHeads > 8 ? 2 : 3;

template <int kHeads>
__global__ void __launch_bounds__(kAttendThreads, kMostBlocks<kHeads>) attend_kernel(AttendLaunch launch) {
  in_turn();
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
  count_attended(lookup, tokens);

  float* query = reinterpret_cast<float*>(block_memory() + sizeof(AttendMemory<kHeads>));
  std::byte* tile_memory = reinterpret_cast<std::byte*>(query + head_dim * kHeads);
  for (int i = thread; i < head_dim * kHeads; i += kAttendThreads) {
    const int h = i / 8 % kHeads, at = i / 8 / kHeads * 8 + i % 8;
    query[i] = h < heads ? lookup.query[(first_head + h) * head_dim + at] * (args.scale * kLog2E) : 0.0f;
  }
  __syncthreads();

  for (int32_t chunk = static_cast<int32_t>(blockIdx.x); chunk < chunks;
       chunk += static_cast<int32_t>(gridDim.x)) {
    attend_tokens<kHeads>(launch, lookup, memory, query, tile_memory, chunk * step,
                          min(tokens, (chunk + 1) * step), first_head, heads,
                          partial_of(launch, number, chunk));
    chunk_is_done(launch, lookup, number, chunk, chunks, first_head, heads, memory.merge);
  }
}

AttendWorkspaceSize attend_workspace(int32_t lookups, int32_t group, int32_t head_dim) {
  const size_t count = static_cast<size_t>(lookups);
  return {.floats = count * kMostChunks * static_cast<size_t>(partial_floats(group, head_dim)),
          .counts = count * static_cast<size_t>((group + kLeastHeads - 1) / kLeastHeads * kArrivals)};
}

template <int kHeads>
constexpr size_t attend_shared(int head_dim, int stages) {
  const size_t half = kTile * static_cast<size_t>(tile_stride(head_dim));
  return sizeof(AttendMemory<kHeads>) + static_cast<size_t>(head_dim) * kHeads * sizeof(float) +
         (stages > 0 ? 2 * static_cast<size_t>(stages) * half : half);
}

struct AttendShape {
  int stages = 0, blocks = 0;  // blocks: that a multiprocessor has at a time
};
// The most blocks, and of those the most stages.
template <int kHeads>
constexpr AttendShape attend_shape(int head_dim, size_t shared_bytes) {
  AttendShape best;
  for (int stages = 2; stages >= 0; stages--) {
    const size_t each = attend_shared<kHeads>(head_dim, stages);
    if (each > shared_bytes) continue;
    const auto room = static_cast<int>((shared_bytes + kSharedOfBlock) / (each + kSharedOfBlock));
    const int blocks = room < kMostBlocks<kHeads> ? room : kMostBlocks<kHeads>;
    if (blocks > best.blocks) best = {stages, blocks};
  }
  return best;
}

// Calls use.operator()<heads>() with those of the kernel that lookups take.
template <class Use>
auto with_heads(const LookupArgs& args, Use&& use) {
  if (args.group == 1) return use.template operator()<1>();
  if (args.group == 2) return use.template operator()<2>();
  if (args.group <= 4) return use.template operator()<4>();
  if (args.group <= 8) return use.template operator()<8>();
  return use.template operator()<16>();
}

static int blocks_at_a_time(const LookupArgs& args, size_t shared_bytes) {
  if (args.kv != DType::f32) return attend_tensor_blocks(args);
  return with_heads(args,
                    [&]<int kHeads>() { return attend_shape<kHeads>(args.head_dim, shared_bytes).blocks; });
}

int32_t attend_blocks(const LookupArgs& args, int32_t processors, size_t shared_bytes) {
  const int64_t tokens = args.usual_tokens > 1 ? args.usual_tokens : 1, step = chunk_tokens(tokens);
  const int64_t chunks = (tokens + step - 1) / step;
  const int64_t room = int64_t{blocks_at_a_time(args, shared_bytes)} * processors;
  int64_t least = INT64_MAX, best = 1;
  for (int64_t blocks = 1; blocks <= chunks; blocks++) {
    const int64_t rounds = (args.count * blocks + room - 1) / room, each = (chunks + blocks - 1) / blocks;
    if (rounds * each >= least) continue;
    least = rounds * each;
    best = blocks;
  }
  return static_cast<int32_t>(best);
}

template <int kHeads>
cudaError_t launch_attend(cudaStream_t stream, AttendLaunch given) {
  static_assert(attend_shape<kHeads>(256, kLeastShared).blocks > 0);
  static_assert(attend_shape<kHeads>(128, kSharedOfProcessor - kSharedOfBlock).blocks == kMostBlocks<kHeads>);
  given.stages = attend_shape<kHeads>(given.args.head_dim, given.workspace.shared_bytes).stages;
  const dim3 grid(static_cast<unsigned>(given.workspace.blocks), static_cast<unsigned>(given.args.count),
                  static_cast<unsigned>(blocks_of_heads(given.args.group)));
  return launch(attend_kernel<kHeads>, grid, kAttendThreads,
                attend_shared<kHeads>(given.args.head_dim, given.stages), stream, given);
}

cudaError_t attend(cudaStream_t stream, const LookupArgs& args, const AttendWorkspace& workspace) {
  if (args.head_dim % 8 || args.head_dim > 256 || args.head_dim < 8 || args.group < 1 ||
      workspace.blocks < 1 || workspace.blocks > kMostChunks || workspace.shared_bytes < kLeastShared)
    return cudaErrorInvalidValue;
  const AttendLaunch given = {args, workspace, 0};
  if (args.kv == DType::f16 || args.kv == DType::bf16) return attend_tensor(stream, given);
  if (args.kv != DType::f32) return cudaErrorInvalidValue;
  return with_heads(args, [&]<int kHeads>() { return launch_attend<kHeads>(stream, given); });
}

}  // namespace wi::cuda
