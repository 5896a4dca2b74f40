// Of a new segment that the fast tier has no room for: its planes are laid out in the room of a few, and written to
// the slow tier as each is made. Where a segment is born decides no bit of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/policy.h"
#include "src/buffer/wave_buffer.h"
#include "src/store/segment.h"

namespace wi {

// So many of its planes are made at once, so that their room is far less than the segment; 0: it has too few of them.
int32_t straight_planes(const KvShape& shape, int workers);
// What that room takes.
uint64_t straight_bytes(const KvShape& shape, int64_t tokens, int workers);

class StraightPlanes {
 public:
  // The whole extent is there before the work begins. Throws WI_E_BUDGET, WI_E_IO, WI_E_MEMORY or WI_E_CANCELLED.
  // buffer: whose slow tier is a file.
  StraightPlanes(const Stream& stream, WaveBuffer& buffer, HostPool& pool, const KvShape& shape,
                 int32_t tokens);

  int32_t at_once() const { return at_once_; }
  // Of the plane that is made at that place: its keys, then values as they are laid out, and as much room besides,
  // which write() takes.
  std::byte* layout(int32_t place) const {
    return room_.data() + 2 * static_cast<size_t>(place) * plane_bytes_;
  }
  std::byte* spare(int32_t place) const { return layout(place) + plane_bytes_; }
  // Of a plane that is made: packed once, then written bit by bit, `done` bytes so far. True: all of it is. Others may
  // have the disk for so long that none is written. Throws WI_E_IO.
  void pack(int32_t place, const Policy& policy, const void* index, const IndexResult& result) const;
  bool write_some(size_t plane, int32_t place, size_t& done) const;
  // All planes are written, and the segment has its index.
  void attach_to(Segment& segment);

 private:
  WaveBuffer& buffer_;
  const int32_t tokens_, at_once_;
  const size_t row_bytes_, plane_bytes_;
  HostBuffer room_;
  SpillExtent extent_;
};

}  // namespace wi
