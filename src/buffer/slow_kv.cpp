#include "src/buffer/slow_kv.h"

#include <algorithm>
#include <cstring>

#include "src/error.h"

namespace wi {

void SlowPlane::refuse() const {
  fail(WI_E_FORMAT, extent->file().name(),
       ": damaged, or changed since it was opened: keys and values do not match their checksum");
}

SlowKv::SlowKv(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache, SpillExtent extent,
               HostBuffer checksums, std::vector<Plane> planes, int32_t tokens, size_t row_bytes)
    : file_(std::move(file)),
      cache_(std::move(cache)),
      planes_(std::move(planes)),
      tokens_(tokens),
      row_bytes_(row_bytes),
      extent_(std::move(extent)),
      checksums_(std::move(checksums)) {
  for (const Plane& plane : planes_) entry_count_ += static_cast<size_t>(plane.partitions);
  entries_ = std::make_unique<EntrySlot[]>(entry_count_);
  for (size_t i = 0; i < entry_count_; ++i) entries_[i].store(kNoEntry, std::memory_order_relaxed);
  size_t first = 0, slot = 0;
  for (size_t i = 0; i < planes_.size(); ++i) {
    views_.push_back({&extent_, i * plane_bytes(), entries_.get() + first, cache_.get(),
                      checksums_ ? checksums_.as<uint32_t>() + slot : nullptr});
    first += static_cast<size_t>(planes_[i].partitions);
    slot += page_slots(tokens_, planes_[i].partitions);
  }
}

SlowKv::~SlowKv() { cache_->forget({entries_.get(), entry_count_}); }

void SlowKv::write_plane(size_t plane, const std::byte* stored, std::byte* packed,
                         const std::function<void()>& poll) {
  pack_plane(planes_[plane], row_bytes_, stored, packed);
  file_->write(extent_, plane * plane_bytes(), packed, plane_bytes(), poll);
}

ReadRequest SlowKv::request(size_t plane, int32_t first, int32_t count, void* to) const {
  int32_t begin = -1, end = 0;
  each_page(planes_[plane], first, first + count, [&](const PlanePage& page) {
    if (begin < 0) begin = page.first;
    end = page.first + page.tokens;
  });
  const size_t token = 2 * row_bytes_;
  return {&extent_, plane * plane_bytes() + static_cast<size_t>(begin) * token,
          static_cast<size_t>(end - begin) * token, to};
}

void SlowKv::unpack(size_t plane, int32_t first, int32_t count, const std::byte* read, std::byte* keys,
                    std::byte* values) const {
  each_page(planes_[plane], first, first + count, [&](const PlanePage& page) {
    const size_t half = static_cast<size_t>(page.tokens) * row_bytes_;
    views_[plane].verify(page.slot, read, 2 * half);
    const int32_t skip = std::max(first - page.first, 0),
                  stop = std::min(first + count - page.first, page.tokens);
    const size_t to = static_cast<size_t>(page.first + skip - first) * row_bytes_,
                 from = static_cast<size_t>(skip) * row_bytes_,
                 bytes = static_cast<size_t>(stop - skip) * row_bytes_;
    std::memcpy(keys + to, read + from, bytes);
    std::memcpy(values + to, read + half + from, bytes);
    read += 2 * half;
  });
}

}  // namespace wi
