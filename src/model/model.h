// A model: immutable weights, hyper-parameters, tokenizer and chat template, shared by sessions and threads.
// Weights stay where the file is mapped or are copied (copy_weights.h, device_weights.h); small f32 tensors
// (norms, biases) always are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/types.h"
#include "src/chat/chat_template.h"
#include "src/files/metadata.h"
#include "src/files/watch.h"
#include "src/model/config.h"
#include "src/tokenizer/tokenizer.h"

namespace wi {

class HostPool;
class Memory;
class Workers;

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
  // progress may throw, which ends the call.
  static std::shared_ptr<const Model> open(const std::string& path, const Progress& progress = {},
                                           Precision precision = Precision::fast,
                                           HostPool* copy_into = nullptr);
  // A whole GGUF file in memory that must stay as it is, or, with a pool, only until this returns.
  static std::shared_ptr<const Model> open_memory(std::span<const std::byte> bytes, const Progress& progress,
                                                  Precision precision, HostPool* copy_into);
  // A whole GGUF file that is read piece by piece, from the beginning to the end, into memory of the pool.
  using Reader = std::function<void(uint64_t offset, std::span<std::byte> to)>;
  static std::shared_ptr<const Model> open_reader(uint64_t bytes, const Reader& read,
                                                  const Progress& progress, Precision precision,
                                                  HostPool* pool);

  // Of this object: no other model that this process opened or will open has it. What may go from one session
  // to another within the process goes by it.
  const uint64_t identity = next_identity();
  // Of all weights and of what else enters the arithmetic: names the model in session files. Reads every
  // weight the first time, a second or so for ten gigabytes in memory; remembered afterwards. Any thread.
  // Throws WI_E_CANCELLED.
  uint64_t weights_hash(Workers& workers, const std::atomic<bool>* cancel = nullptr) const;

  ModelConfig config;
  Weights weights;
  RopeFrequencies rope;
  std::unique_ptr<const Tokenizer> tokenizer;  // null only for models made in memory
  ChatTemplate chat;
  Precision precision = Precision::fast;  // of prefill's products
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;
  std::string weight_type;          // of most weight bytes
  std::vector<float> rope_factors;  // GGUF's divisors of the rotary frequencies, (rotary / 2) or none
  Metadata metadata;
  std::shared_ptr<void> storage;  // keeps mappings and copies alive
  Memory* memory = nullptr;       // of the weights, where the host cannot read them; kept alive likewise

 private:
  static uint64_t next_identity();
  mutable std::mutex hash_mutex_;
  mutable std::atomic<uint64_t> hash_{0};  // 0: not known yet
};

}  // namespace wi
