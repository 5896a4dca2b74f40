#include "src/workspace.h"

namespace wi {

void Workspace::prepare(const ModelConfig& config, int64_t rows) {
  const size_t n = static_cast<size_t>(rows);
  const size_t q_width = static_cast<size_t>(config.query_heads) * static_cast<size_t>(config.head_dim);
  const size_t kv_width = static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.head_dim);
  struct Piece {
    float** at;
    size_t count;
  };
  const Piece pieces[] = {{&hidden, n * static_cast<size_t>(config.hidden)},
                          {&normed, n * static_cast<size_t>(config.hidden)},
                          {&q, n * q_width},
                          {&attended, n * q_width},
                          {&k, n * kv_width},
                          {&v, n * kv_width},
                          {&gate, n * static_cast<size_t>(config.ffn)},
                          {&up, n * static_cast<size_t>(config.ffn)},
                          {&cos, n * static_cast<size_t>(config.rotary / 2)},
                          {&sin, n * static_cast<size_t>(config.rotary / 2)}};
  constexpr size_t kAlign = 16;  // floats: a cache line
  size_t total = kAlign;
  for (const Piece& piece : pieces) total += (piece.count + kAlign - 1) / kAlign * kAlign;
  if (memory_.size() < total) memory_.resize(total);
  float* next = memory_.data();
  while (reinterpret_cast<uintptr_t>(next) % (kAlign * sizeof(float))) ++next;
  for (const Piece& piece : pieces) {
    *piece.at = next;
    next += (piece.count + kAlign - 1) / kAlign * kAlign;
  }
  if (tokens.size() < n) tokens.resize(n);
}

size_t Workspace::bytes() const {
  return (memory_.size() + row_logits.size()) * sizeof(float) + attention.bytes() + retrieval.bytes() +
         past.bytes() + chunk_state.size() * sizeof(float) + sampling.bytes();
}

}  // namespace wi
