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

// Where the arrays of WaveBuild begin in a plane's working memory, in bytes from the keys, and the bytes of all: reckoned
// by the host, for each kernel would.
struct WaveBuildLayout {
  uint64_t values, numbers, packed, inverses, centre, centroids, assignment, counts, begins, members, kept,
      distances, flags, by_token, cluster_at, sizes, kept_at, kept_sizes, state, bytes;
};

struct WaveIndexArgs {
  const WavePlane* planes;  // (count) in the device's memory
  IndexResult* results;     // out (count) likewise
  // (count, layout.bytes), 256-byte aligned; a plane's begins with its keys, then its values, both (tokens,
  // head_dim) in order of position.
  std::byte* workspace;
  int32_t count, tokens, head_dim;
  DType kv;
  int32_t row_bytes;  // of a token's keys
  int32_t centroids, lone, most_clusters, max_cluster_tokens, iterations;
  WaveBuildLayout layout;
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
};

// Bytes of a key or a centroid in 8 bits: 32 dimensions at a time.
WI_ON_BOTH inline int32_t wave_numbers(int32_t head_dim) { return (head_dim + 31) / 32 * 32; }

WI_ON_BOTH inline WaveBuild wave_build(std::byte* memory, const WaveBuildLayout& layout) {
  WaveBuild build;
  build.keys = memory;
  build.values = reinterpret_cast<std::byte*>(memory + layout.values);
  build.numbers = reinterpret_cast<int8_t*>(memory + layout.numbers);
  build.packed = reinterpret_cast<int8_t*>(memory + layout.packed);
  build.inverses = reinterpret_cast<float*>(memory + layout.inverses);
  build.centre = reinterpret_cast<float*>(memory + layout.centre);
  build.centroids = reinterpret_cast<float*>(memory + layout.centroids);
  build.assignment = reinterpret_cast<int32_t*>(memory + layout.assignment);
  build.counts = reinterpret_cast<int32_t*>(memory + layout.counts);
  build.begins = reinterpret_cast<int32_t*>(memory + layout.begins);
  build.members = reinterpret_cast<int32_t*>(memory + layout.members);
  build.kept = reinterpret_cast<int32_t*>(memory + layout.kept);
  build.distances = reinterpret_cast<float*>(memory + layout.distances);
  build.flags = reinterpret_cast<int32_t*>(memory + layout.flags);
  build.by_token = reinterpret_cast<int32_t*>(memory + layout.by_token);
  build.cluster_at = reinterpret_cast<int32_t*>(memory + layout.cluster_at);
  build.sizes = reinterpret_cast<int32_t*>(memory + layout.sizes);
  build.kept_at = reinterpret_cast<int32_t*>(memory + layout.kept_at);
  build.kept_sizes = reinterpret_cast<int32_t*>(memory + layout.kept_sizes);
  build.state = reinterpret_cast<WaveBuildState*>(memory + layout.state);
  return build;
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
