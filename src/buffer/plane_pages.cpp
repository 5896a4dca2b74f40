#include "src/buffer/plane_pages.h"

#include <cstring>
#include <xxhash.h>

namespace wi {

void pack_plane(const PlaneLayout& plane, size_t row_bytes, const std::byte* stored, std::byte* packed) {
  const std::byte* const values = stored + static_cast<size_t>(plane.tokens()) * row_bytes;
  each_page(plane, 0, plane.tokens(), [&](const PlanePage& page) {
    const size_t at = static_cast<size_t>(page.first) * row_bytes,
                 bytes = static_cast<size_t>(page.tokens) * row_bytes;
    std::byte* const to = packed + 2 * at;
    std::memcpy(to, stored + at, bytes);
    std::memcpy(to + bytes, values + at, bytes);
  });
}

uint32_t page_checksum(const std::byte* page, size_t bytes) {
  return static_cast<uint32_t>(XXH3_64bits(page, bytes));
}

}  // namespace wi
