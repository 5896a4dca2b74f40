// Hyper-parameters and rotary frequencies, against numbers dumped from Hugging Face transformers.
#include "src/model/config.h"

#include <cmath>
#include <fstream>

#include "src/model/model.h"
#include "support/model_files.h"
#include "test.h"

using namespace wi;
using namespace wi::test;
using nlohmann::json;

static json read_json(const char* path) {
  std::ifstream file(path);
  assert_true(file.good());
  return json::parse(file);
}

// transformers computes in f32: its powers and quotients carry a few units in the last place (6e-8 each).
static void frequencies_equal_those_of_transformers(void**) {
  double worst = 0;
  for (const json& entry : read_json(WI_TEST_DATA "/fixtures/rope.json")) {
    const std::string name = entry["name"];
    const ModelConfig config = config_from_json(entry["config"].dump(), name);
    const RopeFrequencies rope = rope_frequencies(config, nullptr);
    const std::vector<double> wanted = entry["frequency"];
    assert_int_equal(rope.frequency.size(), wanted.size());
    assert_int_equal(config.rotary, 2 * wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double error = std::fabs(rope.frequency[i] / wanted[i] - 1);
      if (error > 2e-6)
        std::printf("%s: pair %zu: %.9g, transformers has %.9g\n", name.c_str(), i, rope.frequency[i],
                    wanted[i]);
      worst = std::max(worst, error);
    }
    if (std::fabs(rope.magnitude - entry["magnitude"].get<double>()) > 1e-12) {
      std::printf("%s: magnitude %.9g\n", name.c_str(), rope.magnitude);
      assert_true(false);
    }
  }
  std::printf("largest relative difference %.2g\n", worst);
  assert_true(worst <= 2e-6);
}

static json tiny_config() { return tiny_directory().config; }
static ModelConfig read(const json& config) { return config_from_json(config.dump(), "config.json"); }

static void both_formats_give_one_config(void**) {
  for (const char* name : {"llama", "llama-linear", "llama-yarn", "llama-bias", "llama-wide", "qwen2",
                           "qwen3", "mistral-window", "qwen2-window", "qwen3-window"}) {
    const std::string base = std::string(WI_TEST_DATA "/fixtures/models/") + name;
    const auto gguf = Model::open(base + ".gguf"), directory = Model::open(base);
    const ModelConfig &a = gguf->config, &b = directory->config;
    assert_true(a.architecture == b.architecture && a.layers == b.layers && a.hidden == b.hidden &&
                a.ffn == b.ffn);
    assert_true(a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
                a.vocab == b.vocab);
    assert_true(a.max_positions == b.max_positions && a.rms_epsilon == b.rms_epsilon &&
                a.rope_theta == b.rope_theta);
    assert_true(a.rotary == b.rotary && a.qk_norm == b.qk_norm && a.tied_embeddings == b.tied_embeddings);
    assert_true(a.rope_interleaved == (a.architecture == Architecture::llama) && !b.rope_interleaved);
    assert_true(gguf->rope.frequency == directory->rope.frequency &&
                gguf->rope.magnitude == directory->rope.magnitude);
    assert_true(a.windows == b.windows);
    assert_true(gguf->parameters == directory->parameters);
    assert_true((gguf->weights.layers[0].q_bias != nullptr) ==
                (directory->weights.layers[0].q_bias != nullptr));
    assert_true((gguf->weights.layers[0].o_bias != nullptr) ==
                (directory->weights.layers[0].o_bias != nullptr));
  }
}

// GGUF carries llama3's scaling as one f32 divisor per pair.
static void factors_tensor_equals_the_llama3_formula(void**) {
  const auto gguf = Model::open(WI_TEST_DATA "/fixtures/models/llama-llama3.gguf");
  const auto directory = Model::open(WI_TEST_DATA "/fixtures/models/llama-llama3");
  for (size_t i = 0; i < gguf->rope.frequency.size(); ++i)
    assert_true(std::fabs(gguf->rope.frequency[i] / directory->rope.frequency[i] - 1) < 1e-6);
}

