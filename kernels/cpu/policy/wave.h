// The CPU's wave policy: what its files share. Written by wave_index.cpp, read by wave_select.cpp and
// wave_estimate.cpp; the layout of the bytes is every backend's.
#pragma once

#include "kernels/wave_layout.h"

namespace wi::cpu {

using wi::kWaveAlong;
using wi::kWaveBestAbove;
using wi::kWaveBestAlong;
using wi::kWaveForMeanValue;
using wi::kWaveFreezing;
using wi::kWaveLooks;
using wi::wave_radius;
using wi::wave_spread;
using wi::wave_view;
using wi::WaveHeader;
using wi::WaveIndex;

// One cluster in so many is a lone key. A centroid does not speak for a key that lies far from it, and such
// keys are looked for: attention often goes to one key that is like no other. So of the clusters that a
// segment should have, most are found by k-means, and the keys that lie farthest from their clusters' means
// then become the rest. In wi_trace (six documents of 16K to 64K tokens, 1.8 %) the mass that is lost in
// ranking falls from 0.021 to 0.014 and the output's error from 0.025 to 0.019, with as many clusters as
// without.
constexpr int32_t kWaveLoneShare = 5;

uint32_t wave_extent(float radius, float spread);

// One centroid (head_dim) as f32.
void wave_centroid(const WaveIndex& index, int32_t cluster, int32_t head_dim, float* out);

// Whether untrusted bytes (64-byte aligned) are an index of this many clusters and tokens that select,
// estimate and partition_offsets can read safely.
bool wave_index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv);

// The policy's operations, one file each.
int32_t wave_most_clusters(const PolicyParams& params, int32_t tokens);
size_t wave_index_capacity(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv);
IndexResult wave_index(const Stream& stream, int worker, const IndexArgs& args);
extern const IndexPieces wave_index_pieces;
IndexResult wave_cut(const Stream& stream, int worker, const IndexArgs& args, const SegmentView& whole);
void wave_select(const Stream& stream, const LookupArgs& args);
void wave_estimate(const Stream& stream, const LookupArgs& args);

}  // namespace wi::cpu
