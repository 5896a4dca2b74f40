// Index where keys and values are in a device's memory: the device makes the indexes of a new segment's planes, some at a
// time, and lays keys and values out where the segment has them.
#pragma once

#include "src/pipeline/index.h"
#include "src/pipeline/index_room.h"

namespace wi {

// All planes but those of layers with a window, which have no index. False, and nothing is done: the host is to do it,
// as the policy has it done there or the device has no room to work in. Throws as build_segment() does, or what a
// call of the device failed with.
bool index_on_device(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                     const Segment& segment, IndexRoom& room);

}  // namespace wi
