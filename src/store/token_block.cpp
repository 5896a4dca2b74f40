#include "src/store/token_block.h"

#include <cstring>

namespace wi {

TokenBlock::TokenBlock(HostPool& pool, const KvShape& shape, int32_t capacity)
    : capacity_(capacity),
      kv_heads_(shape.kv_heads),
      plane_bytes_(shape.head_bytes() * static_cast<size_t>(capacity)),
      memory_(pool.allocate(shape.token_bytes() * static_cast<size_t>(capacity), "recent tokens")) {}

void TokenBlock::copy_from(const TokenBlock& other) {
  std::memcpy(memory_.data(), other.memory_.data(), memory_.bytes());
}

}  // namespace wi
