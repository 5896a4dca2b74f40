// The runtime that a test program's cases share: two threads, 256 MB.
#pragma once

#include <memory>

#include "src/runtime.h"

namespace wi::test {

inline std::shared_ptr<Runtime> runtime() {
  static const std::shared_ptr<Runtime> shared = [] {
    RuntimeParams params;
    params.threads = 2;
    params.kv_budget_bytes = uint64_t{1} << 28;
    return Runtime::create(params);
  }();
  return shared;
}

}  // namespace wi::test
