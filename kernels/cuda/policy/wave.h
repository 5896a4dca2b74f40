// The wave policy's operations on a device. Their arguments are in device memory, as all of cuda.h's.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/wave_layout.h"

namespace wi::cuda {

constexpr int32_t kMostWaveGroup = 64;     // query heads to a KV head
constexpr int32_t kMostScoreBlocks = 256;  // of a lookup

// A lookup's clusters one after the other, whatever their segments: score writes what select reads.
struct WaveClusters {
  int32_t room;  // clusters from one head's to the next's; a multiple of 32
  PartitionRef* places;
  int32_t* sizes;
  uint32_t* extents;
  int32_t* bits;  // ranks, as the CPU has them: of a float that is ≥ 0
  int32_t* list;  // numbers: of those that get a second look, of those retrieved; then of the estimation zone
  float* likely;  // (group, room) what best tokens likely score; then those of the second look's list
  float* highest;       // (group) scores in the estimation zone
  float* maxima;        // (group, kMostScoreBlocks) of likely, by the block that made it
  uint32_t* retrieved;  // a bit each
};

// What select needs beside its arguments. The bounds are of what a captured launch is to serve.
struct WaveSelectWorkspace {
  std::byte* memory;        // wave_select_workspace() bytes, 16-byte aligned
  int32_t most_partitions;  // of a lookup
  int32_t most_segments;    // changes no result: more are worked on in turn
};
size_t wave_select_workspace(int32_t lookups, int32_t group, int32_t most_partitions);

WI_ON_BOTH inline size_t wave_room(int32_t most_partitions) {
  return (static_cast<size_t>(most_partitions) + 31) / 32 * 32;
}
WI_ON_BOTH inline size_t wave_clusters_bytes(int32_t group, int32_t most_partitions) {
  const size_t n = wave_room(most_partitions), heads = static_cast<size_t>(group);
  const size_t bytes = n * (8 + 4 + 4 + 4 + 4 + 4 * heads) + n / 8 +
                       (size_t{kMostWaveGroup} + heads * size_t{kMostScoreBlocks}) * sizeof(float);
  return (bytes + 15) / 16 * 16;
}
WI_ON_BOTH inline WaveClusters wave_clusters(std::byte* memory, int32_t group, int32_t most_partitions) {
  const size_t n = wave_room(most_partitions), heads = static_cast<size_t>(group);
  WaveClusters clusters;
  clusters.room = static_cast<int32_t>(n);
  clusters.places = reinterpret_cast<PartitionRef*>(memory);
  clusters.sizes = reinterpret_cast<int32_t*>(clusters.places + n);
  clusters.extents = reinterpret_cast<uint32_t*>(clusters.sizes + n);
  clusters.bits = reinterpret_cast<int32_t*>(clusters.extents + n);
  clusters.list = clusters.bits + n;
  clusters.likely = reinterpret_cast<float*>(clusters.list + n);
  clusters.highest = clusters.likely + heads * n;
  clusters.maxima = clusters.highest + kMostWaveGroup;
  clusters.retrieved = reinterpret_cast<uint32_t*>(clusters.maxima + heads * size_t{kMostScoreBlocks});
  return clusters;
}

// Blocks that a lookup's scores are made by; changes no result.
int32_t wave_score_blocks(const LookupArgs& args, const WaveSelectWorkspace& workspace);

// Scores of all centroids, and what else of the clusters ranking needs, to the workspace.
[[nodiscard]] cudaError_t wave_score(cudaStream_t stream, const LookupArgs& args,
                                     const WaveSelectWorkspace& workspace);

// Ranks the clusters and splits them into zones by a budget of tokens: lookups' zones.target_mass is 0. Up to
// 64 query heads to a KV head.
[[nodiscard]] cudaError_t wave_select(cudaStream_t stream, const LookupArgs& args,
                                      const WaveSelectWorkspace& workspace);

// Merges the estimated clusters into out and lse, after select and attend, and counts coverage.
[[nodiscard]] cudaError_t wave_estimate(cudaStream_t stream, const LookupArgs& args,
                                        const WaveSelectWorkspace& clusters,
                                        const AttendWorkspace& workspace);

}  // namespace wi::cuda
