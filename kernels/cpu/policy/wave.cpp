// The wave policy's row in the backend's table, and the layout of its index with the check that lets an
// index from a file in.
#include "kernels/cpu/policy/wave.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace wi::cpu {
namespace {

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~uint64_t{63}; }

void partition_range(const SegmentView& segment, int32_t partition, int32_t* begin, int32_t* end) {
  const WaveIndex index = wave_view(segment.index);
  *begin = index.offsets[partition];
  *end = index.offsets[partition + 1];
}

bool all_finite(const std::byte* numbers, int64_t count, DType kv) {
  float some[64];
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t here = count - i < 64 ? count - i : 64;
    from_kv(numbers + row_bytes(kv, i), kv, some, here);
    for (int64_t j = 0; j < here; j++)
      if (!std::isfinite(some[j])) return false;
  }
  return true;
}

// Select reads every centroid, size and radius; estimate the value means of its zone.
int64_t index_bytes_read(const Lane& lane, const LanesArgs& args) {
  const int64_t row = static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  return lane.partition_count * (row + 8) + lane.estimated_count * row;
}

}  // namespace

constinit const Policy wave_policy = {
    .name = "wave",
    .index_capacity = wave_index_capacity,
    .index = wave_index,
    .select = wave_select,
    .partition_range = partition_range,
    .estimate = wave_estimate,
    .index_bytes_read = index_bytes_read,
    .index_valid = wave_index_valid,
};

WaveHeader wave_header(int32_t clusters, int32_t tokens, int32_t head_dim, DType kv) {
  const uint64_t count = static_cast<uint64_t>(clusters);
  const uint64_t tiles = (count + kWaveTile - 1) / kWaveTile;
  const uint64_t centroid_bytes = aligned(tiles * kWaveTile * row_bytes(kv, head_dim));
  const uint64_t value_bytes = aligned(count * row_bytes(kv, head_dim));
  const uint64_t words = aligned(count * 4);
  const uint64_t centroids = aligned(sizeof(WaveHeader));
  const uint64_t values = centroids + centroid_bytes;
  const uint64_t sizes = values + value_bytes;
  return {.magic = kWaveMagic,
          .version = kWaveVersion,
          .clusters = clusters,
          .tokens = tokens,
          .head_dim = head_dim,
          .kv = static_cast<int32_t>(kv),
          .centroids = centroids,
          .value_means = values,
          .sizes = sizes,
          .radii = sizes + words,
          .offsets = sizes + 2 * words,
          .bytes = sizes + 2 * words + aligned((count + 1) * 4)};
}

WaveIndex wave_view(const void* index) {
  const std::byte* base = static_cast<const std::byte*>(index);
  const WaveHeader& header = *static_cast<const WaveHeader*>(index);
  return {.clusters = header.clusters,
          .centroids = base + header.centroids,
          .value_means = base + header.value_means,
          .sizes = reinterpret_cast<const int32_t*>(base + header.sizes),
          .radii = reinterpret_cast<const float*>(base + header.radii),
          .offsets = reinterpret_cast<const int32_t*>(base + header.offsets)};
}

bool wave_index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv) {
  WaveHeader header;
  if (!index || bytes < sizeof(header) || tokens < 1 || head_dim < 1) return false;
  std::memcpy(&header, index, sizeof(header));
  if (header.clusters != partitions || partitions < 1 || partitions > tokens) return false;
  const WaveHeader expected = wave_header(header.clusters, tokens, head_dim, kv);
  if (std::memcmp(&header, &expected, sizeof(header)) || expected.bytes > bytes) return false;

  const WaveIndex view = wave_view(index);
  if (view.offsets[0] != 0 || view.offsets[view.clusters] != tokens) return false;
  for (int32_t i = 0; i < view.clusters; i++) {
    if (view.sizes[i] < 1 || view.offsets[i] > tokens - view.sizes[i]) return false;
    if (view.offsets[i + 1] != view.offsets[i] + view.sizes[i]) return false;
    if (!std::isfinite(view.radii[i]) || view.radii[i] < 0) return false;
  }
  const int64_t rows = view.clusters;
  return all_finite(view.centroids, (rows + kWaveTile - 1) / kWaveTile * kWaveTile * head_dim, kv) &&
         all_finite(view.value_means, rows * head_dim, kv);
}

void wave_centroid(const WaveIndex& index, int32_t cluster, int32_t head_dim, DType kv, float* out) {
  const int64_t first = int64_t{cluster / kWaveTile} * head_dim * kWaveTile + cluster % kWaveTile;
  for (int64_t i = 0; i < head_dim; i++) {
    from_kv(index.centroids + row_bytes(kv, first + i * kWaveTile), kv, out + i, 1);
  }
}

}  // namespace wi::cpu
