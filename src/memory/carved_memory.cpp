#include "src/memory/carved_memory.h"

#include <algorithm>
#include <new>

#include "src/memory/pages.h"

namespace wi {

std::byte* CarvedMemory::allocate(uint64_t bytes) noexcept try {
  const uint64_t length = round_to_page(bytes);
  std::lock_guard lock(mutex_);
  for (Mapping& mapping : mappings_)
    if (length < mapping.too_long)
      if (std::byte* const data = take(mapping, length)) return data;
  Mapping* const mapping = add();
  return mapping ? take(*mapping, length) : nullptr;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void CarvedMemory::free(std::byte* data, uint64_t bytes) noexcept {
  const uint64_t length = round_to_page(bytes);
  empty_pages(data, length);  // before they are another one's
  std::lock_guard lock(mutex_);
  const auto mapping = behind(data) - 1;
  mapping->taken.give(static_cast<uint64_t>(data - mapping->start), length);
  mapping->too_long = UINT64_MAX;
  if (mapping->taken.used() > 0) return;
  // One stays: a session that comes and goes alone is not to map and unmap each time.
  if (empty_ > 0 && unmap_pages(mapping->start, kMappingBytes))
    mappings_.erase(mapping);
  else
    ++empty_;
}

CarvedMemory::~CarvedMemory() {
  for (const Mapping& mapping : mappings_) unmap_pages(mapping.start, kMappingBytes);
}

size_t CarvedMemory::mappings() const {
  std::lock_guard lock(mutex_);
  return mappings_.size();
}

// Null: it has no hole that is long enough.
std::byte* CarvedMemory::take(Mapping& mapping, uint64_t length) {
  const bool was_empty = mapping.taken.used() == 0;
  const uint64_t offset = mapping.taken.take(length, kMappingBytes);
  if (offset == Extents::kNowhere) {
    mapping.too_long = length;
    return nullptr;
  }
  empty_ -= was_empty;
  return mapping.start + offset;
}

// Null: the system refused.
CarvedMemory::Mapping* CarvedMemory::add() {
  if (mappings_.size() == mappings_.capacity()) mappings_.reserve(2 * mappings_.size() + 8);
  std::byte* const start = map_pages(kMappingBytes, PageSize::small);
  if (!start) return nullptr;
  ++empty_;
  return &*mappings_.insert(behind(start), Mapping{start});
}

std::vector<CarvedMemory::Mapping>::iterator CarvedMemory::behind(const std::byte* data) {
  return std::upper_bound(mappings_.begin(), mappings_.end(), data,
                          [](const std::byte* at, const Mapping& mapping) { return at < mapping.start; });
}

}  // namespace wi
