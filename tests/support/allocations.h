// Counts what this program and the libraries under it allocate. Included by one file of a program; under a
// sanitizer, which has malloc itself, it counts nothing and kCounting says so.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace wi::test {
inline std::atomic<int64_t> allocations{0};
#ifdef WI_SANITIZED
constexpr bool kCounting = false;
#else
constexpr bool kCounting = true;
#endif
}  // namespace wi::test

#ifndef WI_SANITIZED
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) {
  wi::test::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  wi::test::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* data, size_t bytes) {
  wi::test::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(data, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  wi::test::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
}
#endif
