#include "src/pipeline/straight.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "src/cancel.h"

namespace wi {
namespace {

constexpr size_t kLeastPlanes = 4, kPlanesEach = 8;

size_t planes_of(const KvShape& shape) {
  return static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
}

}  // namespace

int32_t straight_planes(const KvShape& shape, int workers) {
  const size_t planes = planes_of(shape);
  if (planes < kLeastPlanes) return 0;
  return static_cast<int32_t>(std::clamp<size_t>(planes / kPlanesEach, 1, static_cast<size_t>(workers)));
}

uint64_t straight_bytes(const KvShape& shape, int64_t tokens, int workers) {
  return 2 * static_cast<uint64_t>(straight_planes(shape, workers)) * 2 * shape.head_bytes() *
         static_cast<uint64_t>(tokens);
}

StraightPlanes::StraightPlanes(const Stream& stream, WaveBuffer& buffer, HostPool& pool, const KvShape& shape,
                               int32_t tokens)
    : buffer_(buffer),
      tokens_(tokens),
      at_once_(straight_planes(shape, stream.workers)),
      row_bytes_(shape.head_bytes()),
      plane_bytes_(2 * shape.head_bytes() * static_cast<size_t>(tokens)),
      room_(pool.allocate(straight_bytes(shape, tokens, stream.workers), "laying out a segment")),
      extent_(buffer.file()->reserve(planes_of(shape) * plane_bytes_, "a new segment",
                                     [&] { throw_if_cancelled(stream); })) {}

void StraightPlanes::pack(int32_t place, const Policy& policy, const void* index,
                          const IndexResult& result) const {
  std::vector<int32_t> offsets(static_cast<size_t>(result.partitions) + 1);
  partition_offsets(policy, index, result.partitions, tokens_, offsets.data());
  pack_plane({offsets.data(), result.partitions}, row_bytes_, layout(place), spare(place));
}

// Those who make the other planes have the disk in between, and whoever is to come between looks whether it is time.
bool StraightPlanes::write_some(size_t plane, int32_t place, size_t& done) const {
  constexpr std::chrono::milliseconds kMostWait{10};
  done += buffer_.file()->write_some(extent_, plane * plane_bytes_ + done, spare(place) + done,
                                     plane_bytes_ - done, kMostWait);
  return done == plane_bytes_;
}

void StraightPlanes::attach_to(Segment& segment) { segment.attach_slow(buffer_, std::move(extent_), {}); }

}  // namespace wi
