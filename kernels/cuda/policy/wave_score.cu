// Scores every centroid, q·c/√d, in integers as the CPU does: 8-bit codes times 16-bit queries in two bytes,
// summed in 32 bits, so that both backends agree on what enters a rank but for the centre's score. Bound by
// reading codes: 16 bytes a lane (four clusters of a quad of dimensions), once for every four query heads.
//
// A warp takes a tile of 16 clusters, a block 64 at a time of one segment.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kScoreThreads = 128;
constexpr int kScoreWarps = kScoreThreads / kWarp;
constexpr int kScoreHeads = 4;  // at a time
constexpr int kMostGroup = 64;
constexpr int32_t kMostSegments = 1024;  // at a time; a grid has 65,535 blocks that way at most

// Shared memory; then the queries as integers: (group, quads) high bytes, then low ones.
struct ScoreMemory {
  float steps[kMostGroup];     // what an integer of the query stands for
  int32_t biases[kMostGroup];  // 128 · Σ integers: codes are stored with 128 added
  float centres[kMostGroup];
  int32_t sums[kScoreWarps];
};

// The largest integer with which head_dim products of codes up to 255 stay below 2^31, and whose bytes are
// both within -128 … 127.
__device__ __forceinline__ int largest_number(int head_dim) {
  const int64_t most = int64_t{0x7FFFFFFF} / (255 * int64_t{head_dim});
  return static_cast<int>(most < 127 * 256 + 127 ? most : 127 * 256 + 127);
}

// A warp packs a head's query.
__device__ void pack_query(const LookupArgs& args, const Lookup& lookup, int head, int quads,
                           ScoreMemory& memory, int32_t* high, int32_t* low) {
  const int dim = args.head_dim;
  const float* query = lookup.query + head * dim;
  float largest = 0;
  for (int i = lane_of(); i < dim; i += kWarp) largest = fmaxf(largest, fabsf(query[i] * args.scale));
  largest = warp_max(largest);
  const float step = largest / static_cast<float>(largest_number(dim));
  // Of infinities and what is too small to divide by, no number is kept; NaN reaches the scores through the
  // centre.
  const bool kept = step > 1e-30f && step < INFINITY;
  int bias = 0;
  for (int quad = lane_of(); quad < quads; quad += kWarp) {
    unsigned high_word = 0, low_word = 0;
    for (int j = 0; j < kWaveQuad; j++) {
      const int at = quad * kWaveQuad + j;
      const float exact = kept && at < dim ? query[at] * args.scale / step : 0.0f;
      const int number = exact == exact ? __float2int_rn(exact) : 0;
      const int high_byte = (number + 128) >> 8;
      high_word |= static_cast<unsigned>(high_byte & 255) << (8 * j);
      low_word |= static_cast<unsigned>((number - high_byte * 256) & 255) << (8 * j);
      bias += 128 * number;
    }
    high[head * quads + quad] = static_cast<int32_t>(high_word);
    low[head * quads + quad] = static_cast<int32_t>(low_word);
  }
  bias = __reduce_add_sync(kAllLanes, bias);
  if (lane_of() == 0) {
    memory.steps[head] = step;
    memory.biases[head] = bias;
  }
}

// Scores of a warp's tile with up to four heads from `first_head`.
__device__ __forceinline__ void score_tile(const LookupArgs& args, const Lookup& lookup,
                                           const WaveIndex& index, const ScoreMemory& memory,
                                           const int32_t* high, const int32_t* low, int quads, int32_t tile,
                                           int32_t first_number, int first_head) {
  const int heads = min(args.group - first_head, kScoreHeads);
  const int four = lane_of() % 4;  // which of the tile's fours of clusters
  int high_sums[4][kScoreHeads] = {}, low_sums[4][kScoreHeads] = {};
  for (int quad = lane_of() / 4; quad < quads; quad += kWarp / 4) {
    const int64_t at = ((int64_t{tile} * quads + quad) * kWaveTile + four * 4) * kWaveQuad;
    const uint4 codes = *reinterpret_cast<const uint4*>(index.codes + at);
#pragma unroll
    for (int h = 0; h < kScoreHeads; h++) {
      if (h >= heads) continue;
      const int high_word = high[(first_head + h) * quads + quad],
                low_word = low[(first_head + h) * quads + quad];
      high_sums[0][h] = dot_bytes(codes.x, high_word, high_sums[0][h]);
      high_sums[1][h] = dot_bytes(codes.y, high_word, high_sums[1][h]);
      high_sums[2][h] = dot_bytes(codes.z, high_word, high_sums[2][h]);
      high_sums[3][h] = dot_bytes(codes.w, high_word, high_sums[3][h]);
      low_sums[0][h] = dot_bytes(codes.x, low_word, low_sums[0][h]);
      low_sums[1][h] = dot_bytes(codes.y, low_word, low_sums[1][h]);
      low_sums[2][h] = dot_bytes(codes.z, low_word, low_sums[2][h]);
      low_sums[3][h] = dot_bytes(codes.w, low_word, low_sums[3][h]);
    }
  }
#pragma unroll
  for (int h = 0; h < kScoreHeads; h++) {
    if (h >= heads) continue;
    const int head = first_head + h;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int sum = high_sums[j][h] * 256 + low_sums[j][h];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      const int32_t cluster = tile * kWaveTile + four * 4 + j;
      if (lane_of() / 4 != h || cluster >= index.clusters) continue;
      const float unit = index.scales[cluster] * memory.steps[head];
      lookup.scores[int64_t{head} * lookup.partition_count + first_number + cluster] =
          fmaf(static_cast<float>(sum - memory.biases[head]), unit, memory.centres[head]);
    }
  }
}

