// The host's memory: large pieces are mappings of their own, smaller ones carved out of mappings (carved_memory.h),
// and either goes back to the system when it is freed, whichever thread frees it. What is smaller than eight pages
// comes from mimalloc, or where there is none of version 2, from the C library's posix_memalign (mimalloc.h), which
// keep it for what comes next.
#pragma once

#include "src/memory/carved_memory.h"
#include "src/memory/memory.h"

namespace wi {

class HostMemory final : public Memory {
 public:
  // From this size on a piece is a mapping; aligned to a huge page where it is to have some. Most slabs of a page cache
  // (buffer/page_cache.h) are such.
  static constexpr uint64_t kMappedBytes = uint64_t{1} << 20;
  // From this size on, eight pages, it is carved, so that whole pages are an eighth more at the most. In sanitizer
  // builds, which are to see who reads beyond a piece, kMappedBytes: none is.
  static uint64_t least_carved_bytes();

  // huge_pages: ask the kernel for them in pieces that are as long as one; false: ask it not to.
  explicit HostMemory(bool huge_pages) : huge_pages_(huge_pages) {}

  std::byte* allocate(uint64_t bytes, HostPages pages) override;
  void free(std::byte* data, uint64_t bytes) noexcept override;
  void copy(std::span<const CopyPiece> pieces) override;
  using Memory::copy;
  bool host_loads() const override { return true; }

 private:
  const bool huge_pages_;
  CarvedMemory carved_;
};

}  // namespace wi
