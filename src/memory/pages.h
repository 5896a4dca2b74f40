// Whole pages, straight from the system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wi {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

uint64_t page_bytes();
inline uint64_t round_to_page(uint64_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

enum class PageSize {
  any,    // as the system has it
  small,  // it is asked for no others
  huge,   // it is asked for these, and the first one begins with the piece
};
// length: whole pages. Null: the system refused.
std::byte* map_pages(uint64_t length, PageSize size);

// Takes them away, or where that would take more mappings than a process may have (its neighbours are one with it, and
// would be two) only what is in them: then false.
bool unmap_pages(std::byte* data, uint64_t length) noexcept;

// What is in them goes back to the system; they stay, and read as zeros.
void empty_pages(std::byte* data, uint64_t length) noexcept;

}  // namespace wi
