// Hyper-parameters from GGUF metadata: the keys general.* and <architecture>.*.
#include <algorithm>
#include <cmath>

#include "src/error.h"
#include "src/model/config.h"
#include "src/model/gguf.h"

namespace wi {
namespace {

Architecture architecture_of(const Gguf& gguf, std::string_view name);
RopeScaling rope_scaling(const Gguf& gguf, const std::string& prefix, int64_t max_positions);
void refuse_what_is_not_computed(const Gguf& gguf, const std::string& prefix, int64_t max_positions);

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
  config.ffn = static_cast<int32_t>(count("feed_forward_length", limits::kFfn));
  config.query_heads = static_cast<int32_t>(count("attention.head_count", limits::kHeads));
  config.kv_heads =
      static_cast<int32_t>(count_or("attention.head_count_kv", limits::kHeads, config.query_heads));
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
  config.attention_bias = config.architecture == Architecture::qwen2;
  config.qk_norm = config.architecture == Architecture::qwen3;
  config.rope = rope_scaling(gguf, prefix, config.max_positions);
  refuse_what_is_not_computed(gguf, prefix, config.max_positions);

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

// A factor without a type means linear, as in files older than the type key.
RopeScaling rope_scaling(const Gguf& gguf, const std::string& prefix, int64_t max_positions) {
  RopeScaling rope;
  const std::string key = prefix + "rope.scaling.";
  const auto factor = gguf.find_number(key + "factor");
  const auto old_factor = gguf.find_number(prefix + "rope.scale_linear");
  const std::string_view type = gguf.find_text(key + "type").value_or("linear");
  rope.factor = factor.value_or(old_factor.value_or(0));
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
  const double mix = gguf.find_number(key + "yarn_ext_factor").value_or(1);
  check(mix == 1, WI_E_UNSUPPORTED, gguf.where(key + "yarn_ext_factor"), " is ", mix, ", supported is 1");
  // The attention factor of this format multiplies the published magnitude.
  const double times =
      gguf.find_number(key + "yarn_attn_factor").value_or(gguf.find_number(key + "attn_factor").value_or(1));
  check(times > 0, WI_E_FORMAT, gguf.where(key + "attn_factor"), " is ", times, ", must be positive");
  if (times != 1 && rope.factor > 0)
    rope.attention_factor = times * (0.1 * std::log(std::max(rope.factor, 1.0)) + 1);
  return rope;
}

// Keys that change the arithmetic: running such a model without them would give quietly wrong answers.
void refuse_what_is_not_computed(const Gguf& gguf, const std::string& prefix, int64_t max_positions) {
  for (const char* key : {"expert_count", "attention.q_lora_rank", "attention.kv_lora_rank"}) {
    const int64_t value = gguf.find_integer(prefix + key, 0, INT64_MAX).value_or(0);
    check(value == 0, WI_E_UNSUPPORTED, gguf.where(prefix + key), " is ", value, ", supported is 0");
  }
  const int64_t window = gguf.find_integer(prefix + "attention.sliding_window", 0, INT64_MAX).value_or(0);
  check(window == 0 || window >= max_positions, WI_E_UNSUPPORTED,
        gguf.where(prefix + "attention.sliding_window"), " is ", window,
        ", sliding-window attention is not supported");
  for (const char* key : {"attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale"}) {
    const double value = gguf.find_number(prefix + key).value_or(0);
    check(value == 0, WI_E_UNSUPPORTED, gguf.where(prefix + key), " is ", value, ", supported is 0");
  }
}

}  // namespace
}  // namespace wi
