// Runtimes of tests. With WI_TEST_MEMORY=guarded in the environment, keys and values are in guarded memory, closed to
// all but copies and kernels.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "src/runtime.h"
#include "tests/support/guarded_memory.h"

namespace wi::test {

inline bool memory_is_guarded() {
  const char* const memory = std::getenv("WI_TEST_MEMORY");
  return memory && std::string_view(memory) == "guarded";
}

// One with a backend or a memory of the test's own is as the test has it.
inline std::shared_ptr<Runtime> create_runtime(RuntimeParams params) {
  if (memory_is_guarded() && !params.backend && !params.kv_memory) {
    params.backend = &guarded_backend();
    params.kv_memory = std::make_shared<GuardedMemory>();
  }
  return Runtime::create(params);
}

// The one that a test program's cases share: two threads, 256 MB.
inline std::shared_ptr<Runtime> runtime() {
  static const std::shared_ptr<Runtime> shared = [] {
    RuntimeParams params;
    params.threads = 2;
    params.kv_budget_bytes = uint64_t{1} << 28;
    return create_runtime(params);
  }();
  return shared;
}

}  // namespace wi::test
