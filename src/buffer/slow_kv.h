// Keys and values of a segment in the slow tier: partition by partition, each in pages of kFrameTokens tokens
// (keys, then values), so that a cluster is one extent and one read; and where in the fast tier's frames those
// partitions are that steps have wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/buffer/page_cache.h"
#include "src/buffer/spill_file.h"
#include "src/buffer/spill_reader.h"

namespace wi {

// One (layer, KV head) as retrieve sees it.
struct SlowPlane {
  const SpillExtent* extent = nullptr;
  uint64_t offset = 0;           // of its first partition, in the extent
  EntrySlot* entries = nullptr;  // (partitions)
  PageCache* cache = nullptr;
};

class SlowKv {
 public:
  // Of one plane: offsets (partitions + 1) in the stored order, which must outlive this.
  struct Plane {
    const int32_t* offsets;
    int32_t partitions;
  };
  // What `read` gives, plane by plane: keys, then values (tokens, head_dim) in the stored order, 2 * tokens *
  // row_bytes. Throws WI_E_BUDGET, WI_E_IO or WI_E_MEMORY.
  template <class Read>
  static std::shared_ptr<SlowKv> write(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache,
                                       std::vector<Plane> planes, int32_t tokens, size_t row_bytes,
                                       Read&& read) {
    std::shared_ptr<SlowKv> slow(
        new SlowKv(std::move(file), std::move(cache), std::move(planes), tokens, row_bytes));
    for (size_t plane = 0; plane < slow->planes_.size(); ++plane) {
      read(plane, slow->stored_.data());
      slow->write_plane(plane);
    }
    slow->stored_ = {};
    slow->packed_ = {};
    return slow;
  }
  ~SlowKv();  // no step looks at it any more
  SlowKv(const SlowKv&) = delete;
  SlowKv& operator=(const SlowKv&) = delete;

  const SlowPlane& plane(size_t number) const { return views_[number]; }
  uint64_t bytes() const { return extent_.bytes(); }
  const std::shared_ptr<SpillFile>& file() const { return file_; }
  size_t row_bytes() const { return row_bytes_; }  // of one key

  // Rows [first, first + count) of a plane in the stored order: what is to be read for them, and what was
  // read as keys and values (count, head_dim).
  ReadRequest request(size_t plane, int32_t first, int32_t count, void* to) const;
  void unpack(size_t plane, int32_t first, int32_t count, const std::byte* read, std::byte* keys,
              std::byte* values) const;

 private:
  SlowKv(std::shared_ptr<SpillFile> file, std::shared_ptr<PageCache> cache, std::vector<Plane> planes,
         int32_t tokens, size_t row_bytes);
  void write_plane(size_t plane);
  // page(its first token, its tokens) for each page of a plane with some of the rows, in order.
  template <class Page>
  void each_page(size_t plane, int32_t first, int32_t end, Page&& page) const;
  size_t plane_bytes() const { return 2 * static_cast<size_t>(tokens_) * row_bytes_; }

  const std::shared_ptr<SpillFile> file_;
  const std::shared_ptr<PageCache> cache_;
  const std::vector<Plane> planes_;
  const int32_t tokens_;
  const size_t row_bytes_;  // of one key
  SpillExtent extent_;
  std::unique_ptr<EntrySlot[]> entries_;  // of all planes, one after the other
  size_t entry_count_ = 0;
  std::vector<SlowPlane> views_;
  std::vector<std::byte> stored_, packed_;  // while it is written
};

}  // namespace wi
