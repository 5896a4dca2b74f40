// A row of a decode step: one position of one session.
#pragma once

#include <span>

#include "kernels/policy.h"
#include "src/stats.h"
#include "src/store/sequence.h"

namespace wi {

struct DecodeRow {
  Sequence* sequence = nullptr;  // with room reserved for `position`
  int64_t position = 0;
  int32_t token = 0;
  const Policy* policy = nullptr;
  const PolicyParams* params = nullptr;
  StepStats* stats = nullptr;  // counters of this row
  float* logits = nullptr;     // out (vocab), or null if nobody asks
  std::span<const WantedTokens> wanted = {};
  int32_t session = -1;  // its session's place in a batch, for messages; -1: there is no other
};

}  // namespace wi
