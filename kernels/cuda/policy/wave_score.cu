// Scores every centroid, q·c/√d, in integers as the CPU does: 8-bit codes times 16-bit queries in two bytes,
// summed in 32 bits, so that both backends agree on what enters a rank but for the centre's score. And what a
// cluster's best token likely scores, with the highest of those by block, so that select has the maxima of its
// softmaxes from the start.
//
// Bound by reading codes: 16 bytes a lane (four clusters of a quad of dimensions), once for every four query
// heads, four loads under way. A warp takes tiles of 16 clusters, one or a few that follow each other, through
// all of a lookup's segments; its first codes are on their way while the block packs the queries.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kScoreThreads = 128;
constexpr int kScoreWarps = kScoreThreads / kWarp;
constexpr int kScoreHeads = 4;                        // at a time
constexpr int kScoreLoads = 4;                        // of 16 bytes, by a lane at a time
constexpr int kScoreQuads = kScoreLoads * kWarp / 4;  // of dimensions, by a warp at a time
constexpr int64_t kScoreWarpsAtOnce =
    int64_t{132} * 16;  // of a large device; a launch has about as many at most

// Shared memory; then the queries as integers: (⌈group / 4⌉, quads, 2, 4) words, high bytes before low ones.
struct ScoreMemory {
  float steps[kMostWaveGroup];                 // what an integer of the query stands for
  int32_t biases[kMostWaveGroup];              // 128 · Σ integers: codes are stored with 128 added
  float reach[kMostWaveGroup];                 // of a best token above its centroid, by the cluster's radius
  float centres[kScoreWarps][kMostWaveGroup];  // of the segment that a warp is in
  float maxima[kScoreWarps][kMostWaveGroup];
};

// Where in its lookup a tile is.
struct ScoreTile {
  int32_t segment;   // -1: there is no such tile
  int32_t number;    // in the segment
  int32_t first;     // number of the segment's first cluster
  int32_t clusters;  // of the segment
};

__device__ __forceinline__ int32_t tiles_of(int32_t clusters) {
  return (clusters + kWaveTile - 1) / kWaveTile;
}

// The largest integer with which head_dim products of codes up to 255 stay below 2^31, and whose bytes are
// both within -128 … 127.
__device__ __forceinline__ int largest_number(int head_dim) {
  const int64_t most = int64_t{0x7FFFFFFF} / (255 * int64_t{head_dim});
  return static_cast<int>(most < 127 * 256 + 127 ? most : 127 * 256 + 127);
}

// One block's share of a lookup.
class Scorer {
 public:
  __device__ Scorer(const LookupArgs& args, const Lookup& lookup, const WaveClusters& clusters,
                    std::byte* memory)
      : args_(args),
        lookup_(lookup),
        clusters_(clusters),
        memory_(*reinterpret_cast<ScoreMemory*>(memory)),
        words_(reinterpret_cast<int4*>(memory + sizeof(ScoreMemory))),
        quads_((args.head_dim + kWaveQuad - 1) / kWaveQuad),
        batches_((quads_ + kScoreQuads - 1) / kScoreQuads) {}

  __device__ void run() {
    // As many tiles as there can be, over the warps.
    const int32_t most = tiles_of(lookup_.partition_count) + lookup_.segment_count;
    const int32_t each = (most + static_cast<int32_t>(gridDim.x) * kScoreWarps - 1) /
                         (static_cast<int32_t>(gridDim.x) * kScoreWarps);
    const int32_t of_block = static_cast<int32_t>(blockIdx.x) * kScoreWarps * each;
    const bool any = lookup_.partition_count > 0 && of_block < most;
    for (int head = lane_of(); head < args_.group; head += kWarp) memory_.maxima[warp_of()][head] = kLowest;
    if (any) score_tiles(of_block + warp_of() * each, each);
    __syncthreads();
    for (int head = static_cast<int>(threadIdx.x); head < args_.group; head += kScoreThreads) {
      float highest = memory_.maxima[0][head];
#pragma unroll
      for (int warp = 1; warp < kScoreWarps; warp++) highest = fmaxf(highest, memory_.maxima[warp][head]);
      clusters_.maxima[head * kMostScoreBlocks + static_cast<int>(blockIdx.x)] = highest;
    }
  }

 private:
  struct Codes {
    uint4 loaded[kScoreLoads];
  };
  // Of the two clusters of a tile that a lane has the scores of.
  struct Pair {
    int32_t cluster;  // the first, in its segment
    float scales[2];
    uint32_t extents[2];
  };

