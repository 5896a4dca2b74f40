// The bytes of a wave index, the same in every backend: one that the CPU has built is read on a device and the
// other way round, and session files hold them. With what select and estimate take from them to mean, so that
// backends pick the same clusters.
//
// The index of one (layer, KV head) of a segment (RetroInfer §4.2): a header, then the arrays, each 64-byte
// aligned, at offsets from the header.
#pragma once

#include <bit>

#include "kernels/policy.h"

#ifdef __CUDACC__
#define WI_ON_BOTH __host__ __device__
#else
#define WI_ON_BOTH
#endif

namespace wi {

struct WaveHeader {
  uint32_t magic;
  uint32_t version;
  int32_t clusters;
  int32_t tokens;
  int32_t head_dim;
  int32_t kv;  // DType
  // Where the arrays begin, in bytes from the header's start, and the bytes of all.
  uint64_t codes, scales, centre, value_means, sizes, extents, axes, residuals, bytes;
};
constexpr uint32_t kWaveMagic = 0x45564157;  // "WAVE"
constexpr uint32_t kWaveVersion = 6;
constexpr int32_t kWaveTile = 16;
constexpr int32_t kWaveQuad = 4;

// What counts in a cluster is its best token, for attention is peaked. It scores above the centroid, likely
// by about this many times |q| · radius / head_dim: were the keys' distances the same in every direction, the
// query would see 1/√head_dim of them, and the best of 16 is some two deviations out. Ranking by the centroid
// alone leaves out wide clusters with the one key that is looked for. In wi_trace 1.2 loses as little mass
// but its output's error is 4 % higher; 3 loses half as much again.
constexpr float kWaveBestAbove = 2.0f;

// Of the best ranked clusters, twice the budget, ranking takes a second look: along the axis in which its
// keys vary most a cluster is long, and a query that looks along that axis finds its best token this many
// deviations above the centroid. A wide cluster with the one key that is looked for is long rather than
// round. In wi_trace the mass that is lost in ranking at 1.8 % falls from 0.023 to 0.016 (16K tokens) and
// from 0.033 to 0.021 (64K); three times the budget gains 0.0005 more.
constexpr int32_t kWaveLooks = 2;
constexpr float kWaveBestAlong = 1.5f;

// The variance of a cluster's scores, in units of |q|² · spread² / head_dim, which it would have if keys
// varied in all directions alike; they vary more in those that queries look along. With 1.5, wi_trace's
// estimated coverage is off from the true one by some 0.02 on average to either side; by 0.06 to 0.08, always
// too high, with the mass at the centroid.
constexpr float kWaveAlong = 1.5f;
constexpr float kWaveFreezing = 2.355f;  // √(2 ln 16), of a usual cluster (wave_mass-inl.h)

// How much of what the spread adds to a cluster's log mass an estimate gives its mean value: the added mass
// is that of a few tokens, whose values are their own. In wi_trace the output's error is 0.035 with none of
// it, 0.031 with half, 0.036 with all (16K tokens; 0.038, 0.034 and 0.047 at 64K).
constexpr float kWaveForMeanValue = 0.5f;

// A centroid is the mean of its member keys, stored as centre + scale · (code - 128): select is bound by
// reading centroids, and 8 bits take half the time of 16. Centring keeps what all keys of a head share,
// often far larger than what tells them apart, out of the rounding. Tiles of 16 clusters and quads of
// dimensions: what processors (and GPUs) that multiply four bytes at once add up in one 32-bit lane.
struct WaveIndex {
  int32_t clusters = 0;
  const uint8_t* codes = nullptr;  // (⌈clusters / kWaveTile⌉, ⌈head_dim / kWaveQuad⌉, kWaveTile, kWaveQuad)
  const float* scales = nullptr;           // (clusters, up to a whole tile)
  const float* centre = nullptr;           // (head_dim) mean of the segment's keys
  const std::byte* value_means = nullptr;  // (clusters, head_dim) KV dtype; value sums may not fit f16
  const int32_t* sizes = nullptr;          // (clusters) ≥ 1
  const uint32_t* extents = nullptr;       // (clusters) radius and spread
  const std::byte* axes = nullptr;  // (clusters, head_dim) KV dtype: a deviation of the keys along their axis
  const float* residuals = nullptr;  // (clusters) their deviation in every other direction, ≤ kWaveMostExtent
};

// How far a cluster's keys lie from its stored centroid, two bf16 in a word: the greatest distance, rounded
// up, in the high half; the root of the mean squared distance in the low. Every step reads all of them.
constexpr float kWaveMostExtent = 1e18f;  // finite, whatever the query
WI_ON_BOTH inline float wave_radius(uint32_t extent) { return std::bit_cast<float>(extent & 0xFFFF0000u); }
WI_ON_BOTH inline float wave_spread(uint32_t extent) { return std::bit_cast<float>(extent << 16); }

// The header that an index of so many clusters has; nothing else depends on the contents.
WI_ON_BOTH inline WaveHeader wave_header(int32_t clusters, int32_t tokens, int32_t head_dim, DType kv) {
  constexpr auto aligned = [](uint64_t bytes) { return (bytes + 63) & ~uint64_t{63}; };
  const uint64_t count = static_cast<uint64_t>(clusters);
  const uint64_t padded = (count + kWaveTile - 1) / kWaveTile * kWaveTile;
  WaveHeader header = {};
  header.magic = kWaveMagic;
  header.version = kWaveVersion;
  header.clusters = clusters;
  header.tokens = tokens;
  header.head_dim = head_dim;
  header.kv = static_cast<int32_t>(kv);
  header.codes = aligned(sizeof(WaveHeader));
  header.scales =
      header.codes +
      aligned(padded * ((static_cast<uint64_t>(head_dim) + kWaveQuad - 1) / kWaveQuad) * kWaveQuad);
  header.centre = header.scales + aligned(padded * 4);
  header.value_means = header.centre + aligned(static_cast<uint64_t>(head_dim) * 4);
  header.sizes = header.value_means + aligned(count * row_bytes(kv, head_dim));
  header.extents = header.sizes + aligned(count * 4);
  header.axes = header.extents + aligned(count * 4);
  header.residuals = header.axes + aligned(count * row_bytes(kv, head_dim));
  header.bytes = header.residuals + aligned(count * 4);
  return header;
}

// A valid index's arrays.
WI_ON_BOTH inline WaveIndex wave_view(const void* index) {
  const std::byte* base = static_cast<const std::byte*>(index);
  const WaveHeader& header = *static_cast<const WaveHeader*>(index);
  return {.clusters = header.clusters,
          .codes = reinterpret_cast<const uint8_t*>(base + header.codes),
          .scales = reinterpret_cast<const float*>(base + header.scales),
          .centre = reinterpret_cast<const float*>(base + header.centre),
          .value_means = base + header.value_means,
          .sizes = reinterpret_cast<const int32_t*>(base + header.sizes),
          .extents = reinterpret_cast<const uint32_t*>(base + header.extents),
          .axes = base + header.axes,
          .residuals = reinterpret_cast<const float*>(base + header.residuals)};
}

// Where in codes the number of this cluster and dimension is.
WI_ON_BOTH inline int64_t wave_code(int32_t cluster, int32_t dimension, int32_t head_dim) {
  const int64_t quads = (int64_t{head_dim} + kWaveQuad - 1) / kWaveQuad;
  const int64_t quad = cluster / kWaveTile * quads + dimension / kWaveQuad;
  return (quad * kWaveTile + cluster % kWaveTile) * kWaveQuad + dimension % kWaveQuad;
}

}  // namespace wi