static void missing_fields_take_the_published_defaults(void**) {
  json config = tiny_config();
  for (const char* key :
       {"rms_norm_eps", "num_key_value_heads", "hidden_act", "rope_theta", "tie_word_embeddings"})
    config.erase(key);
  config["head_dim"] = nullptr;
  const ModelConfig read_config = read(config);
  assert_true(read_config.rms_epsilon == 1e-6f && read_config.kv_heads == 2 &&
              read_config.rope_theta == 10000);
  assert_true(!read_config.tied_embeddings && read_config.head_dim == 16 && read_config.rotary == 16);
  config["model_type"] = "qwen3";
  config["num_key_value_heads"] = 1;
  assert_int_equal(read(config).head_dim, 128);
}

static json with(json config, const json& changes) {
  config.merge_patch(changes);
  for (const auto& [key, value] : changes.items())  // a patch takes null for "remove"
    if (value.is_null()) config[key] = nullptr;
  return config;
}

using Windows = std::vector<int32_t>;

static void mistral_is_llama_with_a_window(void**) {
  const json mistral = with(tiny_config(), {{"model_type", "mistral"}});
  assert_true(read(with(mistral, {{"sliding_window", nullptr}})).architecture == Architecture::llama);
  assert_true(read(with(mistral, {{"sliding_window", nullptr}})).windows.empty());
  assert_true(read(with(mistral, {{"sliding_window", 128}})).windows.empty());  // all 128 positions
  assert_true(read(with(mistral, {{"sliding_window", 127}})).windows == Windows{127});
}

// As transformers' configuration classes and models decide it, of 128 positions in four layers if nothing else is
// said.
static void windows_are_found_where_transformers_has_them(void**) {
  const json tiny = with(tiny_config(), {{"num_hidden_layers", 4}});
  const json mistral = with(tiny, {{"model_type", "mistral"}});
  const json qwen = with(tiny, {{"model_type", "qwen2"}, {"num_key_value_heads", 1}});
  const auto types = [](const char* kinds) {
    json list = json::array();
    for (const char* kind = kinds; *kind; ++kind)
      list.push_back(*kind == 's' ? "sliding_attention" : "full_attention");
    return json{{"layer_types", list}};
  };
  const json longer = {{"max_position_embeddings", 32768}}, w64 = {{"sliding_window", 64}};
  const auto windows = [](const json& config) { return read(config).windows; };
  // The field missing: 4,096 in Mistral and in Qwen, no window in Llama. null: none.
  assert_true(windows(mistral).empty());
  assert_true(windows(with(mistral, longer)) == Windows(4, 4096));
  assert_true(windows(with(with(mistral, longer), {{"sliding_window", nullptr}})).empty());
  assert_true(windows(with(tiny, longer)).empty());
  assert_true(windows(with(tiny, w64)).empty());  // Llama does not know it
  // Mistral does not know use_sliding_window.
  assert_true(windows(with(with(mistral, w64), {{"use_sliding_window", false}})) == Windows(4, 64));
  // Qwen: only if it is switched on, and from max_window_layers on, which is 28 if it is missing.
  const auto on = [&](int first) { return json{{"use_sliding_window", true}, {"max_window_layers", first}}; };
  assert_true(windows(with(qwen, w64)).empty());
  assert_true(
      windows(with(with(qwen, w64), {{"use_sliding_window", false}, {"max_window_layers", 0}})).empty());
  assert_true(windows(with(with(qwen, w64), {{"use_sliding_window", true}})).empty());
  assert_true(windows(with(with(qwen, w64), on(4))).empty());
  assert_true(windows(with(with(qwen, w64), on(3))) == (Windows{0, 0, 0, 64}));
  assert_true(windows(with(with(qwen, w64), on(0))) == Windows(4, 64));
  assert_true(windows(with(with(qwen, longer), on(2))) == (Windows{0, 0, 4096, 4096}));
  assert_true(windows(with(with(qwen, {{"sliding_window", nullptr}}), on(0))).empty());
  assert_true(windows(with(with(qwen, {{"sliding_window", 128}}), on(0))).empty());
  // Layer types have the last word.
  assert_true(windows(with(with(with(qwen, w64), on(0)), types("ffff"))).empty());
  assert_true(windows(with(with(with(qwen, w64), on(4)), types("sfsf"))) == (Windows{64, 0, 64, 0}));
  assert_true(windows(with(with(with(qwen, {{"sliding_window", 128}}), on(4)), types("ssss"))).empty());
  assert_true(windows(with(with(mistral, w64), types("ssss"))) == Windows(4, 64));
  assert_true(windows(with(with(mistral, {{"sliding_window", nullptr}}), types("ffff"))).empty());
}

