// The hyper-parameters of a model, whichever file they came from, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wi {

enum class Architecture { llama, qwen2, qwen3 };

struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1;
  double original_positions = 0;                 // llama3, yarn
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  double attention_factor = 0;                   // yarn; 0: 0.1 ln(factor) + 1
  bool truncate = true;                          // yarn: the correction range in whole dimensions
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::string name;
  int32_t layers = 0, hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t max_positions = 0;
  float rms_epsilon = 1e-5f;
  double rope_theta = 10000;
  int32_t rotary = 0;             // dimensions rotated, usually head_dim
  bool rope_interleaved = false;  // GGUF's llama permutes q and k into pairs (2i, 2i+1)
  RopeScaling rope;
  bool qk_norm = false;  // qwen3
  // (layers) A query of the layer sees the last so many tokens, its own included; 0: all. Empty: all see all.
  std::vector<int32_t> windows;
  // Beyond so many tokens the file asks for what is not implemented, and what that is; 0: it never does.
  int64_t most_tokens = 0;
  std::string beyond_most;
  // Biases of q, k and v, and of the attention's output: must be there; may be; or else are refused.
  enum class Bias { none, optional, needed };
  Bias input_bias = Bias::none, output_bias = Bias::none;
  bool tied_embeddings = false;
  int32_t group() const { return query_heads / kv_heads; }
};

// Angle per position of each rotated pair, in f64 (positions reach a million, where f32 angles are off by
// hundredths), with the scaling applied: (rotary / 2). magnitude scales cos and sin (yarn; else 1).
struct RopeFrequencies {
  std::vector<double> frequency;
  double magnitude = 1;
};
RopeFrequencies rope_frequencies(const ModelConfig& config,
                                 const float* factors /* rope_freqs tensor or null */);

// From the metadata of a GGUF file, and from the text of a config.json (file: its name, for messages). Both
// refuse what they do not know (WI_E_UNSUPPORTED) and what cannot be true (WI_E_FORMAT), by the field's name.
class Gguf;
class Watch;
ModelConfig config_from_gguf(const Gguf& gguf);
ModelConfig config_from_json(std::string_view text, const std::string& file, Watch* watch = nullptr);

// The largest numbers believed: far above any model, small enough that their products fit 64 bits.
namespace limits {
inline constexpr int64_t kLayers = 4096, kHidden = 1 << 20, kHeads = 1 << 14, kHeadDim = 1 << 12;
inline constexpr int64_t kFfn = 1 << 24, kPositions = int64_t{1} << 40;
}  // namespace limits
void check_config(const ModelConfig& config, const std::string& file);  // how the fields relate
// Sessions may have no more tokens, for beyond that the file says what is not implemented.
void limit_tokens(ModelConfig* config, int64_t most, const std::string& beyond);
// stated: (layers) what a file says of each layer's window, 0: none. One that is no shorter than the context
// changes nothing within that and is none; sessions then end where it would begin to. field: where the file says it.
void set_windows(ModelConfig* config, const std::vector<int64_t>& stated, const std::string& field);

}  // namespace wi
