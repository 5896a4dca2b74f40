// The host's memory: small pieces by mimalloc, or where there is none of version 2, the C library's posix_memalign
// (mimalloc.h); large ones mapped.
#pragma once

#include "src/memory/memory.h"

namespace wi {

class HostMemory final : public Memory {
 public:
  // From this size on a piece is mapped, and given back to the system when it is freed, whichever thread frees it;
  // aligned to a huge page where it is to have some. Most slabs of a page cache (buffer/page_cache.h) are such.
  static constexpr uint64_t kMappedBytes = uint64_t{1} << 20;

  // huge_pages: ask the kernel for them in pieces that are as long as one; false: ask it not to.
  explicit HostMemory(bool huge_pages) : huge_pages_(huge_pages) {}

  std::byte* allocate(uint64_t bytes, HostPages pages) override;
  void free(std::byte* data, uint64_t bytes) noexcept override;
  void copy(std::span<const CopyPiece> pieces) override;
  using Memory::copy;
  bool host_loads() const override { return true; }

 private:
  const bool huge_pages_;
};

}  // namespace wi
