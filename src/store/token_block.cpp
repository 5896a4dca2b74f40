#include "src/store/token_block.h"

namespace wi {

// Small pages: a block of 8 MB (an 8B model's) is first touched within one decode step, every 64 steps, and that
// step would wait for four huge pages (16 of 40 ms on a virtual machine); small ones come as rows are written.
TokenBlock::TokenBlock(HostPool& pages, const KvShape& shape, int32_t capacity)
    : capacity_(capacity),
      kv_heads_(shape.kv_heads),
      row_bytes_(shape.head_bytes()),
      plane_bytes_(row_bytes_ * static_cast<size_t>(capacity)),
      memory_(pages.allocate(shape.token_bytes() * static_cast<size_t>(capacity), "recent tokens",
                             HostPages::small)) {}

void TokenBlock::copy_from(const TokenBlock& other) {
  memory_.copy_in(0, other.memory_.data(), memory_.bytes());
}

void TokenBlock::copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* to_keys,
                             std::byte* to_values) const {
  const size_t at = static_cast<size_t>(first) * row_bytes_, bytes = static_cast<size_t>(count) * row_bytes_;
  const CopyPiece pieces[] = {{to_keys, keys(layer, head) + at, bytes},
                              {to_values, values(layer, head) + at, bytes}};
  memory_.memory().copy(pieces);
}

}  // namespace wi
