// What a kernel that is compiled without ThreadSanitizer's calls reads and writes, said once for all of it: at each of
// its accesses they take ten times as long as all else does.
#pragma once

#include <cstddef>

#ifdef WI_THREAD_SANITIZED
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#endif

namespace wi::cpu {

inline void reads([[maybe_unused]] const void* operand, [[maybe_unused]] size_t bytes) {
#ifdef WI_THREAD_SANITIZED
  __tsan_read_range(const_cast<void*>(operand), bytes);
#endif
}

inline void writes([[maybe_unused]] void* operand, [[maybe_unused]] size_t bytes) {
#ifdef WI_THREAD_SANITIZED
  __tsan_write_range(operand, bytes);
#endif
}

}  // namespace wi::cpu
