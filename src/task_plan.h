// What a task takes at once. It reads its prompt a chunk a call, and each call keeps what the session goes back to if it
// fails: also the tokens that a segment made meanwhile has taken the place of. One call for a whole prompt goes back to
// where it began, and keeps nothing of an empty session.
#pragma once

#include <cstdint>

#include "kernels/policy.h"
#include "src/store/sequence.h"

namespace wi {

// Of an empty session: any prompt of at most so many tokens, in chunks of chunk_tokens that begin anywhere. 0: where
// it takes no more than one call does.
uint64_t most_while_reading(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                            int64_t chunk_tokens, int64_t tokens);
// Any answer of an empty session that has so many tokens in the end.
uint64_t most_while_writing(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                            int64_t tokens, int workers);

struct TaskTokens {
  int64_t prompt = 0;  // a pending one included
  int64_t answer = 0;
  int64_t chunk = 0;        // of which so many are read at once
  int64_t sparse_read = 0;  // fewer are read through the policy
};
// Of a sequence that has tokens, all that it shares with others included: what it takes now, and at most.
struct TaskBytes {
  uint64_t now = 0, most = 0;
};
TaskBytes bytes_of_task(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                        const TaskTokens& task, int workers);

}  // namespace wi
