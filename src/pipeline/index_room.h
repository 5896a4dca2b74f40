// Where the indexes of a new segment's heads are made, each in room for the most that it may take, and their
// way from there into the segment, which keeps what was used. A device makes them in room of its own memory.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/store/segment.h"

namespace wi {

// Whose index() lays out a layer: the sequence's policy's; where a window is all that is ever looked at, the
// full policy's, which keeps tokens in their order and has no index.
const Policy& layout_policy(const Backend& backend, const Policy& policy, const KvShape& shape,
                            int32_t layer);

class IndexRoom {
 public:
  // Room for indexes of segments of so many tokens. policy and params must outlive it.
  IndexRoom(const KvPools& pools, const KvShape& shape, const Policy& policy, const PolicyParams& params,
            int32_t tokens);
  // Room for those of a segment that is the beginning of this one: they have no more clusters than it has, of which there
  // may be more than a segment of its length is made with, for it may be the beginning of another itself.
  IndexRoom(const KvPools& pools, const Policy& policy, const PolicyParams& params, const Segment& whole);

  // What the policy's index() takes for one plane (layer * kv_heads + head). Its room is zeroed. host: where the
  // plane's keys, then values, are laid out if the segment's are a device's; place() brings them there. Else null.
  IndexArgs args(const Segment& segment, size_t plane, std::span<const KvRun> runs,
                 std::byte* host = nullptr);
  // The same for a device, all of it in its memory and the room as it is. open_on_device() comes first: room for all
  // planes, of the budget of keys and values; throws WI_E_BUDGET or WI_E_MEMORY.
  void open_on_device();
  IndexArgs args_on_device(const Segment& segment, size_t plane, std::span<const KvRun> runs);
  IndexArgs sizes(const Segment& segment) const;  // of every plane, without addresses
  static void place(const Segment& segment, size_t plane, const std::byte* host);
  void set_result(size_t plane, const IndexResult& result);
  void set_result_of_device(size_t plane, const IndexResult& result);
  void attach_to(Segment& segment);  // and gives the device's room back
  uint64_t device_bytes() const { return room_there_.bytes(); }

 private:
  IndexRoom(const KvPools& pools, const KvShape& shape, const Policy& policy, const PolicyParams& params,
            size_t capacity);
  // null: the plane has no index
  std::byte* room_of(const HostBuffer& room, size_t plane) const;

  const KvPools pools_;
  const KvShape shape_;
  const Policy& policy_;
  const PolicyParams& params_;
  size_t capacity_ = 0;           // of one plane
  std::vector<size_t> offsets_;   // (layers) of a layer's first plane in room_
  size_t bytes_ = 0;              // of all planes
  HostBuffer room_, room_there_;  // (planes of indexed layers, capacity)
  std::vector<IndexResult> results_;
  std::vector<Segment::MadeThere> made_there_;  // (planes); empty: none is
};

}  // namespace wi
