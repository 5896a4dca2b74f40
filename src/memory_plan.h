// How much memory a session of a model will take, before it is made: the store's own arithmetic, run on
// numbers alone.
#pragma once

#include <cstdint>

#include "src/error.h"
#include "src/runtime.h"
#include "src/segment_bytes.h"
#include "src/session.h"
#include "src/task_plan.h"

namespace wi {

// What a sequence of this many tokens holds after one prefill, and what it needs besides while it is read.
struct KvPlan {
  uint64_t kv_bytes = 0;       // keys and values of sink, segments and tail
  uint64_t index_bytes = 0;    // of all segments, at most; what orders their tokens included
  uint64_t sealing_bytes = 0;  // most that building a segment, and the tail waiting for it, takes on top
  uint64_t fast_bytes = 0;     // most of these that is in use at once and cannot be in a slow tier
  uint64_t slow_bytes = 0;     // of sealed keys and values, what may not stay out of it
};
// Of fast_bytes: what need not be in it.
struct SlowPlan {
  uint64_t room = UINT64_MAX;  // that there is for what leaves
  float share = 0;             // kv_fast_share
  int workers = 0;             // that lay out segments which go straight to the slow tier; 0: none does
  bool tail = false;           // nor do all of a prompt's tokens that are to be sealed
};
// By one call, or by a task (task_plan.h). workers: that build a segment beside decode steps.
KvPlan plan_kv(const KvShape& shape, const Policy& policy, const PolicyParams& params, int64_t chunk_tokens,
               int64_t tokens, const SlowPlan& slow = {}, int workers = 1);

// What segments take, all in all and at once, that are due while a sequence is decoded, or in the making, when it has
// so many tokens.
uint64_t decoded_sealing_bytes(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                               int64_t tokens, int workers);
// The longest tail of a sequence that is decoded, but for its last block.
int64_t decode_tail_tokens(const PolicyParams& params);
// What is made anew when a sequence is cut back to so many tokens: a segment of at most `longest` tokens in the place
// of one that is cut, with such an index, and keys and values of it that are tail again. longest 0: none is cut.
struct CutPlan {
  int32_t longest = 0;
  IndexSize index;
  uint64_t again_bytes = 0;
};
// most_sealed: as for truncate().
CutPlan plan_cut(const Sequence& sequence, const Policy& policy, const PolicyParams& params, int64_t tokens,
                 int64_t most_sealed = kSealedUnknown);
// What of a prompt is due to be sealed, with so many tokens more: segments of at most `longest` tokens with such an
// index, whose indexes stay. What is not settled may be sealed again, as part of a longer one. Others may keep the
// memory that whole ones take the place of. longest 0: none is.
struct SealPlan {
  int32_t longest = 0;
  IndexSize index;
  uint64_t stays_bytes = 0, kept_bytes = 0;
};
SealPlan plan_seal(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                   int64_t coming_tokens);
// Keys and values in frames that one step of the policy looks up, in all layers and heads.
uint64_t looked_up_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                         int64_t indexed_tokens);

// Whether some of such keys and values may be in a slow tier. Layers with a window want theirs at every step, and on
// a device nothing of a model that has some leaves.
inline bool may_leave(const Runtime& runtime, const KvShape& shape) {
  return runtime.buffer && (!shape.windows || (runtime.buffer->file() && shape.indexed_layers() > 0));
}
// Of a session with a slow tier, what it takes of both while they are left to it: of the fast one segments whole, where
// the runtime's budget is enough for that, or what plan_memory() calls fast_bytes; and in the slow one what that leaves,
// in whole segments.
struct TierPlan {
  uint64_t fast_bytes = 0, slow_bytes = 0;
};
struct TierPlans {
  TierPlan most, least;
};
// WI_E_BUDGET: the session's share of the fast tier leaves more to the slow one than that may have.
TierPlans plan_tiers(const Runtime& runtime, const Model& model, const SessionParams& params,
                     uint64_t tokens);
// What all sessions' keys and values in the slow tier may take, and take now.
uint64_t slow_tier_room(const Runtime& runtime);
uint64_t slow_tier_used(const Runtime& runtime);

// What a task of a session that has tokens takes, where there is no slow tier.
TaskBytes plan_task(const Session& session, int64_t prompt_tokens, int64_t answer_tokens);

wi_memory_plan plan_memory(const Runtime& runtime, const Model& model, const SessionParams& params,
                           uint64_t tokens);

}  // namespace wi
