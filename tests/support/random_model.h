// Models with random weights, made in memory: what a benchmark of a published shape needs, and what tests of
// the runtime need that no file has to be shipped for. No tokenizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/model/model.h"

namespace wi::test {

struct ModelShape {
  std::string name;
  Architecture architecture = Architecture::llama;
  int32_t layers = 2, hidden = 64, query_heads = 4, kv_heads = 2, head_dim = 16, ffn = 128, vocab = 100;
  bool tied = true;
  double rope_theta = 10000;
  std::vector<int32_t> windows = {};  // (layers) or none, as ModelConfig has them
};

// llama-1b, llama-8b, qwen3-0.6b, small, tiny; throws WI_E_ARGUMENT for another name.
ModelShape shape_named(const std::string& name);
// type: f32, f16, bf16, q8_0, q4_0 or q4_k; hidden and ffn must hold whole blocks of it. copied: as copied
// weights are, on huge pages and with their rows turned.
std::shared_ptr<const Model> random_model(const ModelShape& shape, DType type, uint64_t seed,
                                          Precision precision = Precision::fast, bool copied = false);
DType dtype_named(const std::string& name);

}  // namespace wi::test
