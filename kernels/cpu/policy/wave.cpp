// The wave policy's row in the backend's table, and the layout of its index with the check that lets an
// index from a file in.
#include "kernels/cpu/policy/wave.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace wi::cpu {
namespace {

void partition_offsets(const void* index, int32_t clusters, int32_t, int32_t* offsets) {
  const WaveIndex view = wave_view(index);
  offsets[0] = 0;
  for (int32_t c = 0; c < clusters; c++) offsets[c + 1] = offsets[c] + view.sizes[c];
}

bool all_finite(const void* numbers, int64_t count, DType kv) {
  float some[64];
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t here = count - i < 64 ? count - i : 64;
    from_kv(static_cast<const std::byte*>(numbers) + row_bytes(kv, i), kv, some, here);
    for (int64_t j = 0; j < here; j++)
      if (!std::isfinite(some[j])) return false;
  }
  return true;
}

constexpr float kMostStored = 1.01f * kWaveMostExtent;  // rounded up

}  // namespace

constinit const Policy wave_policy = {
    .name = "wave",
    .index_version = kWaveVersion,
    .wants_repeats = true,
    .depth_first = true,
    .most_partitions = wave_most_clusters,
    .index_capacity = wave_index_capacity,
    .index = wave_index,
    .pieces = &wave_index_pieces,
    .cut = wave_cut,
    .partition_offsets = partition_offsets,
    .select = wave_select,
    .estimate = wave_estimate,
    .index_valid = wave_index_valid,
    .description = "Clusters keys, reads the best clusters exactly and estimates the next (RetroInfer)",
};

bool wave_index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv) {
  WaveHeader header;
  if (!index || bytes < sizeof(header) || tokens < 1 || head_dim < 1) return false;
  std::memcpy(&header, index, sizeof(header));
  if (header.clusters != partitions || partitions < 1 || partitions > tokens) return false;
  const WaveHeader expected = wave_header(header.clusters, tokens, head_dim, kv);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0 || expected.bytes > bytes) return false;

  const WaveIndex view = wave_view(index);
  int32_t left = tokens;  // for the clusters from i on
  for (int32_t i = 0; i < view.clusters; i++) {
    if (view.sizes[i] < 1 || view.sizes[i] > left) return false;
    left -= view.sizes[i];
    const float radius = wave_radius(view.extents[i]), spread = wave_spread(view.extents[i]);
    if (!(radius >= 0 && radius <= kMostStored && spread >= 0 && spread <= kMostStored)) return false;
    if (!(view.residuals[i] >= 0 && view.residuals[i] <= kWaveMostExtent)) return false;
  }
  const int64_t padded = (int64_t{view.clusters} + kWaveTile - 1) / kWaveTile * kWaveTile;
  return left == 0 && all_finite(view.scales, padded, DType::f32) &&
         all_finite(view.centre, head_dim, DType::f32) &&
         all_finite(view.value_means, int64_t{view.clusters} * head_dim, kv) &&
         all_finite(view.axes, int64_t{view.clusters} * head_dim, kv);
}

void wave_centroid(const WaveIndex& index, int32_t cluster, int32_t head_dim, float* out) {
  for (int32_t i = 0; i < head_dim; i++) {
    const int32_t code = index.codes[wave_code(cluster, i, head_dim)] - 128;
    out[i] = index.centre[i] + index.scales[cluster] * static_cast<float>(code);
  }
}

}  // namespace wi::cpu
