// How many clusters the wave index makes of a segment, and what it keeps of their extents: the same in every backend,
// so that an index is the same bytes wherever it is built.
#pragma once

#include "kernels/wave_layout.h"

namespace wi {

// One cluster in so many is a lone key. A centroid does not speak for a key that lies far from it, and such
// keys are looked for: attention often goes to one key that is like no other. So of the clusters that a
// segment should have, most are found by k-means, and the keys that lie farthest from their clusters' means
// then become the rest. In wi_trace (six documents of 16K to 64K tokens, 1.8 %) the mass that is lost in
// ranking falls from 0.021 to 0.014 and the output's error from 0.025 to 0.019, with as many clusters as
// without.
constexpr int32_t kWaveLoneShare = 5;

// Of a segment, but for what splits large ones: those of k-means and the lone keys.
inline int32_t wave_cluster_count(const PolicyParams& params, int32_t tokens) {
  const int32_t per_centroid = std::max(1, params.tokens_per_centroid);
  return std::max(1, tokens / per_centroid + (tokens % per_centroid != 0));
}
inline int32_t wave_lone_count(const PolicyParams& params, int32_t tokens) {
  return wave_cluster_count(params, tokens) / kWaveLoneShare;
}
inline int32_t wave_centroid_count(const PolicyParams& params, int32_t tokens) {
  return wave_cluster_count(params, tokens) - wave_lone_count(params, tokens);
}
// A split piece has at least half of max_cluster_tokens tokens, which bounds their number.
inline int32_t wave_most_clusters(const PolicyParams& params, int32_t tokens) {
  const int32_t smallest_piece = std::max(1, (params.max_cluster_tokens + 1) / 2);
  const int64_t most = int64_t{wave_cluster_count(params, tokens)} + tokens / smallest_piece;
  return static_cast<int32_t>(std::min<int64_t>(most, tokens));
}

// Up to where the numbers of so many centroids go when k-means scores keys in integers: a score, whose key has numbers up to
// 127, leaves room in 32 bits for which centroid it is of, among those that an instruction set with 8 side by side, the
// fewest, puts into one place. So all round alike.
WI_ON_BOTH inline int32_t wave_largest_number(int32_t centroids, int32_t head_dim) {
  const int64_t places = 2 * ((int64_t{centroids} + 7) / 8);
  int bits = 1;
  while (int64_t{1} << bits < places) ++bits;
  const int64_t most = (int64_t{1} << (31 - bits)) / (127 * int64_t{head_dim});
  return static_cast<int32_t>(most < 1 ? 1 : most > 127 ? 127 : most);
}

// WaveIndex's extents.
WI_ON_BOTH inline uint32_t wave_extent(float radius, float spread) {
  constexpr float kMost = kWaveMostExtent;
  const uint32_t high = std::bit_cast<uint32_t>(radius < kMost ? radius : kMost) + 0xFFFF;
  const uint32_t low = std::bit_cast<uint32_t>(spread < kMost ? spread : kMost) + 0x8000;
  return (high & 0xFFFF0000u) | low >> 16;
}

}  // namespace wi
