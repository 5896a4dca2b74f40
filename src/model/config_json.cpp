// Hyper-parameters from a Hugging Face config.json, with transformers' defaults for what it leaves out.
#include <algorithm>
#include <cmath>

#include "src/error.h"
#include "src/files/json_file.h"
#include "src/model/config.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {
namespace {

Architecture architecture_of(const JsonFields& fields);
void read_rope(const JsonFields& fields, const std::string& file, ModelConfig* config);
int32_t read_kv_heads(const JsonFields& fields, const ModelConfig& config);
void read_biases(const JsonFields& fields, ModelConfig* config);
void refuse_what_is_not_computed(const JsonFields& fields, const ModelConfig& config);
void read_windows(const JsonFields& fields, ModelConfig* config);
void limit_to_one_chunk(const JsonFields& fields, ModelConfig* config);

}  // namespace

ModelConfig config_from_json(std::string_view text, const std::string& file, Watch* watch) {
  const JsonTree json = parse_json(text, file, watch, kMostCompanionMemory);
  const JsonFields fields(*json, file);
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
  config.kv_heads = read_kv_heads(fields, config);
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
  read_biases(fields, &config);
  read_rope(fields, file, &config);
  refuse_what_is_not_computed(fields, config);
  read_windows(fields, &config);
  limit_to_one_chunk(fields, &config);
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

// null means one per query head everywhere; what a missing field means depends on the family.
int32_t read_kv_heads(const JsonFields& fields, const ModelConfig& config) {
  const std::string type = fields.text("model_type");
  int32_t missing = config.query_heads;
  if (type == "mistral") missing = 8;
  if (type == "qwen2" || type == "qwen3") missing = 32;
  if (fields.has_null("num_key_value_heads")) missing = config.query_heads;
  return static_cast<int32_t>(
      fields.find_integer("num_key_value_heads", 1, limits::kHeads).value_or(missing));
}

// Mistral has none and Qwen2 those of q, k and v, whatever attention_bias says. transformers leaves out
// biases that are stored without being declared; they are refused when the tensors are looked up.
void read_biases(const JsonFields& fields, ModelConfig* config) {
  using Bias = ModelConfig::Bias;
  const bool declared = fields.find_bool("attention_bias").value_or(false);
  if (config->architecture == Architecture::qwen2) {
    config->input_bias = Bias::needed;
  } else if (fields.text("model_type") != "mistral" && declared) {
    config->input_bias = config->output_bias = Bias::needed;
  }
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
  const Json* scaling = fields.find_object("rope_scaling");
  const char* name =
      scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";  // an empty one is none
  const Json nothing = Json::object();
  const Json* object = fields.find_object(name);
  for (const auto& [key, value] : (object ? *object : nothing).items())
    check(!value.is_object(), WI_E_UNSUPPORTED, file, ": ", name, ": ", key,
          " is an object: RoPE parameters by layer type are not supported");
  const JsonFields inner(object ? *object : nothing, file + ": " + name);
  config->rope_theta =
      inner.find_number("rope_theta").value_or(fields.find_number("rope_theta").value_or(10000));
  // transformers ignores it in these families without a scaling, and fails with one.
  const double share = inner.find_number("partial_rotary_factor")
                           .value_or(fields.find_number("partial_rotary_factor").value_or(1));
  check(share == 1, WI_E_UNSUPPORTED, fields.at("partial_rotary_factor"), " is ", share,
        ", supported in this architecture is 1");
  config->rotary = config->head_dim;

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

// Whether the field is there and neither null, false, 0 nor the number that changes nothing.
bool is_set(const JsonFields& fields, const char* key, double neutral) {
  const Json* value = fields.find(key);
  if (!value || (value->is_boolean() && !value->get<bool>())) return false;
  return !value->is_number() || (value->get<double>() != 0 && value->get<double>() != neutral);
}

// Fields that change the arithmetic: running such a model without them would give quietly wrong answers. The
// families themselves have the first few; the others come from relatives (Gemma, Granite, MiniCPM, mixtures
// of experts, encoders) whose files are sometimes passed off under these names.
void refuse_what_is_not_computed(const JsonFields& fields, const ModelConfig& config) {
  const std::string activation = fields.find_text("hidden_act").value_or("silu");
  check(activation == "silu" || activation == "swish", WI_E_UNSUPPORTED, fields.at("hidden_act"), " is '",
        activation, "', supported is silu");
  check(!fields.find_bool("mlp_bias").value_or(false), WI_E_UNSUPPORTED, fields.at("mlp_bias"),
        " is true, supported is false");
  for (const char* key : {"quantization_config", "compression_config"})
    check(!fields.find(key), WI_E_UNSUPPORTED, fields.at(key),
          " is set, supported are plain f32, f16 and bf16 weights");
  for (const char* key : {"per_layer_config", "transformers_weights"}) {
    const Json* value = fields.find(key);
    check(!value || value->empty(), WI_E_UNSUPPORTED, fields.at(key), " is set, which is not supported");
  }
  check(fields.find_bool("is_causal").value_or(true), WI_E_UNSUPPORTED, fields.at("is_causal"),
        " is false, supported is causal attention");

  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "clamp_kqv", "num_experts",
        "num_local_experts", "n_routed_experts", "kv_lora_rank", "q_lora_rank", "attention_chunk_size",
        "qk_layernorm", "use_qk_norm", "alibi", "use_bidirectional_attention", "use_parallel_residual",
        "parallel_attn", "rope_local_base_freq"})
    check(!is_set(fields, key, 0), WI_E_UNSUPPORTED, fields.at(key), " is set, which is not supported");
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale",
                          "scale_emb", "scale_depth"})
    check(!is_set(fields, key, 1), WI_E_UNSUPPORTED, fields.at(key), " is set, supported is 1");
  const double attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const double multiplier = fields.find_number("attention_multiplier").value_or(attention_scale);
  check(std::fabs(multiplier / attention_scale - 1) < 1e-6, WI_E_UNSUPPORTED,
        fields.at("attention_multiplier"), " is ", multiplier, ", supported is 1 / sqrt(head_dim)");

  const Json* classes = fields.find_array("architectures");
  for (const Json& name : classes ? *classes : Json::array()) {
    check(name.is_string(), WI_E_FORMAT, fields.at("architectures"), " must hold strings");
    const std::string text = name.get<std::string>();
    check(text.ends_with("ForCausalLM") || text.ends_with("LMHeadModel"), WI_E_UNSUPPORTED,
          fields.at("architectures"), " is '", text, "', supported are those that end in ForCausalLM");
  }
}

