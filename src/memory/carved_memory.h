// Pieces of whole pages, carved out of larger mappings: with a mapping each, every hole that is freed between them
// would be one more to the system, and a process may have 65530. What is in a piece goes back to the system when
// it is freed, on the thread that frees it, and its addresses are the next one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "src/memory/extents.h"

namespace wi {

// Thread-safe; any thread may free what another allocated.
class CarvedMemory {
 public:
  // The least that a host pays which has all its mappings locked in memory (mlockall).
  static constexpr uint64_t kMappingBytes = uint64_t{8} << 20;

  CarvedMemory() = default;
  CarvedMemory(const CarvedMemory&) = delete;
  CarvedMemory& operator=(const CarvedMemory&) = delete;
  ~CarvedMemory();  // every piece has been freed

  // On a page, and whole small pages. bytes in (0, kMappingBytes]. Null: the system refused.
  std::byte* allocate(uint64_t bytes) noexcept;
  void free(std::byte* data, uint64_t bytes) noexcept;  // bytes: as allocated

  size_t mappings() const;

 private:
  struct Mapping {
    std::byte* start = nullptr;
    Extents taken = {};
    uint64_t too_long = UINT64_MAX;  // no hole is so long
  };
  // With mutex_ held:
  std::byte* take(Mapping& mapping, uint64_t length);
  Mapping* add();
  std::vector<Mapping>::iterator behind(const std::byte* data);

  mutable std::mutex mutex_;
  std::vector<Mapping> mappings_;  // by address
  size_t empty_ = 0;               // of them; no more than one stays, but where the system does not let it go
};

}  // namespace wi
