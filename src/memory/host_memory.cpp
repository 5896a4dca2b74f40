// Not from mimalloc what a cache or a session is made of: mimalloc 2 keeps a freed block of less than 16 MB until
// the thread that allocated it allocates again, which in a host with threads of its own may be never, and the options
// of 2.0.9 (page_reset, reset_delay) change that only for what its own thread frees. A cache that shrinks must
// really shrink.
#include "src/memory/host_memory.h"

#include <algorithm>
#include <cstring>

#include "src/memory/mimalloc.h"
#include "src/memory/pages.h"

namespace wi {

std::byte* HostMemory::allocate(uint64_t bytes, HostPages pages) {
  if (bytes < least_carved_bytes()) return static_cast<std::byte*>(mimalloc().malloc_aligned(bytes, 64));
  if (bytes < kMappedBytes) return carved_.allocate(bytes);
  if (bytes > PTRDIFF_MAX - 2 * kHugePageBytes) return nullptr;
  // Pieces that have no huge page lie next to each other, and are one mapping to the system, of which a process may
  // have 65530. Each of the others is one, unless it is whole huge pages.
  const bool huge = huge_pages_ && pages == HostPages::huge && bytes >= kHugePageBytes;
  return map_pages(round_to_page(bytes), huge ? PageSize::huge : PageSize::small);
}

void HostMemory::free(std::byte* data, uint64_t bytes) noexcept {
  if (bytes < least_carved_bytes())
    mimalloc().free(data);
  else if (bytes < kMappedBytes)
    carved_.free(data, bytes);
  else
    unmap_pages(data, round_to_page(bytes));
}

void HostMemory::copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

uint64_t HostMemory::least_carved_bytes() {
#ifdef WI_SANITIZED
  return kMappedBytes;
#else
  return std::min(8 * page_bytes(), kMappedBytes);
#endif
}

}  // namespace wi
