// Whole pages, straight from the system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

uint64_t page_bytes();
inline uint64_t round_to_page(uint64_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

// length: whole pages. huge_pages: it starts on a huge page, and the system is asked for such, which it is asked not to
// do otherwise. Null: the system refused.
std::byte* map_pages(uint64_t length, bool huge_pages);

// Takes them away, or where that would take more mappings than a process may have (its neighbours are one with it, and
// would be two) only what is in them: then false.
bool unmap_pages(std::byte* data, uint64_t length) noexcept;

// What is in them goes back to the system; they stay, and read as zeros.
void empty_pages(std::byte* data, uint64_t length) noexcept;

}  // namespace wi
