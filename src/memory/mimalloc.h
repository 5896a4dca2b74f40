// Where small buffers of the library's own come from: mimalloc as a private allocator. Distributions build
// libmimalloc.so so that it exports malloc, free and operator new: linking it would put it under the whole
// host program. So it is opened at run time with local scope, and only the functions in this table are used.
// The host's malloc stays the host's.
#pragma once

#include <cstddef>

namespace wi {

struct Mimalloc {
  void* (*malloc_aligned)(size_t bytes, size_t alignment) = nullptr;  // null when the system refuses
  void (*free)(void* data) = nullptr;                                 // from any thread
};

// The library named at configure time, opened once and never closed: threads that used it run its
// destructors when they end. The C library's allocator instead where mimalloc cannot be opened, if only
// because memory is refused at that moment (dlopen's words do not tell that from a library that is not
// installed), and where it is not of version 2: that one (2.0.9 to 2.2.4) stands every refused mapping, while
// 3 (3.2.8, 3.4.3) follows null pointers where a thread's first is refused.
// In sanitizer builds (WI_SANITIZED) it is the C library's, too, so that an overrun, a use after free or a
// race is seen; a private heap hides all three. Valgrind takes every library's free() for the C library's;
// --soname-synonyms=somalloc=nouserintercepts keeps it from mixing the two.
const Mimalloc& mimalloc() noexcept;

Mimalloc load_mimalloc(const char* soname) noexcept;

}  // namespace wi