// Behind them the file asks for what is not computed.
static void a_window_that_is_none_and_a_chunk_limit_the_tokens(void**) {
  const json mistral = with(tiny_config(), {{"model_type", "mistral"}});
  const auto most = [](const json& config) { return read(config).most_tokens; };
  assert_int_equal(most(with(mistral, {{"sliding_window", nullptr}})), 0);
  assert_int_equal(most(with(mistral, {{"sliding_window", 127}})), 0);
  assert_int_equal(most(with(mistral, {{"sliding_window", 128}})), 128);
  assert_int_equal(most(with(mistral, {{"sliding_window", 200}})), 200);
  assert_int_equal(most(with(tiny_config(), {{"sliding_window", 200}})), 0);  // Llama does not know it
  const json qwen = with(tiny_config(), {{"model_type", "qwen2"}, {"num_key_value_heads", 1}});
  assert_int_equal(most(with(qwen, {{"sliding_window", 200}})), 0);
  const auto dual = [&](const json& chunks) {
    return with(qwen, {{"dual_chunk_attention_config", chunks}, {"max_position_embeddings", 1000}});
  };
  assert_int_equal(most(dual(nullptr)), 0);
  assert_int_equal(most(dual({{"chunk_size", 256}, {"local_size", 8}})), 248);
  assert_int_equal(
      most(dual({{"chunk_size", 256}, {"local_size", 8}, {"original_max_position_embeddings", 100}})), 100);
  assert_string_equal(read(dual({{"chunk_size", 256}, {"local_size", 8}})).beyond_most.c_str(),
                      "config.json: dual_chunk_attention_config: chunk_size is 256");
  assert_error(WI_E_UNSUPPORTED, "chunk_size is 8 with a local_size of 8",
               read(dual({{"chunk_size", 8}, {"local_size", 8}})));
  assert_error(WI_E_FORMAT, "dual_chunk_attention_config is boolean, must be an object", read(dual(true)));
}

static void windows_that_contradict_their_layers_are_refused(void**) {
  const json mistral = with(tiny_config(), {{"model_type", "mistral"}, {"sliding_window", 64}});
  const json qwen =
      with(tiny_config(), {{"model_type", "qwen2"}, {"num_key_value_heads", 1}, {"sliding_window", 64}});
  const json sliding = {{"layer_types", json::array({"sliding_attention"})}},
             full = {{"layer_types", json::array({"full_attention"})}}, none = {{"sliding_window", nullptr}},
             on = {{"use_sliding_window", true}};
  assert_error(WI_E_UNSUPPORTED, "layer_types holds full_attention, but in this architecture",
               read(with(mistral, full)));
  assert_error(WI_E_UNSUPPORTED, "layer_types holds sliding_attention, but there is no sliding_window",
               read(with(with(mistral, none), sliding)));
  assert_error(WI_E_UNSUPPORTED, "layer_types holds sliding_attention, but use_sliding_window is false",
               read(with(qwen, sliding)));
  assert_error(WI_E_UNSUPPORTED, "layer_types holds sliding_attention, but there is no sliding_window",
               read(with(with(with(qwen, on), none), sliding)));
  for (const json& used : {sliding, on})
    assert_error(WI_E_UNSUPPORTED, "sliding_window is 64 and in use, which this architecture does not know",
                 read(with(with(tiny_config(), used), {{"sliding_window", 64}})));
  assert_error(WI_E_UNSUPPORTED, "layer_types holds \"chunked_attention\"",
               read(with(qwen, {{"layer_types", json::array({"chunked_attention"})}})));
  assert_error(WI_E_FORMAT, "layer_types has 1 elements, but there are 2 layers",
               read(with(with(with(qwen, on), sliding), {{"num_hidden_layers", 2}})));
  for (int64_t window : {0, -1})
    assert_error(WI_E_FORMAT, "sliding_window", read(with(mistral, {{"sliding_window", window}})));
}

