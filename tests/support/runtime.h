// The runtime that a test program's cases share: two threads, 256 MB. With WI_TEST_MEMORY=guarded in the
// environment, keys and values are in guarded memory, closed to all but copies and kernels.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "src/runtime.h"
#include "tests/support/guarded_memory.h"

namespace wi::test {

inline std::shared_ptr<Runtime> runtime() {
  static const std::shared_ptr<Runtime> shared = [] {
    RuntimeParams params;
    params.threads = 2;
    params.kv_budget_bytes = uint64_t{1} << 28;
    const char* const memory = std::getenv("WI_TEST_MEMORY");
    if (memory && std::string_view(memory) == "guarded") {
      params.backend = &guarded_backend();
      params.kv_memory = std::make_shared<GuardedMemory>();
    }
    return Runtime::create(params);
  }();
  return shared;
}

}  // namespace wi::test
