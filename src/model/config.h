// The hyper-parameters of a model, whichever file they came from, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wi {

enum class Architecture { llama, qwen2, qwen3 };

struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1;
  double original_positions = 0;                  // llama3, yarn
  double low_frequency = 1, high_frequency = 4;   // llama3
  double beta_fast = 32, beta_slow = 1;           // yarn
  double attention_factor = 0;                    // yarn; 0: 0.1 ln(factor) + 1
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::string name;
  int32_t layers = 0, hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t max_positions = 0;
  float rms_epsilon = 1e-5f;
  double rope_theta = 10000;
  int32_t rotary = 0;              // dimensions rotated, usually head_dim
  bool rope_interleaved = false;   // GGUF's llama permutes q and k into pairs (2i, 2i+1)
  RopeScaling rope;
  bool qk_norm = false;            // qwen3
  bool tied_embeddings = false;
  int32_t group() const { return query_heads / kv_heads; }
};

// Angle per position of each rotated pair, in f64 (positions reach a million, where f32 angles are off by
// hundredths), with the scaling applied: (rotary / 2). magnitude scales cos and sin (yarn; else 1).
struct RopeFrequencies {
  std::vector<double> frequency;
  double magnitude = 1;
};
RopeFrequencies rope_frequencies(const ModelConfig& config, const float* factors /* rope_freqs tensor or null */);

}  // namespace wi
