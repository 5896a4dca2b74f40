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
  for (const char* name :
       {"llama", "llama-linear", "llama-yarn", "llama-bias", "llama-wide", "qwen2", "qwen3"}) {
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
  assert_int_equal(read(config).head_dim, 128);
}

static void mistral_without_a_window_is_llama(void**) {
  json config = tiny_config();
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  assert_true(read(config).architecture == Architecture::llama);
  config["sliding_window"] = 128;  // as long as the context: no window
  assert_true(read(config).architecture == Architecture::llama);
  config["sliding_window"] = 64;
  assert_error(WI_E_UNSUPPORTED, "config.json: sliding_window is 64", read(config));
  config["model_type"] = "qwen2";
  config["use_sliding_window"] = false;
  assert_true(read(config).architecture == Architecture::qwen2);
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

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(frequencies_equal_those_of_transformers),
                              cmocka_unit_test(both_formats_give_one_config),
                              cmocka_unit_test(factors_tensor_equals_the_llama3_formula),
                              cmocka_unit_test(missing_fields_take_the_published_defaults),
                              cmocka_unit_test(mistral_without_a_window_is_llama),
                              cmocka_unit_test(bos_comes_by_default_where_llama_cpp_puts_it)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
