// mimalloc as a private allocator. Distributions build libmimalloc.so so that it exports malloc, free and
// operator new: linking it would put it under the whole host program. So it is opened at run time with
// local scope, and only the functions in this table are used. The host's malloc stays the host's.
#pragma once

#include <cstddef>

namespace wi {

struct Mimalloc {
  void* (*malloc_aligned)(size_t bytes, size_t alignment) = nullptr;  // null when the system refuses
  void (*free)(void* data) = nullptr;                                 // from any thread
};

// The library named at configure time, opened once and never closed: threads that used it run its
// destructors when they end. WI_E_UNSUPPORTED names it if it is not installed.
// In sanitizer builds (WI_SANITIZED) the table holds the C library's allocator, so that an overrun, a use
// after free or a race is seen; a private heap hides all three. Valgrind takes every library's free() for the
// C library's; --soname-synonyms=somalloc=nouserintercepts keeps it from mixing the two.
const Mimalloc& mimalloc();

Mimalloc load_mimalloc(const char* soname);

}  // namespace wi
