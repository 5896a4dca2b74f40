// What a kernel that is compiled without ThreadSanitizer's calls reads and writes, said once for all of it: at each of
// its accesses they take ten times as long as all else does.
#pragma once

#include <cstddef>

extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}

namespace wi::cpu {

#ifdef WI_THREAD_SANITIZED
constexpr bool kToldByOperands = true;
#else
constexpr bool kToldByOperands = false;
#endif

inline void reads(const void* operand, size_t bytes) {
  if constexpr (kToldByOperands) __tsan_read_range(const_cast<void*>(operand), bytes);
}
inline void writes(void* operand, size_t bytes) {
  if constexpr (kToldByOperands) __tsan_write_range(operand, bytes);
}

}  // namespace wi::cpu
