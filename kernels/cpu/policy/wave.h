// The CPU's wave policy: what its files share. Written by wave_index.cpp, read by wave_select.cpp and
// wave_estimate.cpp; the layout of the bytes is every backend's.
#pragma once

#include "kernels/wave_clusters.h"

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

// One centroid (head_dim) as f32.
void wave_centroid(const WaveIndex& index, int32_t cluster, int32_t head_dim, float* out);

// Whether untrusted bytes (64-byte aligned) are an index of this many clusters and tokens that select,
// estimate and partition_offsets can read safely.
bool wave_index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv);

// The policy's operations, one file each.
size_t wave_index_capacity(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv);
IndexResult wave_index(const Stream& stream, int worker, const IndexArgs& args);
extern const IndexPieces wave_index_pieces;
IndexResult wave_cut(const Stream& stream, int worker, const IndexArgs& args, const SegmentView& whole);
void wave_select(const Stream& stream, const LookupArgs& args);
void wave_estimate(const Stream& stream, const LookupArgs& args);

}  // namespace wi::cpu
