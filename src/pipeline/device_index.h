// Index where keys and values are in a device's memory: the device makes the indexes of a new segment's planes, some at a
// time, and lays keys and values out where the segment has them.
#pragma once

#include <functional>
#include <span>

#include "src/pipeline/index.h"
#include "src/pipeline/index_room.h"

namespace wi {

// Beside a model's weights it is little, and enough planes at a time for thousands of blocks of threads.
constexpr size_t kIndexingBytes = size_t{96} << 20;

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

// Some of a segment's planes, whose tokens lie as runs_of(plane, runs) says in order of position. As above.
using RunsOfPlane = std::function<void(size_t plane, std::vector<KvRun>& runs)>;
bool index_on_device(std::span<const size_t> planes, const RunsOfPlane& runs_of, const Policy& policy,
                     const PolicyParams& params, const Stream& stream, Queue& queue, const Segment& segment,
                     IndexRoom& room, size_t most_bytes = kIndexingBytes);

}  // namespace wi
