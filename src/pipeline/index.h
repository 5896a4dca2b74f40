// Index and Offload: the oldest part of a sequence's tail becomes a segment. The policy clusters each
// (layer, KV head) and lays its tokens out partition by partition, straight into the segment's pages in the fast
// tier, or, where that has no room for them, head by head on their way to the slow one (straight.h).
#pragma once

#include "src/pipeline/seal_context.h"
#include "src/store/sequence.h"

namespace wi {

// Seals what of a prompt's tokens should be sealed by now, as SegmentGrid has it for a sequence of
// final_tokens, which is what it will have when the call that reads the prompt ends. Segments that are not
// settled and do not reach as far as that are sealed again as parts of longer ones, so that a prompt in
// pieces is cut as one in one piece; that and the order of the work is all that depends on the pieces. Throws
// WI_E_BUDGET, WI_E_MEMORY or WI_E_CANCELLED, and then the sequence holds the same tokens as before.
// coming: tokens that the same call reads next, exactly, before which nothing is asked: they may be what the local
// window leaves.
void seal_prompt(Sequence& sequence, const SealContext& context, int64_t final_tokens, int64_t coming = 0);

// The segment that it makes next, when it is due; tokens 0: there is no more.
SegmentSpan next_of_prompt(const Sequence& sequence, const PolicyParams& params, int64_t final_tokens);

// While decoding, before each step: settles what is sealed, and seals single units. A unit is sealed when
// kBuildTokens have come behind it and the local window, never earlier and never later; until then each step
// does its share of the work. What of the tail is in the slow tier is sealed at once where that is due, and else
// brought back. Throws as seal_prompt() does, or WI_E_IO.
void seal_decoded(Sequence& sequence, const SealContext& context);

// How far that reaches in a sequence of so many tokens that was sealed up to sealed_end when decoding began.
int64_t sealed_while_decoding(const PolicyParams& params, int64_t sealed_end, int64_t tokens);

// Of where a sequence was sealed up to at some time: not known.
constexpr int64_t kSealedUnknown = INT64_MAX;

// How far a sequence was sealed when it had so many tokens.
struct SealedAt {
  int64_t tokens = 0, sealed_end = kSinkTokens;
  bool operator==(const SealedAt&) const = default;
};

// The sequence's first `tokens` tokens. A segment that is cut keeps its partitions as far as they go, in
// whole blocks, for looking for new ones would cost what the whole segment did; the rest of it is tail again,
// and whatever is sealed behind most_sealed, or, if that is not known, within the local window. Settles. Throws as
// seal_prompt() does.
void truncate(Sequence& sequence, const SealContext& context, int64_t tokens,
              int64_t most_sealed = kSealedUnknown);

// The tokens of a sequence in another, empty one, sealed as the context's policy does after one prefill.
// Throws as seal_prompt() does.
void reindex(const Sequence& from, const SealContext& context, Sequence& to);

}  // namespace wi
