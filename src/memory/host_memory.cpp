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

// Maps a huge page more than asked and cuts both ends off, so that the piece starts on a huge page.
std::byte* map(uint64_t bytes, bool huge_pages) {
  if (bytes > PTRDIFF_MAX - 2 * kHugePageBytes) return nullptr;
  uint64_t length = round_to_page(bytes), reserved = length + kHugePageBytes - page_bytes();
  void* start = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto address = reinterpret_cast<uintptr_t>(start);
  uintptr_t aligned = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  if (aligned > address) munmap(start, aligned - address);
  uint64_t tail = address + reserved - (aligned + length);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + length), tail);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  // Advice: a kernel without transparent huge pages says no, and small pages do.
  madvise(data, length, huge_pages ? kWithHugePages : kWithoutHugePages);
  return data;
}

void unmap(std::byte* data, uint64_t bytes) { munmap(data, round_to_page(bytes)); }

}  // namespace
}  // namespace wi
