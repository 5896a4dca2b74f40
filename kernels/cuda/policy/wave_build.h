// The wave policy's Index on a device: what its stages share. Planes are (layer, KV head) of one segment, and each stage
// takes all of them at once. They do what kernels/cpu/policy/wave_index.cpp does with the same sums in the same order,
// none of them fused, so that an index has the same bytes from either (x86-64, whose baseline fuses nothing).
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/wave_clusters.h"

namespace wi::cuda {

// Out, of one plane: keys and values in the device's memory or pinned, the rest in the device's.
struct WavePlane {
  void* keys;        // (tokens, head_dim) KV dtype, cluster by cluster
  void* values;      // likewise
  int32_t* places;   // (tokens)
  std::byte* index;  // room for wave_most_clusters(), zeroed
};

struct WaveIndexArgs {
  const WavePlane* planes;  // (count) in the device's memory
  IndexResult* results;     // out (count) likewise
  // (count, wave_workspace()), 256-byte aligned; a plane's begins with its keys, then its values, both (tokens,
  // head_dim) in order of position.
  std::byte* workspace;
  int32_t count, tokens, head_dim;
  DType kv;
  int32_t row_bytes;  // of a token's keys
  int32_t centroids, lone, most_clusters, max_cluster_tokens, iterations;
};
WaveIndexArgs wave_index_args(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv);

struct WaveBuildState {
  int32_t moved;    // tokens, in this iteration
  int32_t settled;  // an iteration has moved none
  int32_t clusters;
};

constexpr int kGroupWarps = 16;       // each sorts its share of the tokens
constexpr int kAssignKeys = 256;      // of a block
constexpr int kAssignCentroids = 64;  // at a time

// A plane's working memory.
struct WaveBuild {
  std::byte* keys;    // (tokens, head_dim) KV dtype, in order of position
  std::byte* values;  // likewise
  int8_t*
      numbers;  // (tokens up to kAssignKeys, wave_numbers()) keys of length 1, each with a scale of its own
  int8_t* packed;       // (centroids up to kAssignCentroids, wave_numbers()) with one scale
  float* inverses;      // (tokens) one by a centred key's length; 0: it has none
  float* centre;        // (head_dim) mean of the keys
  float* centroids;     // (centroids, head_dim)
  int32_t* assignment;  // (tokens)
  int32_t* counts;      // (centroids, kGroupWarps)
  int32_t* begins;      // (centroids + 1) where each centroid's members begin
  int32_t* members;     // (tokens) token numbers, cluster by cluster
  int32_t* kept;        // (tokens) the same once lone keys are set apart
  float* distances;     // (tokens) by place among the members: projections when splitting
  int32_t* flags;       // (tokens + 1) by place among the members
  int32_t* by_token;    // (tokens)
  int32_t* cluster_at;  // (most_clusters) where each cluster's members begin
  int32_t* sizes;       // (most_clusters)
  int32_t* kept_at;     // (most_clusters) the same of `kept`
  int32_t* kept_sizes;  // (most_clusters)
  WaveBuildState* state;
  std::byte* end;
};

// Bytes of a key or a centroid in 8 bits: 32 dimensions at a time.
WI_ON_BOTH inline int32_t wave_numbers(int32_t head_dim) { return (head_dim + 31) / 32 * 32; }

WI_ON_BOTH inline WaveBuild wave_build(std::byte* memory, const WaveIndexArgs& args) {
  const auto next = [&memory](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory);
    memory += (static_cast<size_t>(count) * sizeof(*array) + 255) & ~size_t{255};
  };
  const auto whole = [](int32_t count, int32_t of) { return (int64_t{count} + of - 1) / of * of; };
  const int64_t tokens = args.tokens, rows = args.row_bytes * tokens;
  const int64_t row = wave_numbers(args.head_dim);
  WaveBuild build;
  build.keys = memory;
  build.values = memory + rows;
  memory += (static_cast<size_t>(2 * rows) + 255) & ~size_t{255};
  next(build.numbers, whole(args.tokens, kAssignKeys) * row);
  next(build.packed, whole(args.centroids, kAssignCentroids) * row);
  next(build.inverses, tokens);
  next(build.centre, args.head_dim);
  next(build.centroids, int64_t{args.centroids} * args.head_dim);
  next(build.assignment, tokens);
  next(build.counts, int64_t{args.centroids} * kGroupWarps);
  next(build.begins, args.centroids + 1);
  next(build.members, tokens);
  next(build.kept, tokens);
  next(build.distances, tokens);
  next(build.flags, tokens + 1);
  next(build.by_token, tokens);
  next(build.cluster_at, args.most_clusters);
  next(build.sizes, args.most_clusters);
  next(build.kept_at, args.most_clusters);
  next(build.kept_sizes, args.most_clusters);
  next(build.state, 1);
  build.end = memory;
  return build;
}
WI_ON_BOTH inline size_t wave_workspace(const WaveIndexArgs& args) {
  std::byte* const none = nullptr;
  return static_cast<size_t>(wave_build(none, args).end - none);
}

// The stages, in order; the keys and values of all planes are in the workspace before. head_dim: a multiple of 8 up to
// 256; tokens > 0.
[[nodiscard]] cudaError_t wave_index(cudaStream_t stream, const WaveIndexArgs& args);

[[nodiscard]] cudaError_t wave_cluster(cudaStream_t stream,
                                       const WaveIndexArgs& args);  // members by centroid
[[nodiscard]] cudaError_t wave_split(cudaStream_t stream,
                                     const WaveIndexArgs& args);  // large ones; lone keys
[[nodiscard]] cudaError_t wave_describe(cudaStream_t stream,
                                        const WaveIndexArgs& args);  // lays out and writes

}  // namespace wi::cuda