// Of 128 positions in three layers.
static Windows gguf_windows(const std::string& architecture,
                            const std::function<void(GgufBuilder&)>& change) {
  GgufBuilder file = tiny_gguf();
  file.u32("llama.block_count", 3);
  change(file);
  for (GgufBuilder::Field& field : file.fields)
    if (field.key.starts_with("llama.")) field.key = architecture + field.key.substr(5);
  file.text("general.architecture", architecture);
  const std::string bytes = file.bytes();
  return config_from_gguf(Gguf::parse(as_bytes(bytes), "w.gguf")).windows;
}

static void windows_of_gguf_are_those_of_its_layers(void**) {
  const std::string key = "llama.attention.sliding_window", pattern = key + "_pattern";
  const auto one = [&](uint32_t window) { return [=](GgufBuilder& f) { f.u32(key, window); }; };
  const auto list = [&](std::vector<int32_t> each) {
    return [=](GgufBuilder& f) { f.numbers(key, GgufType::i32, each); };
  };
  const auto some = [&](uint32_t window, std::vector<uint8_t> slides) {
    return [=](GgufBuilder& f) {
      f.u32(key, window);
      f.numbers(pattern, GgufType::boolean, slides);
    };
  };
  for (const char* any : {"llama", "qwen2", "qwen3"}) {
    assert_true(gguf_windows(any, [](GgufBuilder&) {}).empty());
    assert_true(gguf_windows(any, one(0)).empty() && gguf_windows(any, one(128)).empty());
    assert_true(gguf_windows(any, list({64, 0, 127})) == (Windows{64, 0, 127}));
    assert_true(gguf_windows(any, list({0, 128, 4096})).empty());
    assert_true(gguf_windows(any, some(64, {1, 0, 1})) == (Windows{64, 0, 64}));
    assert_true(gguf_windows(any, some(64, {0, 0, 0})).empty());
    assert_error(WI_E_FORMAT, "sliding_window' (byte ", gguf_windows(any, list({64, -1, 64})));
    assert_error(WI_E_FORMAT, " has 2 elements, but there are 3 layers", gguf_windows(any, list({64, 64})));
    assert_error(WI_E_FORMAT, " has 2 elements, but there are 3 layers", gguf_windows(any, some(64, {1, 0})));
    // Of every so many layers one sees all, but whether the first or the last depends on the architecture.
    assert_error(WI_E_UNSUPPORTED, "sliding_window_pattern' (byte ", gguf_windows(any, [&](GgufBuilder& f) {
                   one(64)(f);
                   f.u32(pattern, 2);
                 }));
    assert_error(WI_E_UNSUPPORTED, "rope.freq_base_swa' (byte ", gguf_windows(any, [&](GgufBuilder& f) {
                   some(64, {1, 0, 1})(f);
                   f.f32("llama.rope.freq_base_swa", 500);
                 }));
  }
  assert_true(gguf_windows("llama", one(64)) == Windows(3, 64));
  for (const char* qwen : {"qwen2", "qwen3"})
    assert_error(WI_E_UNSUPPORTED, " is 64 without ", gguf_windows(qwen, one(64)));
}

static void missing_kv_heads_mean_what_they_mean_in_the_family(void**) {
  json config = with(tiny_config(), {{"num_attention_heads", 32}, {"head_dim", 16}});
  config.erase("num_key_value_heads");
  const auto heads = [&](const char* type) { return read(with(config, {{"model_type", type}})).kv_heads; };
  assert_int_equal(heads("llama"), 32);
  assert_int_equal(heads("mistral"), 8);
  config["num_attention_heads"] = 64;
  assert_int_equal(heads("qwen2"), 32);
  assert_int_equal(heads("qwen3"), 32);
  config["num_key_value_heads"] = nullptr;
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) assert_int_equal(heads(type), 64);
}

// Attention would leave out what lies behind the last vector.
static void heads_of_odd_sizes_are_refused(void**) {
  for (const int size : {4, 12, 100})
    assert_error(WI_E_UNSUPPORTED, "must be a multiple of 8",
                 read(with(tiny_config(), {{"head_dim", size}})));
  assert_int_equal(read(with(tiny_config(), {{"head_dim", 40}})).head_dim, 40);
}

