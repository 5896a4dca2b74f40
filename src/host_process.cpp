#include "src/host_process.h"

#include <atomic>
#include <pthread.h>

#include "src/error.h"

namespace wi {
namespace {

std::atomic<uint32_t> forks{0};

// When the library is loaded, so that no fork goes by unseen. Never withdrawn: the library stays loaded.
const int kRegistered =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint32_t fork_count() { return forks.load(std::memory_order_relaxed); }

void prepare_process() {
  check(kRegistered == 0, WI_E_MEMORY, "the C library had no memory to register a handler of fork()");
}

}  // namespace wi