  __device__ void score_tiles(int32_t at, int32_t count) {
    ScoreTile tile = locate(at);
    WaveIndex index{};
    Codes codes{};
    if (tile.segment >= 0) {
      index = wave_view(lookup_.segments[tile.segment].index);
      load(index, tile.number, 0, codes);
      score_centre(index);
    }
    for (int head = warp_of(); head < up_to_fours(args_.group); head += kScoreWarps) pack_query(head);
    __syncthreads();
    for (int32_t i = 1; tile.segment >= 0; i++) {
      ScoreTile next = tile;
      next.number++;
      const bool same = next.number < tiles_of(tile.clusters);
      if (i >= count)
        next.segment = -1;
      else if (!same)
        next = locate(at + i);
      score_tile(index, tile, codes, same && i < count);
      if (next.segment >= 0 && !same) {
        index = wave_view(lookup_.segments[next.segment].index);
        load(index, next.number, 0, codes);
        __syncwarp();  // the last segment's are read
        score_centre(index);
      }
      tile = next;
    }
  }

  __device__ static int up_to_fours(int heads) {
    return (heads + kScoreHeads - 1) / kScoreHeads * kScoreHeads;
  }

  __device__ ScoreTile locate(int32_t at) const {
    int32_t tiles = 0, first = 0;  // of the segments before
    for (int32_t s = 0; s < lookup_.segment_count; s += kWarp) {
      const bool real = s + lane_of() < lookup_.segment_count;
      const int32_t own = real ? lookup_.segments[s + lane_of()].partitions : 0;
      const int32_t clusters_to = warp_running_sum(own), tiles_to = warp_running_sum(tiles_of(own));
      const unsigned after = __ballot_sync(kAllLanes, at < tiles + tiles_to);
      if (after != 0) {
        const int here = __ffs(static_cast<int>(after)) - 1;
        return {s + here, at - tiles - __shfl_sync(kAllLanes, tiles_to - tiles_of(own), here),
                first + __shfl_sync(kAllLanes, clusters_to - own, here), __shfl_sync(kAllLanes, own, here)};
      }
      tiles += __shfl_sync(kAllLanes, tiles_to, kWarp - 1);
      first += __shfl_sync(kAllLanes, clusters_to, kWarp - 1);
    }
    return {-1, 0, 0, 0};
  }

  // Of quads batch * kScoreQuads and on; a lane has every eighth.
  __device__ void load(const WaveIndex& index, int32_t tile, int batch, Codes& codes) const {
    const int quad = batch * kScoreQuads + lane_of() / 4;
    const uint8_t* from =
        index.codes + ((int64_t{tile} * quads_ + quad) * kWaveTile + lane_of() % 4 * 4) * kWaveQuad;
#pragma unroll
    for (int i = 0; i < kScoreLoads; i++)
      if (quad + i * (kWarp / 4) < quads_)
        codes.loaded[i] = reinterpret_cast<const uint4*>(from)[i * (kWarp / 4) * (kWaveTile / 4)];
  }

  // A warp's, of all heads.
  __device__ void score_centre(const WaveIndex& index) {
    for (int first = 0; first < args_.group; first += kScoreHeads) {
      float sums[kScoreHeads] = {};
#pragma unroll 4
      for (int i = lane_of(); i < args_.head_dim; i += kWarp) {
        const float centre = index.centre[i];
#pragma unroll
        for (int h = 0; h < kScoreHeads; h++)
          if (first + h < args_.group)
            sums[h] = fmaf(lookup_.query[(first + h) * args_.head_dim + i] * args_.scale, centre, sums[h]);
      }
#pragma unroll
      for (int h = 0; h < kScoreHeads; h++) {
        const float sum = warp_sum(sums[h]);
        if (lane_of() == 0 && first + h < args_.group) memory_.centres[warp_of()][first + h] = sum;
      }
    }
    __syncwarp();
  }

