// Lists with an element for each symbol of a word, which may be a text of many megabytes. Long ones lie on huge pages,
// where the system has them: they are given back in a moment, as a call that is cancelled has to, while a gigabyte of
// small pages takes the system more than 100 ms.
#pragma once

#include <cstddef>
#include <new>
#include <sys/mman.h>
#include <vector>

namespace wi {

template <class T>
struct LongListMemory {
  using value_type = T;
  static constexpr size_t kLongBytes = size_t{32} << 20, kHugePageBytes = size_t{2} << 20;

  LongListMemory() = default;
  template <class Other>
  LongListMemory(const LongListMemory<Other>&) {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < kLongBytes) return static_cast<T*>(::operator new(bytes));
    void* const list = ::operator new (bytes, std::align_val_t{kHugePageBytes});
#ifdef MADV_HUGEPAGE
    ::madvise(list, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);  // advice, which may be ignored
#endif
    return static_cast<T*>(list);
  }
  void deallocate(T* list, size_t count) {
    if (count * sizeof(T) < kLongBytes)
      ::operator delete(list);
    else
      ::operator delete (list, std::align_val_t{kHugePageBytes});
  }
  bool operator==(const LongListMemory&) const = default;
};

template <class T>
using LongList = std::vector<T, LongListMemory<T>>;

}  // namespace wi
