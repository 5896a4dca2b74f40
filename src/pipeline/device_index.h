// Index where keys and values are in a device's memory: the device makes the indexes of a new segment's planes, some at a
// time, and lays keys and values out where the segment has them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/pipeline/index.h"
#include "src/pipeline/index_room.h"

namespace wi {

using RunsOfPlane = std::function<void(size_t plane, std::vector<KvRun>& runs)>;

// A plane's tokens in order of position, where kernels read them: first those of older segments, cluster by cluster
// there, which the new one takes the place of, then blocks of the tail.
void find_runs(const Sequence& sequence, SegmentSpan span, size_t plane, std::vector<KvRun>& runs);

// Beside a model's weights it is little, and enough planes at a time for thousands of blocks of threads.
constexpr size_t kIndexingBytes = size_t{96} << 20;

// Of lists that go to the device with planes, what there may be before they are waited for.
constexpr size_t kMostListed = size_t{8} << 20;

// Planes of a segment that a device indexes, some at a time: what they read is final where its queue comes to them.
class PlanesOnDevice {
 public:
  // What is given outlives it.
  PlanesOnDevice(Queue& queue, const Policy& policy, const PolicyParams& params, const Segment& segment,
                 IndexRoom& room);
  PlanesOnDevice(const PlanesOnDevice&) = delete;
  ~PlanesOnDevice() { queue_.drain(); }  // what was asked for uses what is about to go, however this ends
  // For as many at a time as there are, or as most_bytes of the device's memory hold, but at least one. False: the device
  // has no room.
  bool open(size_t planes, size_t most_bytes);
  // Their tokens lie as runs_of(plane, runs) says in order of position. paced: with each part, as Queue::keep_pace().
  void ask(const Stream& stream, std::span<const size_t> planes, const RunsOfPlane& runs_of, bool paced);
  // All of them are done, and the room has their results. Throws what a call of the device failed with, and what
  // Queue::finish(stream) throws.
  void finish(const Stream& stream);

 private:
  Queue& queue_;
  const Policy& policy_;
  const PolicyParams& params_;
  const Segment& segment_;
  IndexRoom& room_;
  size_t each_ = 0, together_ = 0, listed_ = 0;
  std::byte* work_ = nullptr;
  std::vector<std::vector<KvRun>> runs_;
  std::vector<IndexArgs> args_;
  std::vector<size_t> asked_;         // planes
  std::vector<IndexResult> results_;  // theirs, in as much room as all planes want
};

// All planes but those of layers with a window, which have no index, by the context's queue. False, and nothing is
// done: the host is to do it, for there is no queue, the policy has it done there, or the device has no room to work
// in. most_bytes: of that room, but at least one plane's. Throws WI_E_CANCELLED or what a call of the device failed
// with.
bool index_on_device(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                     const Segment& segment, IndexRoom& room, size_t most_bytes = kIndexingBytes);

// Of the device's memory, what that takes at most, of segments of so many tokens.
uint64_t indexing_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                        int32_t tokens, size_t most_bytes = kIndexingBytes);

// All planes but those of layers with a window.
std::vector<size_t> indexed_planes(const KvShape& shape);

// Some of a segment's planes, whose tokens lie as runs_of says. As above.
bool index_on_device(std::span<const size_t> planes, const RunsOfPlane& runs_of, const Policy& policy,
                     const PolicyParams& params, const Stream& stream, Queue& queue, const Segment& segment,
                     IndexRoom& room, size_t most_bytes = kIndexingBytes);

}  // namespace wi
