// Keys and values of a segment in the slow tier, as plane_pages.h has them, so that a cluster is one extent and
// one read; and where in the fast tier's frames those partitions are that steps have wanted. They are written
// to the spill file, or lie in a saved session, which others may change: there every page that is read is
// held against its checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/buffer/page_cache.h"
#include "src/buffer/plane_pages.h"
#include "src/buffer/spill_file.h"
#include "src/buffer/spill_reader.h"

namespace wi {

// One (layer, KV head) as retrieve sees it.
struct SlowPlane {
  const SpillExtent* extent = nullptr;
  uint64_t offset = 0;           // of its first partition, in the extent
  EntrySlot* entries = nullptr;  // (partitions)
  PageCache* cache = nullptr;
  const uint32_t* checksums = nullptr;  // (page_slots) of its pages; null: nobody else can write to the file

  // A page as it was read. Throws WI_E_FORMAT, naming the file, if it is not what was saved.
  void verify(int32_t slot, const std::byte* page, size_t bytes) const {
    if (checksums && page_checksum(page, bytes) != checksums[slot]) refuse();
  }

 private:
  [[noreturn]] void refuse() const;
};

class SlowKv {
 public:
  using Plane = PlaneLayout;  // its offsets must outlive this
  // What `read` gives, plane by plane: keys, then values (tokens, head_dim) in the stored order, 2 * tokens *
  // row_bytes. Throws WI_E_BUDGET, WI_E_IO, WI_E_MEMORY or, from `poll`, which is called between writes and
  // while others write, what that throws.
  template <class Read>
  static std::shared_ptr<SlowKv> write(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache,
                                       std::vector<Plane> planes, int32_t tokens, size_t row_bytes,
                                       Read&& read, const std::function<void()>& poll = {}) {
    SpillExtent extent =
        file->reserve(planes.size() * 2 * static_cast<size_t>(tokens) * row_bytes, "a cold segment", poll);
    std::shared_ptr<SlowKv> slow(new SlowKv(std::move(file), std::move(cache), std::move(extent), {},
                                            std::move(planes), tokens, row_bytes));
    std::vector<std::byte> stored(slow->plane_bytes()), packed(slow->plane_bytes());
    for (size_t plane = 0; plane < slow->planes_.size(); ++plane) {
      read(plane, stored.data());
      slow->write_plane(plane, stored.data(), packed.data(), poll);
    }
    return slow;
  }
  // Those that lie plane by plane in the extent already. file: whose readers read it. checksums: of the planes'
  // pages, plane after plane; empty: none.
  static std::shared_ptr<SlowKv> open(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache,
                                      SpillExtent extent, HostBuffer checksums, std::vector<Plane> planes,
                                      int32_t tokens, size_t row_bytes) {
    return std::shared_ptr<SlowKv>(new SlowKv(std::move(file), std::move(cache), std::move(extent),
                                              std::move(checksums), std::move(planes), tokens, row_bytes));
  }
  ~SlowKv();  // no step looks at it any more
  SlowKv(const SlowKv&) = delete;
  SlowKv& operator=(const SlowKv&) = delete;

  const SlowPlane& plane(size_t number) const { return views_[number]; }
  uint64_t bytes() const { return extent_.bytes(); }
  uint64_t checksum_bytes() const { return checksums_.bytes(); }    // in fast memory
  const std::shared_ptr<SpillFile>& file() const { return file_; }  // whose readers read it
  size_t row_bytes() const { return row_bytes_; }                   // of one key

  // Rows [first, first + count) of a plane in the stored order: what is to be read for them, and what was
  // read as keys and values (count, head_dim). Throws WI_E_FORMAT as SlowPlane::verify().
  ReadRequest request(size_t plane, int32_t first, int32_t count, void* to) const;
  void unpack(size_t plane, int32_t first, int32_t count, const std::byte* read, std::byte* keys,
              std::byte* values) const;

 private:
  SlowKv(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache, SpillExtent extent,
         HostBuffer checksums, std::vector<Plane> planes, int32_t tokens, size_t row_bytes);
  void write_plane(size_t plane, const std::byte* stored, std::byte* packed,
                   const std::function<void()>& poll);
  size_t plane_bytes() const { return 2 * static_cast<size_t>(tokens_) * row_bytes_; }

  const std::shared_ptr<SpillFile> file_;
  const std::shared_ptr<PageCache> cache_;
  const std::vector<Plane> planes_;
  const int32_t tokens_;
  const size_t row_bytes_;  // of one key
  const SpillExtent extent_;
  const HostBuffer checksums_;
  std::unique_ptr<EntrySlot[]> entries_;  // of all planes, one after the other
  size_t entry_count_ = 0;
  std::vector<SlowPlane> views_;
};

}  // namespace wi