  // A warp packs a head's query; beyond the group's, and beyond its dimensions, zeros.
  __device__ void pack_query(int head) {
    const int dim = head < args_.group ? args_.head_dim : 0;
    const float* query = lookup_.query + head * args_.head_dim;
    float largest = 0, squares = 0;
#pragma unroll 4
    for (int i = lane_of(); i < dim; i += kWarp) {
      const float number = query[i];
      largest = fmaxf(largest, fabsf(number * args_.scale));
      squares = fmaf(number, number, squares);
    }
    largest = warp_max(largest);
    squares = warp_sum(squares);
    const float step = largest / static_cast<float>(largest_number(args_.head_dim));
    // Of infinities and what is too small to divide by, no number is kept; NaN reaches the scores through the
    // centre.
    const bool kept = step > 1e-30f && step < INFINITY;
    int bias = 0;
    for (int quad = lane_of(); quad < batches_ * kScoreQuads; quad += kWarp) {
      unsigned high_word = 0, low_word = 0;
#pragma unroll
      for (int j = 0; j < kWaveQuad; j++) {
        const int at = quad * kWaveQuad + j;
        const float exact = kept && at < dim ? query[at] * args_.scale / step : 0.0f;
        const int number = exact == exact ? __float2int_rn(exact) : 0;
        const int high_byte = (number + 128) >> 8;
        high_word |= static_cast<unsigned>(high_byte & 255) << (8 * j);
        low_word |= static_cast<unsigned>((number - high_byte * 256) & 255) << (8 * j);
        bias += 128 * number;
      }
      int32_t* words =
          reinterpret_cast<int32_t*>(words_ + words_at(head / kScoreHeads, quad)) + head % kScoreHeads;
      words[0] = static_cast<int32_t>(high_word);
      words[kScoreHeads] = static_cast<int32_t>(low_word);
    }
    bias = __reduce_add_sync(kAllLanes, bias);
    if (lane_of() == 0 && head < args_.group) {
      memory_.steps[head] = step;
      memory_.biases[head] = bias;
      memory_.reach[head] =
          kWaveBestAbove * args_.scale * sqrtf(squares / static_cast<float>(args_.head_dim));
    }
  }
  __device__ int words_at(int four, int quad) const { return (four * batches_ * kScoreQuads + quad) * 2; }

  // Scores of a tile; `codes`: its first ones, and then, if there is one in the segment, the next tile's.
  __device__ void score_tile(const WaveIndex& index, const ScoreTile& tile, Codes& codes, bool next) {
    Pair pair = {tile.number * kWaveTile + lane_of() % 4 * 4 + lane_of() / 4 % 2 * 2, {}, {}};
    int32_t sizes[2] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) {
      if (pair.cluster + m >= tile.clusters) continue;
      pair.scales[m] = index.scales[pair.cluster + m];
      pair.extents[m] = index.extents[pair.cluster + m];
      if (lane_of() < kWarp / kScoreHeads) sizes[m] = index.sizes[pair.cluster + m];
    }
    for (int first = 0; first < args_.group; first += kScoreHeads) {
      const bool last = first + kScoreHeads >= args_.group;
      int high[4][kScoreHeads] = {}, low[4][kScoreHeads] = {};
      for (int batch = 0; batch < batches_; batch++) {
        add_products(codes, words_ + words_at(first / kScoreHeads, batch * kScoreQuads),
                     quads_ - batch * kScoreQuads, high, low);
        if (batch + 1 < batches_)
          load(index, tile.number, batch + 1, codes);
        else if (!last || next)
          load(index, last ? tile.number + 1 : tile.number, 0, codes);
      }
      finish(tile, pair, first, high, low);
    }
    if (lane_of() >= kWarp / kScoreHeads) return;
#pragma unroll
    for (int m = 0; m < 2; m++) {
      if (pair.cluster + m >= tile.clusters) continue;
      const int32_t number = tile.first + pair.cluster + m;
      clusters_.sizes[number] = sizes[m];
      clusters_.extents[number] = pair.extents[m];
      clusters_.places[number] = {tile.segment, pair.cluster + m};
    }
  }

  // Of four clusters and four heads, over a lane's quads.
  __device__ static void add_products(const Codes& codes, const int4* words, int quads,
                                      int (&high)[4][kScoreHeads], int (&low)[4][kScoreHeads]) {
#pragma unroll
    for (int i = 0; i < kScoreLoads; i++) {
      if (i * (kWarp / 4) >= quads) continue;
      const uint4 own = codes.loaded[i];
      const int4* at = words + (i * (kWarp / 4) + lane_of() / 4) * 2;
      add_products(own, at[0], high);
      add_products(own, at[1], low);
    }
  }
  __device__ __forceinline__ static void add_products(const uint4& codes, const int4& words,
                                                      int (&sums)[4][kScoreHeads]) {
    const unsigned own[4] = {codes.x, codes.y, codes.z, codes.w};
    const int numbers[kScoreHeads] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int h = 0; h < kScoreHeads; h++) sums[j][h] = dot_bytes(own[j], numbers[h], sums[j][h]);
  }

  // Adds up the eight lanes that have the same clusters: each time a lane hands half of its sums over and keeps the
  // other half. It is left with one head, lane / 8, and its pair.
  __device__ void finish(const ScoreTile& tile, const Pair& pair, int first_head,
                         const int (&high)[4][kScoreHeads], const int (&low)[4][kScoreHeads]) {
    const bool later_heads = lane_of() & 16, odd_head = lane_of() & 8, later_pair = lane_of() & 4;
    int fours[4][2], twos[4], sums[2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int early = high[j][k] * 256 + low[j][k], later = high[j][k + 2] * 256 + low[j][k + 2];
        fours[j][k] = handed_over(early, later, later_heads, 16);
      }
      twos[j] = handed_over(fours[j][0], fours[j][1], odd_head, 8);
    }
