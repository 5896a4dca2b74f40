// A row of a step: one position of one session, or of a KV store. It sees the sequence's tokens up to its own.
#pragma once

#include <span>

#include "kernels/policy.h"
#include "kernels/token_weights.h"
#include "src/stats.h"
#include "src/store/sequence.h"

namespace wi {

constexpr size_t kMostWanted = 16;  // of Row::wanted

struct Row {
  Sequence* sequence = nullptr;  // with room reserved for `position`
  int64_t position = 0;
  const Policy* policy = nullptr;
  const PolicyParams* params = nullptr;
  StepStats* stats = nullptr;  // counters of this row
  std::span<const WantedTokens> wanted = {};
  int32_t token = 0;
  float* logits = nullptr;  // out (vocab), or null if nobody asks
  // Of a backend that samples: by what, and out; null: nobody asks. Rows that follow each other have places that do.
  SamplingRow sampling = {};
  SampledRow* sampled = nullptr;
  int32_t session = -1;  // its session's place in a batch, for messages; -1: there is no other
};

}  // namespace wi
