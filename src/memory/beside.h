// Work at the pace of a disk for a caller whose host, or others on its thread, want to be heard meanwhile. It is done
// on a thread of its own: what the caller's thread then calls may want the very locks that the work holds, and waits
// for a thread that goes on.
#pragma once

#include <functional>

#include "src/memory/own_threads.h"

namespace wi {

// work(poll): poll throws as soon as meanwhile has thrown. meanwhile is called here again and again until the work has
// ended; the caller holds nothing that either wants. Throws what meanwhile threw, when the work has ended, or what the
// work did. False: the system refuses a thread, and nothing was done.
bool run_beside(const OwnThreads& own, const std::function<void(const std::function<void()>& poll)>& work,
                const std::function<void()>& meanwhile);

}  // namespace wi
