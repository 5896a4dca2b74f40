// Which parts of a file or of a mapping are taken: extents in, extents out, first fit. Numbers only; who has one does
// to the file (buffer/spill_file.cpp) or the mapping (carved_memory.cpp) what they mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace wi {

class Extents {
 public:
  static constexpr uint64_t kNowhere = UINT64_MAX;
  struct Range {
    uint64_t offset, bytes;
  };

  // The first free range that is large enough, or the end if that stays within most_end; else kNowhere.
  // bytes > 0. Throws std::bad_alloc, and nothing is taken then.
  uint64_t take(uint64_t bytes, uint64_t most_end);
  // Exactly what take() gave. Free ranges that touch become one, and one at the end ends the file earlier.
  void give(uint64_t offset, uint64_t bytes) noexcept;

  uint64_t used() const { return used_; }  // sum of what is taken
  uint64_t end() const { return end_; }    // of the last one
  std::span<const Range> free() const { return free_; }

 private:
  // By offset; none touches another or the end, so there are never more than are taken, and room for those
  // is made when one is taken: giving back cannot fail.
  std::vector<Range> free_;
  uint64_t taken_ = 0;  // count
  uint64_t used_ = 0, end_ = 0;
};

}  // namespace wi
