// The shape of a KV cache: what one token of it weighs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace wi {

struct KvShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::f16;

  size_t head_bytes() const { return row_bytes(dtype, head_dim); }  // one key, or one value, of one head
  size_t token_bytes() const {
    return 2 * head_bytes() * static_cast<size_t>(layers) * static_cast<size_t>(kv_heads);
  }
  bool operator==(const KvShape&) const = default;
};

}  // namespace wi
