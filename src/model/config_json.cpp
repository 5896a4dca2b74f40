// Hyper-parameters from a Hugging Face config.json, with transformers' defaults for what it leaves out.
#include <algorithm>
#include <cmath>

#include "src/error.h"
#include "src/model/config.h"
#include "src/model/json_file.h"

namespace wi {
namespace {

Architecture architecture_of(const JsonFields& fields);
void read_rope(const JsonFields& fields, const std::string& file, ModelConfig* config);
void refuse_what_is_not_computed(const JsonFields& fields, int64_t max_positions);

}  // namespace

ModelConfig config_from_json(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const JsonFields fields(json, file);
  ModelConfig config;
  config.architecture = architecture_of(fields);
  config.name = fields.find_text("_name_or_path").value_or("");
  auto count = [&](const char* key, int64_t most) {
    return static_cast<int32_t>(fields.integer(key, 1, most));
  };
  config.layers = count("num_hidden_layers", limits::kLayers);
  config.hidden = count("hidden_size", limits::kHidden);
  config.ffn = count("intermediate_size", limits::kFfn);
  config.vocab = count("vocab_size", limits::kVocab);
  config.query_heads = count("num_attention_heads", limits::kHeads);
  config.kv_heads = static_cast<int32_t>(
      fields.find_integer("num_key_value_heads", 1, limits::kHeads).value_or(config.query_heads));
  config.max_positions = fields.integer("max_position_embeddings", 1, limits::kPositions);

  config.qk_norm = config.architecture == Architecture::qwen3;
  const auto head_dim = fields.find_integer("head_dim", 1, limits::kHeadDim);
  check(head_dim || config.qk_norm || config.hidden % config.query_heads == 0, WI_E_FORMAT,
        fields.at("num_attention_heads"), " is ", config.query_heads, ", which does not divide hidden_size ",
        config.hidden, ", and there is no head_dim");
  config.head_dim =
      static_cast<int32_t>(head_dim.value_or(config.qk_norm ? 128 : config.hidden / config.query_heads));

  config.rms_epsilon = static_cast<float>(fields.find_number("rms_norm_eps").value_or(1e-6));
  config.tied_embeddings = fields.find_bool("tie_word_embeddings").value_or(false);
  config.attention_bias =
      config.architecture == Architecture::qwen2 || fields.find_bool("attention_bias").value_or(false);
  read_rope(fields, file, &config);
  refuse_what_is_not_computed(fields, config.max_positions);
  check_config(config, file);
  return config;
}

namespace {

Architecture architecture_of(const JsonFields& fields) {
  const std::string type = fields.text("model_type");
  if (type == "llama" || type == "mistral") return Architecture::llama;
  if (type == "qwen2") return Architecture::qwen2;
  if (type == "qwen3") return Architecture::qwen3;
  fail(WI_E_UNSUPPORTED, fields.at("model_type"), " is '", type,
       "', supported are llama, mistral, qwen2, qwen3");
}

// The factor that yarn multiplies cos and sin by; 0 leaves it to the scaling factor alone.
double yarn_attention_factor(const JsonFields& rope, double factor) {
  if (auto given = rope.find_number("attention_factor")) {
    check(*given > 0, WI_E_FORMAT, rope.at("attention_factor"), " is ", *given, ", must be positive");
    return *given;
  }
  const double mscale = rope.find_number("mscale").value_or(0),
               all_dim = rope.find_number("mscale_all_dim").value_or(0);
  check(mscale >= 0 && all_dim >= 0, WI_E_FORMAT, rope.at("mscale"), " or mscale_all_dim is negative");
  if (mscale == 0 || all_dim == 0 || factor <= 1) return 0;
  return (0.1 * mscale * std::log(factor) + 1) / (0.1 * all_dim * std::log(factor) + 1);
}

// rope_scaling with rope_theta beside it, or (since transformers 5) rope_parameters with everything inside.
void read_rope(const JsonFields& fields, const std::string& file, ModelConfig* config) {
  const char* name = fields.find("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Json nothing = Json::object();
  const Json* object = fields.find_object(name);
  const JsonFields inner(object ? *object : nothing, file + ": " + name);
  config->rope_theta =
      inner.find_number("rope_theta").value_or(fields.find_number("rope_theta").value_or(10000));
  const double share = inner.find_number("partial_rotary_factor")
                           .value_or(fields.find_number("partial_rotary_factor").value_or(1));
  check(share > 0 && share <= 1, WI_E_FORMAT, fields.at("partial_rotary_factor"), " is ", share,
        ", must be in (0, 1]");
  config->rotary = static_cast<int32_t>(config->head_dim * share);

  RopeScaling& rope = config->rope;
  const std::string type = inner.find_text("rope_type").value_or(inner.find_text("type").value_or("default"));
  if (type == "default") return;
  if (type == "linear") {
    rope.kind = RopeScaling::Kind::linear;
  } else if (type == "llama3") {
    rope.kind = RopeScaling::Kind::llama3;
  } else if (type == "yarn") {
    rope.kind = RopeScaling::Kind::yarn;
  } else {
    fail(WI_E_UNSUPPORTED, inner.at("rope_type"), " is '", type,
         "', supported are default, linear, llama3, yarn");
  }
  const auto outer_positions = fields.find_number("original_max_position_embeddings");
  rope.original_positions =
      outer_positions.value_or(inner.find_number("original_max_position_embeddings")
                                   .value_or(static_cast<double>(config->max_positions)));
  if (rope.kind == RopeScaling::Kind::yarn && !inner.find("factor")) {
    check(rope.original_positions > 0, WI_E_FORMAT, inner.at("original_max_position_embeddings"), " is ",
          rope.original_positions, ", must be positive");
    rope.factor = static_cast<double>(config->max_positions) / rope.original_positions;
  } else {
    rope.factor = inner.number("factor");
  }
  if (rope.kind == RopeScaling::Kind::llama3) {
    rope.low_frequency = inner.number("low_freq_factor");
    rope.high_frequency = inner.number("high_freq_factor");
  } else if (rope.kind == RopeScaling::Kind::yarn) {
    rope.beta_fast = inner.find_number("beta_fast").value_or(rope.beta_fast);
    rope.beta_slow = inner.find_number("beta_slow").value_or(rope.beta_slow);
    rope.truncate = inner.find_bool("truncate").value_or(true);
    rope.attention_factor = yarn_attention_factor(inner, rope.factor);
  }
}

// Fields that change the arithmetic: running such a model without them would give quietly wrong answers.
void refuse_what_is_not_computed(const JsonFields& fields, int64_t max_positions) {
  const std::string activation = fields.find_text("hidden_act").value_or("silu");
  check(activation == "silu", WI_E_UNSUPPORTED, fields.at("hidden_act"), " is '", activation,
        "', supported is silu");
  check(!fields.find_bool("mlp_bias").value_or(false), WI_E_UNSUPPORTED, fields.at("mlp_bias"),
        " is true, supported is false");
  check(!fields.find("quantization_config"), WI_E_UNSUPPORTED, fields.at("quantization_config"),
        " is set, supported are plain f32, f16 and bf16 weights");
  // Only mistral uses the window without being told so; qwen configs carry one that is switched off.
  const bool uses_window =
      fields.find_bool("use_sliding_window").value_or(fields.text("model_type") == "mistral");
  const auto window = fields.find_integer("sliding_window", 1, INT64_MAX);
  check(!uses_window || !window || *window >= max_positions, WI_E_UNSUPPORTED, fields.at("sliding_window"),
        " is ", window.value_or(0), ", sliding-window attention is not supported");
}

}  // namespace
}  // namespace wi
