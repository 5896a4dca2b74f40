// Where the indexes of a new segment's heads are made, each in room for the most that it may take, and their
// way from there into the segment, which keeps what was used.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/memory/host_pool.h"
#include "src/store/segment.h"

namespace wi {

// Whose index() lays out a layer: the sequence's policy's; where a window is all that is ever looked at, the
// full policy's, which keeps tokens in their order and has no index.
const Policy& layout_policy(const Backend& backend, const Policy& policy, const KvShape& shape,
                            int32_t layer);

class IndexRoom {
 public:
  // Room for indexes of segments of so many tokens. policy and params must outlive it.
  IndexRoom(HostPool& pool, const KvShape& shape, const Policy& policy, const PolicyParams& params,
            int32_t tokens);
  // Room for those of a segment that is the beginning of this one: they have no more clusters than it has, of which there
  // may be more than a segment of its length is made with, for it may be the beginning of another itself.
  IndexRoom(HostPool& pool, const Policy& policy, const PolicyParams& params, const Segment& whole);

  // What the policy's index() takes for one plane (layer * kv_heads + head). Its room is zeroed. host: where the
  // plane's keys, then values, are laid out if the segment's are a device's; place() brings them there. Else null.
  IndexArgs args(const Segment& segment, size_t plane, std::span<const KvRun> runs,
                 std::byte* host = nullptr);
  // The same for a device, which makes places and index in room of its own: where they are to come, as it is.
  IndexArgs args_of_device(const Segment& segment, size_t plane, std::span<const KvRun> runs);
  static void place(const Segment& segment, size_t plane, const std::byte* host);
  void set_result(size_t plane, const IndexResult& result);
  void attach_to(Segment& segment);

 private:
  IndexRoom(HostPool& pool, const KvShape& shape, const Policy& policy, const PolicyParams& params,
            size_t capacity);
  IndexArgs args_at(const Segment& segment, size_t plane, std::span<const KvRun> runs, std::byte* host);
  std::byte* room_of(size_t plane);  // null: the plane has no index

  HostPool& pool_;
  const KvShape shape_;
  const Policy& policy_;
  const PolicyParams& params_;
  size_t capacity_ = 0;          // of one plane
  std::vector<size_t> offsets_;  // (layers) of a layer's first plane in room_
  HostBuffer room_;              // (planes of indexed layers, capacity)
  std::vector<IndexResult> results_;
};

}  // namespace wi
