// Small pieces come from mimalloc; large ones are mappings of their own. mimalloc 2 keeps a freed block
// of less than 16 MB until the thread that allocated it allocates again, which in a host with threads of
// its own may be never: a cache that shrinks must really shrink.
#include "src/memory/host_memory.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "src/memory/mimalloc.h"

namespace wi {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

std::byte* map(uint64_t bytes, bool huge_pages);
void unmap(std::byte* data, uint64_t bytes);

}  // namespace

std::byte* HostMemory::allocate(uint64_t bytes, HostPages pages) {
  if (bytes < kMappedBytes) return static_cast<std::byte*>(mimalloc().malloc_aligned(bytes, 64));
  return map(bytes, huge_pages_ && pages == HostPages::huge);
}

void HostMemory::free(std::byte* data, uint64_t bytes) noexcept {
  if (bytes < kMappedBytes)
    mimalloc().free(data);
  else
    unmap(data, bytes);
}

void HostMemory::copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

namespace {

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
uint64_t round_to_page(uint64_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

#ifdef MADV_HUGEPAGE
constexpr int kWithHugePages = MADV_HUGEPAGE, kWithoutHugePages = MADV_NOHUGEPAGE;
#else
constexpr int kWithHugePages = MADV_NORMAL, kWithoutHugePages = MADV_NORMAL;
#endif

std::byte* map_pages(uint64_t length) {
  void* const start = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

// Maps a huge page more than asked and cuts both ends off, so that the piece starts on a huge page.
std::byte* map_aligned(uint64_t length) {
  const uint64_t reserved = length + kHugePageBytes - page_bytes();
  std::byte* const start = map_pages(reserved);
  if (!start) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uint64_t head = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  if (head > 0) munmap(start, head);
  if (const uint64_t tail = reserved - head - length; tail > 0) munmap(start + head + length, tail);
  return start + head;
}

// Pieces that have no huge page lie next to each other, and are one mapping to the system, of which a process may have
// 65530. Each of the others is one, unless it is whole huge pages.
std::byte* map(uint64_t bytes, bool huge_pages) {
  if (bytes > PTRDIFF_MAX - 2 * kHugePageBytes) return nullptr;
  const uint64_t length = round_to_page(bytes);
  huge_pages = huge_pages && length >= kHugePageBytes;
  std::byte* const data = huge_pages ? map_aligned(length) : map_pages(length);
  // Advice: a kernel without transparent huge pages says no, and small pages do.
  if (data) madvise(data, length, huge_pages ? kWithHugePages : kWithoutHugePages);
  return data;
}

void unmap(std::byte* data, uint64_t bytes) { munmap(data, round_to_page(bytes)); }

}  // namespace
}  // namespace wi
