// The shape of a KV cache: what one token of it weighs, and how far back each layer looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/types.h"

namespace wi {

constexpr size_t kMostTokenBytes = size_t{1} << 30;  // so that sizes of whole stores stay within 64 bits

struct KvShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::f16;
  // (layers) A query of the layer sees so many tokens, its own included; 0: all. Null: all layers see all.
  std::shared_ptr<const std::vector<int32_t>> windows = nullptr;
  bool paged = false;  // segments have tables for a device's cache of hot pages

  int32_t window(int32_t layer) const { return windows ? (*windows)[static_cast<size_t>(layer)] : 0; }
  // Layers whose segments have an index: what a window shows is read whole.
  int32_t indexed_layers() const {
    int32_t count = 0;
    for (int32_t layer = 0; layer < layers; ++layer) count += window(layer) == 0;
    return count;
  }
  size_t head_bytes() const { return row_bytes(dtype, head_dim); }  // one key, or one value, of one head
  size_t token_bytes() const {
    return 2 * head_bytes() * static_cast<size_t>(layers) * static_cast<size_t>(kv_heads);
  }
  size_t indexed_token_bytes() const {  // of them, layers without a window
    return 2 * head_bytes() * static_cast<size_t>(indexed_layers()) * static_cast<size_t>(kv_heads);
  }
  bool same_sizes(const KvShape& other) const {
    return layers == other.layers && kv_heads == other.kv_heads && head_dim == other.head_dim &&
           dtype == other.dtype;
  }
};

}  // namespace wi
