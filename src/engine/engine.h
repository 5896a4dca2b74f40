// The engine of a runtime: one thread that works on all submitted tasks, so that no host needs a scheduler
// of its own. Prompts are read in chunks between steps in which all writers get their next token (continuous
// batching); a chunk is interrupted, between two tasks of its loops, when the writers have waited long
// enough. Which tokens a task gets does not depend on any of that: chunks end at fixed positions, and a
// session's step is the same in every batch.
#pragma once

#include <memory>

#include "src/engine/task.h"

namespace wi {

// Hands a session to its runtime's engine, which is started if need be. Until the task has ended, calls on
// the session by others are WI_E_BUSY.
// Throws WI_E_BUSY, WI_E_STATE (nothing to read and nothing to write from), WI_E_MEMORY (no thread).
void submit_task(const std::shared_ptr<Task>& task);

}  // namespace wi
