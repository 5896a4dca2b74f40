// Hyper-parameters from GGUF metadata: the keys general.* and <architecture>.*.
#include <algorithm>
#include <cmath>

#include "src/error.h"
#include "src/files/gguf.h"
#include "src/model/config.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {
namespace {

Architecture architecture_of(const Gguf& gguf, std::string_view name);
RopeScaling rope_scaling(const Gguf& gguf, const std::string& prefix, int64_t max_positions);
int64_t per_layer(const Gguf& gguf, const std::string& key, const ModelConfig& config, int64_t most);
void refuse_what_is_not_computed(const Gguf& gguf, const std::string& prefix, const ModelConfig& config);
void read_windows(const Gguf& gguf, const std::string& prefix, ModelConfig* config);

}  // namespace

ModelConfig config_from_gguf(const Gguf& gguf) {
  ModelConfig config;
  const std::string prefix = std::string(gguf.text("general.architecture")) + '.';
  config.architecture = architecture_of(gguf, gguf.text("general.architecture"));
  config.name = gguf.find_text("general.name").value_or(gguf.name());
  auto count = [&](const char* key, int64_t most) { return gguf.integer(prefix + key, 1, most); };
  auto count_or = [&](const char* key, int64_t most, int64_t otherwise) {
    return gguf.find_integer(prefix + key, 1, most).value_or(otherwise);
  };
  config.layers = static_cast<int32_t>(count("block_count", limits::kLayers));
  config.hidden = static_cast<int32_t>(count("embedding_length", limits::kHidden));
  config.ffn = static_cast<int32_t>(per_layer(gguf, prefix + "feed_forward_length", config, limits::kFfn));
  config.query_heads =
      static_cast<int32_t>(per_layer(gguf, prefix + "attention.head_count", config, limits::kHeads));
  const std::string kv_heads = prefix + "attention.head_count_kv";
  config.kv_heads = gguf.find(kv_heads)
                        ? static_cast<int32_t>(per_layer(gguf, kv_heads, config, limits::kHeads))
                        : config.query_heads;
  config.max_positions = count("context_length", limits::kPositions);

  const auto head_dim = gguf.find_integer(prefix + "attention.key_length", 1, limits::kHeadDim);
  check(head_dim || config.hidden % config.query_heads == 0, WI_E_FORMAT,
        gguf.where(prefix + "attention.head_count"), " is ", config.query_heads,
        ", which does not divide embedding_length ", config.hidden, ", and there is no attention.key_length");
  config.head_dim = static_cast<int32_t>(head_dim.value_or(config.hidden / config.query_heads));
  const int64_t value_dim = count_or("attention.value_length", limits::kHeadDim, config.head_dim);
  check(value_dim == config.head_dim, WI_E_UNSUPPORTED, gguf.where(prefix + "attention.value_length"), " is ",
        value_dim, ", differs from key_length ", config.head_dim);
  config.rotary = static_cast<int32_t>(count_or("rope.dimension_count", limits::kHeadDim, config.head_dim));

  config.rms_epsilon = static_cast<float>(gguf.number(prefix + "attention.layer_norm_rms_epsilon"));
  config.rope_theta = gguf.find_number(prefix + "rope.freq_base").value_or(10000);
  config.rope_interleaved = config.architecture == Architecture::llama;
  // llama.cpp adds them wherever a file has them.
  config.input_bias =
      config.architecture == Architecture::qwen2 ? ModelConfig::Bias::needed : ModelConfig::Bias::optional;
  config.output_bias = ModelConfig::Bias::optional;
  config.qk_norm = config.architecture == Architecture::qwen3;
  config.rope = rope_scaling(gguf, prefix, config.max_positions);
  refuse_what_is_not_computed(gguf, prefix, config);
  read_windows(gguf, prefix, &config);

  const GgufField* tokens = gguf.find("tokenizer.ggml.tokens");
  check(tokens && tokens->type == GgufType::array, WI_E_FORMAT, gguf.where("tokenizer.ggml.tokens"),
        tokens ? " is no array" : " is missing");
  check(tokens->count >= 1 && tokens->count <= limits::kVocab, WI_E_FORMAT,
        gguf.where("tokenizer.ggml.tokens"), " has ", tokens->count, " elements, must have 1 to ",
        limits::kVocab);
  config.vocab = static_cast<int32_t>(tokens->count);
  const int64_t stated = count_or("vocab_size", limits::kVocab, config.vocab);
  check(stated == config.vocab, WI_E_FORMAT, gguf.where(prefix + "vocab_size"), " is ", stated,
        ", but tokenizer.ggml.tokens has ", config.vocab, " elements");
  check_config(config, gguf.name());
  return config;
}

