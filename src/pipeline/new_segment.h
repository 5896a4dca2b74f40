// A new segment, made as a whole of tokens that are there: of a prompt that was read, of another policy's sequence, or
// the beginning of an older segment. building.h makes one while its sequence goes on decoding.
#pragma once

#include <memory>

#include "src/pipeline/seal_context.h"
#include "src/store/sequence.h"

namespace wi {

// whole: a segment that it is the beginning of, whose partitions it keeps, or null. Throws as seal_prompt() does.
std::shared_ptr<Segment> build_segment(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                                       const Segment* whole = nullptr);

}  // namespace wi
