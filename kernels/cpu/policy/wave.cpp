// The wave policy's row in the backend's table, and the layout of its index with the check that lets an
// index from a file in.
#include "kernels/cpu/policy/wave.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace wi::cpu {
namespace {

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~uint64_t{63}; }

void partition_range(const SegmentView& segment, int32_t partition, int32_t* begin, int32_t* end) {
  // Not wave_view(), which looks at every array: this is called for every cluster that is retrieved.
  const WaveHeader& header = *static_cast<const WaveHeader*>(segment.index);
  const std::byte* offsets = static_cast<const std::byte*>(segment.index) + header.offsets;
  *begin = reinterpret_cast<const int32_t*>(offsets)[partition];
  *end = reinterpret_cast<const int32_t*>(offsets)[partition + 1];
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

// Select reads every code, scale, size and extent, and the axes of what it looks at twice, about two for
// each that is retrieved, and the positions of segments in which it looks for wanted tokens; estimate the
// value means of its zone.
int64_t index_bytes_read(const Lane& lane, const LanesArgs& args) {
  const int64_t row = static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  const int64_t looks = std::min<int64_t>(int64_t{kWaveLooks} * lane.retrieved_count, lane.partition_count);
  int64_t searched = 0;  // tokens
  for (int32_t w = 0; w < lane.wanted_count; w++) searched += lane.segments[lane.wanted[w].segment].tokens;
  return lane.partition_count * (int64_t{args.head_dim} + 12) + looks * (row + 4) +
         searched * static_cast<int64_t>(sizeof(int32_t)) + lane.estimated_count * row;
}

}  // namespace

constinit const Policy wave_policy = {
    .name = "wave",
    .index_version = kWaveVersion,
    .wants_repeats = true,
    .lane_by_lane = true,
    .index_capacity = wave_index_capacity,
    .index = wave_index,
    .pieces = &wave_index_pieces,
    .cut = wave_cut,
    .select = wave_select,
    .partition_range = partition_range,
    .estimate = wave_estimate,
    .index_bytes_read = index_bytes_read,
    .index_valid = wave_index_valid,
    .description = "Clusters keys, reads the best clusters exactly and estimates the next (RetroInfer)",
};

WaveHeader wave_header(int32_t clusters, int32_t tokens, int32_t head_dim, DType kv) {
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
  header.offsets = header.residuals + aligned(count * 4);
  header.bytes = header.offsets + aligned((count + 1) * 4);
  return header;
}

WaveIndex wave_view(const void* index) {
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
          .residuals = reinterpret_cast<const float*>(base + header.residuals),
          .offsets = reinterpret_cast<const int32_t*>(base + header.offsets)};
}

bool wave_index_valid(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv) {
  WaveHeader header;
  if (!index || bytes < sizeof(header) || tokens < 1 || head_dim < 1) return false;
  std::memcpy(&header, index, sizeof(header));
  if (header.clusters != partitions || partitions < 1 || partitions > tokens) return false;
  const WaveHeader expected = wave_header(header.clusters, tokens, head_dim, kv);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0 || expected.bytes > bytes) return false;

  const WaveIndex view = wave_view(index);
  if (view.offsets[0] != 0 || view.offsets[view.clusters] != tokens) return false;
  for (int32_t i = 0; i < view.clusters; i++) {
    if (view.sizes[i] < 1 || view.offsets[i] > tokens - view.sizes[i]) return false;
    if (view.offsets[i + 1] != view.offsets[i] + view.sizes[i]) return false;
    const float radius = wave_radius(view.extents[i]), spread = wave_spread(view.extents[i]);
    if (!(radius >= 0 && radius <= kMostStored && spread >= 0 && spread <= kMostStored)) return false;
    if (!(view.residuals[i] >= 0 && view.residuals[i] <= kWaveMostExtent)) return false;
  }
  const int64_t padded = (int64_t{view.clusters} + kWaveTile - 1) / kWaveTile * kWaveTile;
  return all_finite(view.scales, padded, DType::f32) && all_finite(view.centre, head_dim, DType::f32) &&
         all_finite(view.value_means, int64_t{view.clusters} * head_dim, kv) &&
         all_finite(view.axes, int64_t{view.clusters} * head_dim, kv);
}

uint32_t wave_extent(float radius, float spread) {
  const uint32_t high = std::bit_cast<uint32_t>(std::min(radius, kWaveMostExtent)) + 0xFFFF;
  const uint32_t low = std::bit_cast<uint32_t>(std::min(spread, kWaveMostExtent)) + 0x8000;
  return (high & 0xFFFF0000u) | low >> 16;
}

int64_t wave_code(int32_t cluster, int32_t dimension, int32_t head_dim) {
  const int64_t quads = (int64_t{head_dim} + kWaveQuad - 1) / kWaveQuad;
  const int64_t quad = cluster / kWaveTile * quads + dimension / kWaveQuad;
  return (quad * kWaveTile + cluster % kWaveTile) * kWaveQuad + dimension % kWaveQuad;
}

void wave_centroid(const WaveIndex& index, int32_t cluster, int32_t head_dim, float* out) {
  for (int32_t i = 0; i < head_dim; i++) {
    const int32_t code = index.codes[wave_code(cluster, i, head_dim)] - 128;
    out[i] = index.centre[i] + index.scales[cluster] * static_cast<float>(code);
  }
}

}  // namespace wi::cpu
