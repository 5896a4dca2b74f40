// A model: immutable weights, hyper-parameters, tokenizer and chat template, shared by sessions and threads.
// Weights stay where the file is mapped or are copied (copy_weights.h); small f32 tensors (norms, biases)
// always are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/types.h"
#include "src/model/chat_template.h"
#include "src/model/config.h"
#include "src/model/tokenizer.h"

namespace wi {

class HostPool;

struct LayerWeights {
  const float* attention_norm = nullptr;  // (hidden)
  Matrix q, k, v;                         // (heads * head_dim, hidden)
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // (head_dim), qwen3
  Matrix o;                                          // (hidden, query_heads * head_dim)
  const float* o_bias = nullptr;
  const float* ffn_norm = nullptr;  // (hidden)
  Matrix gate, up;                  // (ffn, hidden)
  Matrix down;                      // (hidden, ffn)
};

struct Weights {
  Matrix embedding;  // (vocab, hidden)
  Matrix output;     // (vocab, hidden); the embedding itself if tied
  const float* output_norm = nullptr;
  std::vector<LayerWeights> layers;
};

class Model {
 public:
  // A .gguf file (the first of a split set) or a directory with config.json, tokenizer.json and
  // *.safetensors. With a pool the weights are copied into it, and the files are not used afterwards.
  static std::shared_ptr<const Model> open(const std::string& path,
                                           const std::function<void(uint64_t, uint64_t)>& progress = {},
                                           Precision precision = Precision::fast,
                                           HostPool* copy_into = nullptr);

  ModelConfig config;
  Weights weights;
  RopeFrequencies rope;
  std::unique_ptr<const Tokenizer> tokenizer;  // null only for models made in memory
  ChatTemplate chat;
  Precision precision = Precision::fast;  // of prefill's products
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;
  std::string weight_type;  // of most weight bytes
  uint64_t fingerprint =
      0;  // of hyper-parameters, tensor table and sampled tensor bytes: names a model in session files
  std::shared_ptr<void> storage;  // keeps mappings and copies alive
};

}  // namespace wi
