// Prefill: a chunk of a prompt at once, with exact attention over everything before it.
#pragma once

#include <span>

#include "src/layer.h"
#include "src/pipeline/segment_ahead.h"
#include "src/store/sequence.h"

namespace wi {

enum class PrefillLogits { none, last, all };

// Writes the chunk's keys and values after sequence.tokens(), where room is reserved; commits nothing.
// logits_out: (1, vocab) for last, (tokens - unwanted, vocab) for all, of which the first ones are nobody's. ahead: is told
// of each layer's keys and values; or null.
void prefill_chunk(const Step& step, Sequence& sequence, std::span<const int32_t> tokens,
                   PrefillLogits wanted, float* logits_out, int64_t unwanted = 0,
                   SegmentAhead* ahead = nullptr);

// Tokens per chunk: enough that reading (and dequantising) the weights is a few percent of the products. The first
// chunk of all has the sink besides, so that the following ones begin where segments may end.
int64_t prefill_chunk_step(const ModelConfig& config);
int64_t prefill_chunk_tokens(const ModelConfig& config);  // the most

}  // namespace wi