static void an_empty_rope_scaling_is_none(void**) {
  const json inner = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  const ModelConfig config =
      read(with(tiny_config(), {{"rope_scaling", json::object()}, {"rope_parameters", inner}}));
  assert_true(config.rope.kind == RopeScaling::Kind::linear && config.rope.factor == 2 &&
              config.rope_theta == 5e5);
}

// Files may leave out add_bos_token: what then holds depends on the pre-tokenizer's name.
static void bos_comes_by_default_where_llama_cpp_puts_it(void**) {
  const TempFolder folder;
  std::ifstream defaults(WI_TEST_DATA "/fixtures/llama_cpp/bos.txt");
  int count = 0;
  std::string name;
  for (int wanted; defaults >> name >> wanted; ++count) {
    GgufBuilder file = tiny_gguf();
    file.text("tokenizer.ggml.pre", name);
    file.remove("tokenizer.ggml.add_bos_token");
    const auto model = Model::open(folder.write("bos.gguf", file.bytes()));
    const bool added = model->tokenizer->encode("a", true, false).front() == 0;
    if (added != (wanted != 0)) std::printf("%s: BOS %d, llama.cpp %d\n", name.c_str(), added, wanted);
    assert_true(added == (wanted != 0));
  }
  assert_true(count >= 40);
}

// Converters gave <|im_end|> and the like any type.
static void tokens_that_llama_cpp_knows_by_their_text_are_known(void**) {
  const TempFolder folder;
  std::ifstream known(WI_TEST_DATA "/fixtures/llama_cpp/kinds.txt");
  int count = 0;
  std::string text;
  for (int kind, plain, special, end; known >> text >> kind >> plain >> special >> end; ++count) {
    GgufBuilder file = tiny_gguf();
    std::vector<std::string> tokens = tiny_tokens();
    const auto same = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
    const size_t at = same < tokens.size() ? same : 2;
    const auto id = static_cast<int32_t>(at);
    std::vector<int32_t> kinds(kTinyVocab, 1);
    tokens[at] = text, kinds[at] = kind;
    file.texts("tokenizer.ggml.tokens", tokens);
    file.numbers("tokenizer.ggml.token_type", GgufType::i32, kinds);
    const auto model = Model::open(folder.write("kinds.gguf", file.bytes()));
    const auto is_token = [&](bool parsed) {
      return model->tokenizer->encode(text, false, parsed) == std::vector<int32_t>{id};
    };
    const auto& ends = model->tokenizer->vocabulary().end_of_generation;
    const bool ends_answer = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (is_token(false) != plain || is_token(true) != special || ends_answer != end)
      std::printf("%s of type %d: plain %d, special %d, end %d; llama.cpp %d, %d, %d\n", text.c_str(), kind,
                  is_token(false), is_token(true), ends_answer, plain, special, end);
    assert_true(is_token(false) == plain && is_token(true) == special && ends_answer == end);
  }
  assert_true(count >= 150);
}

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(frequencies_equal_those_of_transformers),
                              cmocka_unit_test(both_formats_give_one_config),
                              cmocka_unit_test(factors_tensor_equals_the_llama3_formula),
                              cmocka_unit_test(missing_fields_take_the_published_defaults),
                              cmocka_unit_test(mistral_is_llama_with_a_window),
                              cmocka_unit_test(windows_are_found_where_transformers_has_them),
                              cmocka_unit_test(a_window_that_is_none_and_a_chunk_limit_the_tokens),
                              cmocka_unit_test(windows_that_contradict_their_layers_are_refused),
                              cmocka_unit_test(windows_of_gguf_are_those_of_its_layers),
                              cmocka_unit_test(missing_kv_heads_mean_what_they_mean_in_the_family),
                              cmocka_unit_test(heads_of_odd_sizes_are_refused),
                              cmocka_unit_test(an_empty_rope_scaling_is_none),
                              cmocka_unit_test(bos_comes_by_default_where_llama_cpp_puts_it),
                              cmocka_unit_test(tokens_that_llama_cpp_knows_by_their_text_are_known)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
