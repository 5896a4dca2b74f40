// With what segments are made.
#pragma once

#include <functional>
#include <memory>

#include "kernels/ops.h"
#include "src/memory/device.h"
#include "src/stats.h"
#include "src/store/segment.h"

namespace wi {

class SegmentAhead;
class WaveBuffer;

struct SealContext {
  const Backend& backend;
  const Policy& policy;
  const PolicyParams& params;
  const Stream& stream;
  // Called with each new segment before it is shared (prefix reuse sets its lineage here); may be empty.
  std::function<void(const std::shared_ptr<Segment>&)> on_segment;
  StepStats* stats = nullptr;  // sealed_tokens is counted there
  // Of reindex(): called before so many tokens are taken in and sealed, when nothing is being read; may be empty.
  std::function<void(int64_t tokens)> before_tokens = {};
  Queue* queue = nullptr;          // of the device that keys and values are on; null: the host indexes them
  SegmentAhead* ahead = nullptr;   // the next segment of a prompt, that a device has indexed by now; or null
  WaveBuffer* straight = nullptr;  // new segments go straight to its slow tier, a file; null: to the fast one
};

}  // namespace wi
