#include "src/buffer/plane_pages.h"

#include <xxhash.h>

namespace wi {

uint32_t page_checksum(const std::byte* page, size_t bytes) {
  return static_cast<uint32_t>(XXH3_64bits(page, bytes));
}

}  // namespace wi