// What layer_types says of each layer: whether its window slides. Empty: the field is not there.
std::vector<bool> read_layer_types(const JsonFields& fields, const ModelConfig& config) {
  const Json* layer_types = fields.find_array("layer_types");
  if (!layer_types) return {};
  check(layer_types->size() == static_cast<size_t>(config.layers), WI_E_FORMAT, fields.at("layer_types"),
        " has ", layer_types->size(), " elements, but there are ", config.layers, " layers");
  std::vector<bool> sliding;
  for (const Json& layer : *layer_types) {
    check(layer == "full_attention" || layer == "sliding_attention", WI_E_UNSUPPORTED,
          fields.at("layer_types"), " holds ", layer.dump(),
          ", supported are full_attention and sliding_attention");
    sliding.push_back(layer == "sliding_attention");
  }
  return sliding;
}

// Which layers look at the last few tokens only, decided as transformers does: in Mistral all of them, in
// Qwen, if it is switched on at all, those from max_window_layers on or those that layer_types names. Both have
// a window of 4,096 when the field is missing (null is none). Llama has none whatever its file says.
void read_windows(const JsonFields& fields, ModelConfig* config) {
  const std::string type = fields.text("model_type");
  const bool qwen = type == "qwen2" || type == "qwen3", mistral = type == "mistral";
  const bool switched_on = fields.find_bool("use_sliding_window").value_or(false);
  const auto given = fields.find_integer("sliding_window", 1, INT64_MAX);
  const bool by_default = (qwen || mistral) && !given && !fields.has_null("sliding_window");
  const int64_t window = qwen && !switched_on ? 0 : given.value_or(by_default ? 4096 : 0);
  const int64_t first = fields.find_integer("max_window_layers", 0, INT64_MAX).value_or(28);

  std::vector<int64_t> windows(static_cast<size_t>(config->layers), 0);
  const std::vector<bool> named = read_layer_types(fields, *config);
  const bool some = std::find(named.begin(), named.end(), true) != named.end();
  const bool all = std::find(named.begin(), named.end(), false) == named.end();
  const bool matters = window > 0 && window < config->max_positions;
  check(!some || window > 0, WI_E_UNSUPPORTED, fields.at("layer_types"), " holds sliding_attention, but ",
        qwen && !switched_on ? "use_sliding_window is false" : "there is no sliding_window");
  if (qwen) {
    for (size_t layer = 0; layer < windows.size(); ++layer)
      if (named.empty() ? static_cast<int64_t>(layer) >= first : named[layer]) windows[layer] = window;
  } else if (mistral) {
    check(all || !matters, WI_E_UNSUPPORTED, fields.at("layer_types"),
          " holds full_attention, but in this architecture sliding_window is for all layers");
    windows.assign(windows.size(), window);
  } else {
    check(!matters || !(some || switched_on), WI_E_UNSUPPORTED, fields.at("sliding_window"), " is ", window,
          " and in use, which this architecture does not know");
  }
  set_windows(config, windows, fields.at("sliding_window"));
}

// Dual chunk attention (An et al. 2024), by which some Qwen2.5 models reach a million tokens, is attention as ever within
// the first chunk.
void limit_to_one_chunk(const JsonFields& fields, ModelConfig* config) {
  const char* const key = "dual_chunk_attention_config";
  if (!is_set(fields, key, 0)) return;
  const JsonFields of(*fields.find_object(key), fields.at(key));
  const int64_t chunk = of.integer("chunk_size", 1, limits::kPositions),
                local = of.integer("local_size", 0, limits::kPositions),
                original = of.find_integer("original_max_position_embeddings", 1, limits::kPositions)
                               .value_or(config->max_positions),
                most = std::min(chunk - local, original);
  check(most > 0, WI_E_UNSUPPORTED, of.at("chunk_size"), " is ", chunk, " with a local_size of ", local,
        ", which leaves nothing that is attention without chunks");
  limit_tokens(config, most, concat(of.at("chunk_size"), " is ", chunk));
}

}  // namespace
}  // namespace wi
