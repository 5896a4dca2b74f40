// How much memory a session of a model will take, before it is made: the store's own arithmetic, run on
// numbers alone.
#pragma once

#include <cstdint>

#include "src/error.h"
#include "src/runtime.h"
#include "src/session.h"

namespace wi {

// What a sequence of this many tokens holds after one prefill, and what it needs besides while it is read.
struct KvPlan {
  uint64_t kv_bytes = 0;       // keys and values of sink, segments and tail
  uint64_t index_bytes = 0;    // of all segments, at most; what orders their tokens included
  uint64_t sealing_bytes = 0;  // most that building a segment, and the tail waiting for it, takes on top
  uint64_t fast_bytes = 0;     // most of these that is in use at once and cannot be in a slow tier
};
KvPlan plan_kv(const KvShape& shape, const Policy& policy, const PolicyParams& params, int64_t chunk_tokens,
               int64_t tokens);

// What making a segment of so many tokens takes at once: itself, and its index twice.
uint64_t making_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params, int32_t tokens);
// What stays of it beside keys and values.
uint64_t most_index_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                          int32_t tokens);
// Keys and values in frames that one step of the policy looks up, in all layers and heads.
uint64_t looked_up_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                         int64_t indexed_tokens);

wi_memory_plan plan_memory(const Runtime& runtime, const Model& model, const SessionParams& params,
                           uint64_t tokens);

}  // namespace wi
