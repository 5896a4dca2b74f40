#include "src/buffer/slow_kv.h"

#include <algorithm>
#include <cstring>

namespace wi {
SlowKv::SlowKv(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache, std::vector<Plane> planes,
               int32_t tokens, size_t row_bytes)
    : file_(std::move(file)),
      cache_(std::move(cache)),
      planes_(std::move(planes)),
      tokens_(tokens),
      row_bytes_(row_bytes),
      stored_(plane_bytes()),
      packed_(plane_bytes()) {
  for (const Plane& plane : planes_) entry_count_ += static_cast<size_t>(plane.partitions);
  entries_ = std::make_unique<EntrySlot[]>(entry_count_);
  for (size_t i = 0; i < entry_count_; ++i) entries_[i].store(kNoEntry, std::memory_order_relaxed);
  extent_ = file_->reserve(planes_.size() * plane_bytes(), "a cold segment");
  size_t first = 0;
  for (size_t i = 0; i < planes_.size(); ++i) {
    views_.push_back({&extent_, i * plane_bytes(), entries_.get() + first, cache_.get()});
    first += static_cast<size_t>(planes_[i].partitions);
  }
}

SlowKv::~SlowKv() { cache_->forget({entries_.get(), entry_count_}); }

template <class Page>
void SlowKv::each_page(size_t number, int32_t first, int32_t end, Page&& page) const {
  const Plane& plane = planes_[number];
  const int32_t* const last = plane.offsets + plane.partitions;
  for (const int32_t* p = std::upper_bound(plane.offsets, last, first) - 1; p < last && *p < end; ++p)
    for (int32_t at = *p; at < p[1] && at < end; at += kFrameTokens)
      if (at + kFrameTokens > first) page(at, std::min(kFrameTokens, p[1] - at));
}

void SlowKv::write_plane(size_t plane) {
  const std::byte* const keys = stored_.data();
  const std::byte* const values = keys + static_cast<size_t>(tokens_) * row_bytes_;
  each_page(plane, 0, tokens_, [&](int32_t first, int32_t count) {
    const size_t at = static_cast<size_t>(first) * row_bytes_,
                 bytes = static_cast<size_t>(count) * row_bytes_;
    std::byte* const to = packed_.data() + 2 * at;
    std::memcpy(to, keys + at, bytes);
    std::memcpy(to + bytes, values + at, bytes);
  });
  file_->write(extent_, plane * plane_bytes(), packed_.data(), plane_bytes());
}

ReadRequest SlowKv::request(size_t plane, int32_t first, int32_t count, void* to) const {
  int32_t begin = -1, end = 0;
  each_page(plane, first, first + count, [&](int32_t at, int32_t tokens) {
    if (begin < 0) begin = at;
    end = at + tokens;
  });
  const size_t token = 2 * row_bytes_;
  return {&extent_, plane * plane_bytes() + static_cast<size_t>(begin) * token,
          static_cast<size_t>(end - begin) * token, to};
}

void SlowKv::unpack(size_t plane, int32_t first, int32_t count, const std::byte* read, std::byte* keys,
                    std::byte* values) const {
  each_page(plane, first, first + count, [&](int32_t at, int32_t tokens) {
    const int32_t skip = std::max(first - at, 0), stop = std::min(first + count - at, tokens);
    const size_t to = static_cast<size_t>(at + skip - first) * row_bytes_,
                 from = static_cast<size_t>(skip) * row_bytes_,
                 bytes = static_cast<size_t>(stop - skip) * row_bytes_;
    std::memcpy(keys + to, read + from, bytes);
    std::memcpy(values + to, read + static_cast<size_t>(tokens) * row_bytes_ + from, bytes);
    read += static_cast<size_t>(tokens) * 2 * row_bytes_;
  });
}

}  // namespace wi