__global__ void __launch_bounds__(kScoreThreads, 5)
    wave_score_kernel(LookupArgs args, WaveSelectWorkspace workspace) {
  ScoreMemory& memory = *reinterpret_cast<ScoreMemory*>(block_memory());
  const Lookup& lookup = args.lookups[blockIdx.y];
  const WaveClusters clusters = wave_clusters(
      workspace.memory + blockIdx.y * wave_clusters_bytes(args.group, workspace.most_partitions),
      workspace.most_partitions);
  const int quads = (args.head_dim + kWaveQuad - 1) / kWaveQuad, thread = static_cast<int>(threadIdx.x);
  int32_t* high = reinterpret_cast<int32_t*>(block_memory() + sizeof(ScoreMemory));
  int32_t* low = high + args.group * quads;
  if (static_cast<int32_t>(blockIdx.z) >= lookup.segment_count) return;
  for (int head = warp_of(); head < args.group; head += kScoreWarps)
    pack_query(args, lookup, head, quads, memory, high, low);

  for (int32_t s = static_cast<int32_t>(blockIdx.z); s < lookup.segment_count;
       s += static_cast<int32_t>(gridDim.z)) {
    const int32_t count = lookup.segments[s].partitions;
    const int32_t tiles = (count + kWaveTile - 1) / kWaveTile;
    if (static_cast<int32_t>(blockIdx.x) * kScoreWarps >= tiles) continue;
    // The number of the segment's first cluster.
    int32_t before = 0;
    for (int32_t t = thread; t < s; t += kScoreThreads) before += lookup.segments[t].partitions;
    before = __reduce_add_sync(kAllLanes, before);
    __syncthreads();  // whatever the last segment's were, nobody reads them any more
    if (lane_of() == 0) memory.sums[warp_of()] = before;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    for (int head = warp_of(); head < args.group; head += kScoreWarps) {
      float centre = 0;
      for (int i = lane_of(); i < args.head_dim; i += kWarp)
        centre = fmaf(lookup.query[head * args.head_dim + i] * args.scale, index.centre[i], centre);
      centre = warp_sum(centre);
      if (lane_of() == 0) memory.centres[head] = centre;
    }
    __syncthreads();
    int32_t first = 0;
#pragma unroll
    for (int warp = 0; warp < kScoreWarps; warp++) first += memory.sums[warp];

    for (int32_t tile = static_cast<int32_t>(blockIdx.x) * kScoreWarps + warp_of(); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x) * kScoreWarps) {
      for (int head = 0; head < args.group; head += kScoreHeads)
        score_tile(args, lookup, index, memory, high, low, quads, tile, first, head);
      const int32_t cluster = tile * kWaveTile + lane_of();
      if (lane_of() < kWaveTile && cluster < count) {
        clusters.sizes[first + cluster] = index.sizes[cluster];
        clusters.extents[first + cluster] = index.extents[cluster];
        clusters.places[first + cluster] = {s, cluster};
      }
    }
  }
}

size_t wave_select_workspace(int32_t lookups, int32_t group, int32_t most_partitions) {
  return static_cast<size_t>(lookups) * wave_clusters_bytes(group, most_partitions);
}

cudaError_t wave_score(cudaStream_t stream, const LookupArgs& args, const WaveSelectWorkspace& workspace) {
  if (args.group < 1 || args.group > kMostGroup || args.head_dim < 1 || args.head_dim > 256)
    return cudaErrorInvalidValue;
  const size_t quads = (static_cast<size_t>(args.head_dim) + kWaveQuad - 1) / kWaveQuad;
  const size_t shared = sizeof(ScoreMemory) + 2 * static_cast<size_t>(args.group) * quads * sizeof(int32_t);
  // Eight blocks to a segment of 8,192 tokens.
  const int32_t segments = workspace.most_segments < kMostSegments ? workspace.most_segments : kMostSegments;
  const dim3 grid(8, static_cast<unsigned>(args.count), static_cast<unsigned>(segments));
  return launch(wave_score_kernel, grid, kScoreThreads, shared, stream, args, workspace);
}

}  // namespace wi::cuda
