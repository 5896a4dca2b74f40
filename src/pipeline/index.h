// Index and Offload: the oldest part of a sequence's tail becomes a segment. The policy clusters each
// (layer, KV head) and lays its tokens out partition by partition, straight into the segment's pages in host
// memory, which is the tier that segments live in on a machine without a GPU.
#pragma once

#include <functional>

#include "kernels/ops.h"
#include "src/store/sequence.h"

namespace wi {

struct SealContext {
  const Backend& backend;
  const Policy& policy;
  const PolicyParams& params;
  const Stream& stream;
  // Called with each new segment before it is shared (prefix reuse sets its lineage here); may be empty.
  std::function<void(const std::shared_ptr<Segment>&)> on_segment;
};

enum class SealWhen { prefilling, prefilled, decoding };

// Tokens that the next segment should have now, 0 for none: whole segments while a prompt is read, what is
// left in whole decode segments at its end, decode segments while decoding; the local window always stays.
int32_t sealable_tokens(const Sequence& sequence, const PolicyParams& params, SealWhen when);

// Seals while sealable_tokens() says so. Throws WI_E_BUDGET, WI_E_MEMORY or WI_E_CANCELLED, and then the
// sequence holds the same tokens as before.
void seal(Sequence& sequence, const SealContext& context, SealWhen when);

// The tokens of a sequence in another, empty one, sealed as the context's policy does after one prefill.
// Throws as seal() does.
void reindex(const Sequence& from, const SealContext& context, Sequence& to);

}  // namespace wi
