// Blocks of a tail that went to the slow tier together, while a prompt is read that outgrows the fast one: they lie
// there until a segment is made of them. Plane by plane, in each the blocks one after the other, so that what a plane
// has of neighbours is one read.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "src/buffer/spill_file.h"
#include "src/buffer/spill_reader.h"

namespace wi {

class SpilledBlocks {
 public:
  // read(block, plane, to): keys, then values of that plane of a block, plane_bytes. Throws WI_E_BUDGET, WI_E_IO,
  // WI_E_MEMORY or, from `poll`, which is called between writes and while others write, what that throws.
  using Read = std::function<void(size_t block, size_t plane, std::byte* to)>;
  SpilledBlocks(std::shared_ptr<SpillFile> file, size_t blocks, size_t planes, size_t plane_bytes,
                const Read& read, const std::function<void()>& poll);

  ReadRequest request(size_t block, size_t plane, void* to) const {
    return {&extent_, (plane * blocks_ + block) * plane_bytes_, plane_bytes_, to};
  }
  const std::shared_ptr<SpillFile>& file() const { return file_; }  // whose readers read it

 private:
  const std::shared_ptr<SpillFile> file_;
  const size_t blocks_, plane_bytes_;
  const SpillExtent extent_;
};

}  // namespace wi
