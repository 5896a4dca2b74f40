// All that a layer computes with, in one list: who copies, hashes or moves weights cannot forget one.
#pragma once

#include "src/model/model.h"

namespace wi {

// matrix(Matrix&) for each, then vector(const float*&, count); a vector that the layer does not have is null. Both
// as const as the layer.
template <class Layer, class OnMatrix, class OnVector>
void each_weight(Layer& layer, const ModelConfig& config, OnMatrix&& matrix, OnVector&& vector) {
  const int64_t query_width = int64_t{config.query_heads} * config.head_dim,
                kv_width = int64_t{config.kv_heads} * config.head_dim;
  for (auto* of : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) matrix(*of);
  vector(layer.attention_norm, int64_t{config.hidden});
  vector(layer.ffn_norm, int64_t{config.hidden});
  vector(layer.q_bias, query_width);
  vector(layer.k_bias, kv_width);
  vector(layer.v_bias, kv_width);
  vector(layer.o_bias, int64_t{config.hidden});
  vector(layer.q_norm, int64_t{config.head_dim});
  vector(layer.k_norm, int64_t{config.head_dim});
}

}  // namespace wi