namespace {

Architecture architecture_of(const Gguf& gguf, std::string_view name) {
  if (name == "llama") return Architecture::llama;
  if (name == "qwen2") return Architecture::qwen2;
  if (name == "qwen3") return Architecture::qwen3;
  fail(WI_E_UNSUPPORTED, gguf.where("general.architecture"), " is '", name,
       "', supported are llama, qwen2, qwen3");
}

// A number, or an array of one for every layer, which must be the same.
int64_t per_layer(const Gguf& gguf, const std::string& key, const ModelConfig& config, int64_t most) {
  const GgufField* field = gguf.find(key);
  if (!field || field->type != GgufType::array) return gguf.integer(key, 1, most);
  check(field->count == static_cast<uint64_t>(config.layers), WI_E_FORMAT, gguf.where(key), " has ",
        field->count, " elements, but there are ", config.layers, " layers");
  const std::vector<int64_t> values = gguf.integers(key);
  for (int64_t value : values)
    check(value == values[0], WI_E_UNSUPPORTED, gguf.where(key), " is ", values[0], " in one layer and ",
          value, " in another, supported is the same in all");
  check(values[0] >= 1 && values[0] <= most, WI_E_FORMAT, gguf.where(key), " is ", values[0],
        ", must be in [1, ", most, "]");
  return values[0];
}

// A factor without a type means linear, as in files older than the type key.
RopeScaling rope_scaling(const Gguf& gguf, const std::string& prefix, int64_t max_positions) {
  RopeScaling rope;
  const std::string key = prefix + "rope.scaling.";
  const auto factor = gguf.find_number(key + "factor");
  const auto old_factor = gguf.find_number(prefix + "rope.scale_linear");
  const std::string_view type = gguf.find_text(key + "type").value_or("linear");
  rope.factor = factor.value_or(old_factor.value_or(0));
  // llama.cpp multiplies cos and sin by it, whatever the type; yarn_attn_factor is Grok's, elsewhere it is passed over.
  const double times = gguf.find_number(key + "attn_factor").value_or(1);
  const double groks = gguf.find_number(key + "yarn_attn_factor").value_or(1);
  check(groks == 1, WI_E_UNSUPPORTED, gguf.where(key + "yarn_attn_factor"), " is ", groks,
        ", supported in this architecture is 1");
  const double mix = gguf.find_number(key + "yarn_ext_factor").value_or(-1);  // below 0: what the type says
  if (type != "yarn") {
    check(times == 1, WI_E_UNSUPPORTED, gguf.where(key + "attn_factor"), " is ", times,
          ", supported without yarn is 1");
    check(mix <= 0, WI_E_UNSUPPORTED, gguf.where(key + "yarn_ext_factor"), " is ", mix,
          ", supported without yarn is 0");
  }
  if (type == "none" || (type == "linear" && rope.factor == 0)) return RopeScaling{};
  if (type == "linear") {
    rope.kind = RopeScaling::Kind::linear;
    return rope;
  }
  check(type == "yarn", WI_E_UNSUPPORTED, gguf.where(key + "type"), " is '", type,
        "', supported are none, linear, yarn");
  rope.kind = RopeScaling::Kind::yarn;
  rope.original_positions = static_cast<double>(
      gguf.find_integer(key + "original_context_length", 1, limits::kPositions).value_or(max_positions));
  rope.beta_fast = gguf.find_number(key + "yarn_beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = gguf.find_number(key + "yarn_beta_slow").value_or(rope.beta_slow);
  check(mix == 1 || mix < 0, WI_E_UNSUPPORTED, gguf.where(key + "yarn_ext_factor"), " is ", mix,
        ", supported is 1");
  // These multiply the published magnitude.
  check(times > 0, WI_E_FORMAT, gguf.where(key + "attn_factor"), " is ", times, ", must be positive");
  if (times != 1 && rope.factor > 0)
    rope.attention_factor = times * (0.1 * std::log(std::max(rope.factor, 1.0)) + 1);
  return rope;
}

// Keys that change the arithmetic: running such a model without them would give quietly wrong answers. Most
// are of other architectures (Granite, Gemma, mixtures of experts, encoders), and llama.cpp reads some for
// every one.
void refuse_what_is_not_computed(const Gguf& gguf, const std::string& prefix, const ModelConfig& config) {
  for (const char* key :
       {"expert_count", "expert_used_count", "expert_shared_count", "leading_dense_block_count",
        "moe_every_n_layers", "interleave_moe_layer_step", "nextn_predict_layers", "n_deepstack_layers",
        "decoder_block_count", "embedding_length_per_layer_input", "full_attention_interval",
        "attention.q_lora_rank", "attention.kv_lora_rank", "attention.shared_kv_layers",
        "attention.relative_buckets_count", "attention.temperature_length"}) {
    const int64_t value = gguf.find_integer(prefix + key, 0, INT64_MAX).value_or(0);
    check(value == 0, WI_E_UNSUPPORTED, gguf.where(prefix + key), " is ", value, ", supported is 0");
  }
  for (const char* key :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale",
        "attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.yarn_log_multiplier"}) {
    const double value = gguf.find_number(prefix + key).value_or(0);
    check(value == 0, WI_E_UNSUPPORTED, gguf.where(prefix + key), " is ", value, ", supported is 0");
  }
  for (const char* key :
       {"logit_scale", "residual_scale", "embedding_scale", "attention.output_scale", "rope.scaling.alpha"}) {
    const double value = gguf.find_number(prefix + key).value_or(0);
    check(value == 0 || value == 1, WI_E_UNSUPPORTED, gguf.where(prefix + key), " is ", value,
          ", supported is 1");
  }
  const double usual = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const double scale = gguf.find_number(prefix + "attention.scale").value_or(0);
  check(scale == 0 || std::fabs(scale / usual - 1) < 1e-6, WI_E_UNSUPPORTED,
        gguf.where(prefix + "attention.scale"), " is ", scale, ", supported is 1 / sqrt(key_length)");
  check(gguf.find_bool(prefix + "attention.causal").value_or(true), WI_E_UNSUPPORTED,
        gguf.where(prefix + "attention.causal"), " is false, supported is causal attention");
  for (const char* key : {"use_parallel_residual", "swin_norm"})
    check(!gguf.find_bool(prefix + key).value_or(false), WI_E_UNSUPPORTED, gguf.where(prefix + key),
          " is true, supported is false");
  for (const char* key : {"rope.dimension_sections", "activation_sparsity_scale", "swiglu_clamp_exp",
                          "swiglu_clamp_shexp", "attention.indexer.top_k"})
    check(!gguf.find(prefix + key), WI_E_UNSUPPORTED, gguf.where(prefix + key),
          " is set, which is not supported");
}

// Which layers look at the last few tokens only: those to which a list of windows gives one, or those of a
// single window's pattern; without a pattern all in llama, as Mistral has it, while Qwen's window is for some.
void read_windows(const Gguf& gguf, const std::string& prefix, ModelConfig* config) {
  const std::string key = prefix + "attention.sliding_window", pattern = key + "_pattern";
  const GgufField* field = gguf.find(key);
  if (!field) return;
  const size_t layers = static_cast<size_t>(config->layers);
  const auto one_each = [&](const std::string& list) {
    const uint64_t count = gguf.find(list)->count;
    check(count == layers, WI_E_FORMAT, gguf.where(list), " has ", count, " elements, but there are ", layers,
          " layers");
  };
  const bool by_layer = field->type == GgufType::array;
  if (by_layer) one_each(key);
  std::vector<int64_t> windows =
      by_layer ? gguf.integers(key) : std::vector<int64_t>(layers, gguf.integer(key, 0, INT64_MAX));
  for (int64_t window : windows)
    check(window >= 0, WI_E_FORMAT, gguf.where(key), " is ", window, ", must be 0 or positive");
  const bool matters = std::any_of(windows.begin(), windows.end(), [&](int64_t window) {
    return window > 0 && window < config->max_positions;
  });
  if (const GgufField* stated = gguf.find(pattern); stated && matters) {
    check(stated->type == GgufType::array && stated->element == GgufType::boolean, WI_E_UNSUPPORTED,
          gguf.where(pattern), " is no list of bool, one for each layer, which is what is supported");
    one_each(pattern);
    const std::vector<bool> slides = gguf.booleans(pattern);
    for (size_t layer = 0; layer < layers; ++layer)
      if (!slides[layer]) windows[layer] = 0;
  } else {
    check(by_layer || !matters || config->architecture == Architecture::llama, WI_E_UNSUPPORTED,
          gguf.where(key), " is ", windows[0], " without ", pattern,
          ", which says in this architecture for which layers");
  }
  for (const char* name : {"rope.freq_base_swa", "rope.dimension_count_swa", "attention.key_length_swa",
                           "attention.value_length_swa"})
    check(!gguf.find(prefix + name), WI_E_UNSUPPORTED, gguf.where(prefix + name),
          " is set, supported are sliding-window layers that differ in nothing else");
  set_windows(config, windows, gguf.where(key));
}

}  // namespace
}  // namespace wi
