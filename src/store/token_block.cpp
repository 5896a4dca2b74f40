#include "src/store/token_block.h"

#include <cstring>

namespace wi {

// Small pages: a block of 8 MB (an 8B model's) is first touched within one decode step, every 64 steps, and that
// step would wait for four huge pages (16 of 40 ms on a virtual machine); small ones come as rows are written.
TokenBlock::TokenBlock(HostPool& pool, const KvShape& shape, int32_t capacity)
    : capacity_(capacity),
      kv_heads_(shape.kv_heads),
      plane_bytes_(shape.head_bytes() * static_cast<size_t>(capacity)),
      memory_(pool.allocate(shape.token_bytes() * static_cast<size_t>(capacity), "recent tokens",
                            HostPages::small)) {}

void TokenBlock::copy_from(const TokenBlock& other) {
  std::memcpy(memory_.data(), other.memory_.data(), memory_.bytes());
}

}  // namespace wi
