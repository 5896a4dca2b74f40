// Operands that end where a page begins that nobody may touch, so that what a kernel reads or writes behind them is a
// fault whatever the instruction: the address sanitizer sees none of those that its build is not compiled for. While
// there is an EdgeBefore, new ones begin behind such a page instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace wi::test {

class EdgeBefore {
 public:
  EdgeBefore() { there() = true; }
  EdgeBefore(const EdgeBefore&) = delete;
  ~EdgeBefore() { there() = false; }
  static bool& there() {
    static bool is_there = false;
    return is_there;
  }
};

template <class T>
struct EdgeAllocator {
  using value_type = T;
  EdgeAllocator() = default;
  template <class Other>
  EdgeAllocator(const EdgeAllocator<Other>&) {}  // as containers convert them

  // Of exactly so many: a vector that is made or assigned to at its full size has no room behind it.
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T), inside = whole_pages(bytes);
    void* const mapped =
        mmap(nullptr, inside + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    std::byte* const begin = static_cast<std::byte*>(mapped) + page();
    if (mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    return reinterpret_cast<T*>(EdgeBefore::there() ? begin : begin + inside - bytes);
  }
  void deallocate(T* data, size_t count) {
    const size_t inside = whole_pages(count * sizeof(T));
    const auto first = reinterpret_cast<uintptr_t>(data) / page() * page();
    munmap(reinterpret_cast<void*>(first - page()), inside + 2 * page());
  }
  bool operator==(const EdgeAllocator&) const { return true; }

 private:
  static size_t page() {
    static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
  }
  static size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }
};

template <class T>
using Edged = std::vector<T, EdgeAllocator<T>>;

template <class T>
Edged<T> edged(const std::vector<T>& values) {
  return Edged<T>(values.begin(), values.end());
}

}  // namespace wi::test
