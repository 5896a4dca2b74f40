#include "src/store/spilled_blocks.h"

#include <utility>
#include <vector>

namespace wi {

SpilledBlocks::SpilledBlocks(std::shared_ptr<SpillFile> file, size_t blocks, size_t planes,
                             size_t plane_bytes, const Read& read, const std::function<void()>& poll)
    : file_(std::move(file)),
      blocks_(blocks),
      plane_bytes_(plane_bytes),
      extent_(file_->reserve(blocks * planes * plane_bytes, "a prompt's tokens", poll)) {
  std::vector<std::byte> room(blocks * plane_bytes);
  for (size_t plane = 0; plane < planes; ++plane) {
    for (size_t block = 0; block < blocks; ++block) read(block, plane, room.data() + block * plane_bytes);
    file_->write(extent_, plane * room.size(), room.data(), room.size(), poll);
  }
}

}  // namespace wi
