// Every access to memory that a kernel makes comes by here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulation/shadow.h"

namespace cuda_emulation {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr size_t kMostShared = size_t{227} << 10;  // a block's, of compute capability 9.0

// Memory without a shadow that the kernel may read and write.
struct Region {
  uintptr_t begin = 0, end = 0;
};

// Of the thread that runs.
struct Running {
  uintptr_t stack = 0, shared = 0;  // where they begin
  size_t shared_bytes = 0;
  Shadow* shadow = nullptr;  // of those
  Moment now;
  // What the kernel's other accesses were found to be in, by their pages.
  static constexpr size_t kRegions = 64;
  Region regions[kRegions];
  Region& region_of(uintptr_t address) { return regions[address >> 12 & (kRegions - 1)]; }
};
extern Running running;
// Whether the calling thread of the host runs a kernel's: others run what the host has in these sources.
extern constinit thread_local bool runs_kernel;

[[noreturn]] void refuse(const Conflict& conflict, uintptr_t address, size_t bytes);
void access_elsewhere(uintptr_t address, size_t bytes, Access how);

__attribute__((always_inline)) inline void access(const void* where, size_t bytes, Access how) {
  if (!runs_kernel) return;
  const auto address = reinterpret_cast<uintptr_t>(where);
  if (bytes <= kStackBytes && address - running.stack <= kStackBytes - bytes) return;
  const uintptr_t offset = address - running.shared;
  if (offset < running.shared_bytes && bytes <= running.shared_bytes - offset) {
    const Conflict conflict = running.shadow->access(offset, bytes, how, running.now);
    if (conflict.what) [[unlikely]]
      refuse(conflict, address, bytes);
    return;
  }
  const Region& region = running.region_of(address);
  if (address >= region.begin && address + bytes <= region.end) return;
  access_elsewhere(address, bytes, how);
}

}  // namespace cuda_emulation
