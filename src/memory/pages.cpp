#include "src/memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace wi {
namespace {

#ifdef MADV_HUGEPAGE
constexpr int kWithHugePages = MADV_HUGEPAGE, kWithoutHugePages = MADV_NOHUGEPAGE;
#else
constexpr int kWithHugePages = MADV_NORMAL, kWithoutHugePages = MADV_NORMAL;
#endif

std::byte* map(uint64_t length) {
  void* const start = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

// Maps a huge page more than asked and cuts both ends off, so that the piece starts on a huge page.
std::byte* map_aligned(uint64_t length) {
  const uint64_t reserved = length + kHugePageBytes - page_bytes();
  std::byte* const start = map(reserved);
  if (!start) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uint64_t head = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  if (head > 0) munmap(start, head);
  if (const uint64_t tail = reserved - head - length; tail > 0) munmap(start + head + length, tail);
  return start + head;
}

}  // namespace

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::byte* map_pages(uint64_t length, PageSize size) {
  std::byte* const data = size == PageSize::huge ? map_aligned(length) : map(length);
  // Advice: a kernel without transparent huge pages says no, and small pages do.
  if (data && size != PageSize::any)
    madvise(data, length, size == PageSize::huge ? kWithHugePages : kWithoutHugePages);
  return data;
}

bool unmap_pages(std::byte* data, uint64_t length) noexcept {
  if (munmap(data, length) == 0) return true;
  empty_pages(data, length);
  return false;
}

void empty_pages(std::byte* data, uint64_t length) noexcept {
  if (madvise(data, length, MADV_DONTNEED) == 0) return;
#ifdef MADV_DONTNEED_LOCKED  // of a host that has locked all its memory
  madvise(data, length, MADV_DONTNEED_LOCKED);
#endif
}

}  // namespace wi