#pragma unroll
    for (int m = 0; m < 2; m++) sums[m] = handed_over(twos[m], twos[m + 2], later_pair, 4);

    const int head = first_head + lane_of() / 8;
    float highest = kLowest;
#pragma unroll
    for (int m = 0; m < 2; m++) {
      if (head >= args_.group || pair.cluster + m >= tile.clusters) continue;
      const int32_t number = tile.first + pair.cluster + m;
      const float score = fmaf(static_cast<float>(sums[m] - memory_.biases[head]),
                               pair.scales[m] * memory_.steps[head], memory_.centres[warp_of()][head]);
      const float likely = score + fminf(memory_.reach[head] * wave_radius(pair.extents[m]), 1e30f);
      lookup_.scores[int64_t{head} * lookup_.partition_count + number] = score;
      clusters_.likely[int64_t{head} * clusters_.room + number] = likely;
      highest = fmaxf(highest, likely);
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
    if (lane_of() % 8 == 0 && head < args_.group) {
      float& all = memory_.maxima[warp_of()][head];
      all = fmaxf(all, highest);
    }
  }
  __device__ __forceinline__ static int handed_over(int early, int later, bool keeps_later, int with) {
    const int given = __shfl_xor_sync(kAllLanes, keeps_later ? early : later, with);
    return (keeps_later ? later : early) + given;
  }

  const LookupArgs& args_;
  const Lookup& lookup_;
  const WaveClusters& clusters_;
  ScoreMemory& memory_;
  int4* words_;
  int quads_, batches_;
};

__global__ void __launch_bounds__(kScoreThreads, 4)
    wave_score_kernel(LookupArgs args, WaveSelectWorkspace workspace) {
  in_turn();
  const WaveClusters clusters = wave_clusters(
      workspace.memory + blockIdx.y * wave_clusters_bytes(args.group, workspace.most_partitions), args.group,
      workspace.most_partitions);
  Scorer(args, args.lookups[blockIdx.y], clusters, block_memory()).run();
}

size_t wave_select_workspace(int32_t lookups, int32_t group, int32_t most_partitions) {
  return static_cast<size_t>(lookups) * wave_clusters_bytes(group, most_partitions);
}

int32_t wave_score_blocks(const LookupArgs& args, const WaveSelectWorkspace& workspace) {
  const int64_t tiles = workspace.most_partitions / kWaveTile + int64_t{workspace.most_segments} + 1;
  const int64_t each = (tiles * args.count + kScoreWarpsAtOnce - 1) / kScoreWarpsAtOnce;  // to a warp
  const int64_t blocks = (tiles + each * kScoreWarps - 1) / (each * kScoreWarps);
  return static_cast<int32_t>(blocks < kMostScoreBlocks ? blocks : kMostScoreBlocks);
}

cudaError_t wave_score(cudaStream_t stream, const LookupArgs& args, const WaveSelectWorkspace& workspace) {
  if (args.group < 1 || args.group > kMostWaveGroup || args.head_dim < 1 || args.head_dim > 256)
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const size_t fours = (static_cast<size_t>(args.group) + kScoreHeads - 1) / kScoreHeads;
  const size_t quads = (static_cast<size_t>(args.head_dim) + kWaveQuad * kScoreQuads - 1) /
                       (kWaveQuad * kScoreQuads) * kScoreQuads;
  const dim3 grid(static_cast<unsigned>(wave_score_blocks(args, workspace)),
                  static_cast<unsigned>(args.count));
  return launch(wave_score_kernel, grid, kScoreThreads,
                sizeof(ScoreMemory) + fours * quads * 2 * sizeof(int4), stream, args, workspace);
}

}  // namespace wi::cuda
