// The safetensors container, shards, and what tokenizer.json and its companions become.
#include "src/files/safetensors.h"

#include <algorithm>

#include "src/memory/workers.h"
#include "src/model/model.h"
#include "src/tokenizer/vocabulary.h"
#include "support/model_files.h"
#include "test.h"

using namespace wi;
using namespace wi::test;
using nlohmann::json;

static void tensors_come_back_with_shape_type_and_place(void**) {
  DirectoryBuilder files;
  files.f32_tensor("b", {2, 3}, 1);
  files.f32_tensor("a", {4}, 2);
  files.header["__metadata__"] = {{"format", "pt"}};
  const std::string bytes = files.safetensors();
  const auto tensors = parse_safetensors(as_bytes(bytes), "test.safetensors");
  assert_int_equal(tensors.size(), 2);
  const StoredTensor& b = tensors[1];
  assert_true(b.name == "b" && b.type == DType::f32 && (b.shape == std::vector<int64_t>{2, 3}) &&
              b.bytes == 24);
  assert_true(b.data == as_bytes(bytes).data() + b.offset);
  assert_true(read_floats(b)[4] == 1.04f && read_floats(tensors[0])[0] == 2);
}

static void directory_opens_with_its_weights(void**) {
  TempFolder folder;
  tiny_directory().write(folder);
  const auto model = Model::open(folder.path());
  assert_true(!model->config.rope_interleaved && model->config.tied_embeddings);
  assert_true(static_cast<const float*>(model->weights.layers[0].down.data)[1] == 0.81f);
  assert_true(model->weights.layers[0].down.rows == 32 && model->weights.layers[0].down.cols == 64);
  assert_int_equal(model->tokenizer->vocabulary().bos, 0);
}

static void unaligned_tensors_are_copied_to_where_they_can_be_read(void**) {
  TempFolder folder;
  unaligned_directory().write(folder);
  const auto model = Model::open(folder.path());
  const Matrix& down = model->weights.layers[0].down;
  assert_int_equal(reinterpret_cast<uintptr_t>(down.data) % 4, 0);
  assert_true(static_cast<const float*>(down.data)[1] == 0.81f);
}

static DirectoryBuilder shards(json* index) {
  DirectoryBuilder files = tiny_directory();
  DirectoryBuilder parts[2];
  int number = 0;
  for (const auto& [name, entry] : files.header.items()) {
    DirectoryBuilder& part = parts[number % 2];
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1], at = part.data.size();
    part.data += files.data.substr(begin, end - begin);
    part.header[name] = {
        {"dtype", "F32"}, {"shape", entry["shape"]}, {"data_offsets", {at, part.data.size()}}};
    (*index)["weight_map"][name] = "part-" + std::to_string(number++ % 2) + ".safetensors";
  }
  files.files = {{"model.safetensors", ""},
                 {"part-0.safetensors", parts[0].safetensors()},
                 {"part-1.safetensors", parts[1].safetensors()}};
  return files;
}

static void shards_open_as_one_model(void**) {
  TempFolder whole, split;
  tiny_directory().write(whole);
  json index;
  DirectoryBuilder files = shards(&index);
  files.files.emplace_back("model.safetensors.index.json", index.dump());
  files.write(split);
  Workers workers(2);
  assert_true(Model::open(whole.path())->weights_hash(workers) ==
              Model::open(split.path())->weights_hash(workers));
}

static void broken_shard_indexes_are_refused(void**) {
  json index;
  const DirectoryBuilder files = shards(&index);
  auto expect = [&](const char* words, const std::function<void(json&)>& change) {
    TempFolder folder;
    json broken = index;
    change(broken);
    DirectoryBuilder copy = files;
    copy.files.emplace_back("model.safetensors.index.json", broken.dump());
    copy.write(folder);
    assert_error(WI_E_FORMAT, words, Model::open(folder.path()));
  };
  expect("names part-9.safetensors, which is not there",
         [](json& j) { j["weight_map"]["model.norm.weight"] = "part-9.safetensors"; });
  expect("tensor 'extra' is not in part-0.safetensors",
         [](json& j) { j["weight_map"]["extra"] = "part-0.safetensors"; });
  expect("lies in '../part-0.safetensors', which is no plain file name",
         [](json& j) { j["weight_map"]["model.norm.weight"] = "../part-0.safetensors"; });
  expect("weight_map: 'model.norm.weight' is number",
         [](json& j) { j["weight_map"]["model.norm.weight"] = 3; });
  expect("weight_map is missing or empty", [](json& j) { j.erase("weight_map"); });
}

static Vocabulary vocabulary_of(const json& tokenizer, const json& tokenizer_config,
                                int32_t vocab = kTinyVocab, const std::string& config = "",
                                const std::string& generation = "") {
  const std::string text = tokenizer.dump(), words = tokenizer_config.dump();
  return vocabulary_from_json({text, words, config, generation, ""}, vocab).vocabulary;
}
static const json kWords = {{"bos_token", "<|bos|>"}, {"eos_token", {{"content", "<|end|>"}}}};

static void byte_level_tokenizer_is_reduced(void**) {
  const Vocabulary words = vocabulary_of(byte_level_tokenizer(), kWords, kTinyVocab + 3);
  assert_true(words.model == Vocabulary::Model::byte_bpe && words.tokens[260] == "the");
  assert_true((words.merges == std::vector<std::string>{"t h", "th e"}));
  assert_true(words.bos == 0 && words.eos == 1 && !words.add_bos);
  assert_true(words.kinds[2] == TokenKind::control && words.kinds[3] == TokenKind::normal);
  assert_true(words.kinds[263] == TokenKind::unused && words.tokens[263] == "[PAD263]");
  assert_true(words.splits->size() == 1 &&
              words.splits->front().pattern.find("\\p{L}+") != std::string::npos);
}

static void split_patterns_are_kept_in_order(void**) {
  json tokenizer = byte_level_tokenizer();
  auto split = [](const char* regex) {
    return json{
        {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {split("\\p{N}{1,3}"),
        split("[a-z]+"),
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const Vocabulary words = vocabulary_of(tokenizer, kWords);
  assert_int_equal(words.splits->size(), 2);
  assert_string_equal((*words.splits)[0].pattern.c_str(), "\\p{N}{1,3}");
  assert_string_equal((*words.splits)[1].pattern.c_str(), "[a-z]+");
  assert_int_equal(words.normalizer.size(), 1);
}

static void pairs_and_texts_give_the_same_merges(void**) {
  json tokenizer = byte_level_tokenizer();
  const auto texts = vocabulary_of(tokenizer, kWords).merges;
  tokenizer["model"]["merges"] = json::array({json::array({"t", "h"}), json::array({"th", "e"})});
  assert_true(vocabulary_of(tokenizer, kWords).merges == texts);
}

static void bos_is_added_when_a_file_says_so(void**) {
  json tokenizer = byte_level_tokenizer(), words = kWords;
  tokenizer["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single", {{{"SpecialToken", {{"id", "<|bos|>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
         {"special_tokens", {{"<|bos|>", {{"id", "<|bos|>"}, {"ids", {0}}}}}}}}}};
  assert_true(vocabulary_of(tokenizer, words).add_bos);
  for (const bool asked : {false, true}) {  // which transformers passes over, beside a tokenizer.json
    words["add_bos_token"] = asked;
    assert_true(vocabulary_of(tokenizer, words).add_bos);
    assert_false(vocabulary_of(byte_level_tokenizer(), words).add_bos);
  }
}

static void every_end_of_an_answer_is_listed(void**) {
  json tokenizer = byte_level_tokenizer();
  tokenizer["added_tokens"].push_back({{"id", 261}, {"content", "<|eot_id|>"}, {"special", true}});
  const Vocabulary words =
      vocabulary_of(tokenizer, kWords, 262, R"({"eos_token_id": 5})", R"({"eos_token_id": [1, 7]})");
  assert_true((words.end_of_generation == std::vector<int32_t>{1, 7, 261}));  // and none of config.json's
  assert_int_equal(words.eos, 1);
  const Vocabulary bare =
      vocabulary_of(tokenizer, json::object(), 262, R"({"eos_token_id": 5})", R"({"eos_token_id": [9, 7]})");
  assert_int_equal(bare.eos, 9);
}

static void character_tokenizer_is_reduced(void**) {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  char name[8];
  for (int byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[name] = 3 + byte;
  }
  int next = 259;
  for (const char* text : {"▁", "t", "h", "e", "▁t", "he", "▁the", "th"}) vocab[text] = next++;
  json tokenizer = {{"added_tokens",
                     {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
                      {{"id", 1}, {"content", "<s>"}, {"special", true}},
                      {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
                    {"normalizer",
                     {{"type", "Sequence"},
                      {"normalizers",
                       {{{"type", "Prepend"}, {"prepend", "▁"}},
                        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
                    {"model",
                     {{"type", "BPE"},
                      {"byte_fallback", true},
                      {"unk_token", "<unk>"},
                      {"vocab", vocab},
                      {"merges", {"h e", "▁ t", "▁t he", "t h"}}}}};
  const json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const Vocabulary words = vocabulary_of(tokenizer, config, 267);
  assert_true(words.model == Vocabulary::Model::char_bpe && words.add_space_prefix && !words.add_bos);
  assert_true(words.kinds[0] == TokenKind::unknown && words.kinds[1] == TokenKind::control &&
              words.kinds[3] == TokenKind::byte);
  assert_true((words.merges == std::vector<std::string>{"h e", "▁ t", "▁t he", "t h"}));
  assert_true(words.normalizer.size() == 2 && words.rewrites.empty() && words.splits->empty());
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}, {"split", false}};
  assert_false(vocabulary_of(tokenizer, config, 267).add_space_prefix);
}

static void chat_templates_are_found_wherever_they_lie(void**) {
  const std::string text = byte_level_tokenizer().dump();
  auto found = [&](const std::string& words, const std::string& file, const std::string& tools = {}) {
    std::string all;
    for (const auto& [name, jinja] :
         vocabulary_from_json({text, words, "", "", file, "", "", tools}, kTinyVocab).chat_templates)
      all += name + "=" + jinja + ";";
    return all;
  };
  assert_true(found("", "").empty());
  assert_string_equal(found(R"({"chat_template": "T"})", "").c_str(), "default=T;");
  assert_string_equal(
      found(R"({"chat_template": [{"name": "x", "template": "X"}, {"name": "default", "template": "D"}]})",
            "")
          .c_str(),
      "x=X;default=D;");
  assert_string_equal(found(R"({"chat_template": "T"})", "F").c_str(), "default=F;");
  assert_string_equal(found("", "F", "G").c_str(), "default=F;tool_use=G;");
}

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(tensors_come_back_with_shape_type_and_place),
                              cmocka_unit_test(directory_opens_with_its_weights),
                              cmocka_unit_test(unaligned_tensors_are_copied_to_where_they_can_be_read),
                              cmocka_unit_test(shards_open_as_one_model),
                              cmocka_unit_test(broken_shard_indexes_are_refused),
                              cmocka_unit_test(byte_level_tokenizer_is_reduced),
                              cmocka_unit_test(split_patterns_are_kept_in_order),
                              cmocka_unit_test(pairs_and_texts_give_the_same_merges),
                              cmocka_unit_test(bos_is_added_when_a_file_says_so),
                              cmocka_unit_test(every_end_of_an_answer_is_listed),
                              cmocka_unit_test(character_tokenizer_is_reduced),
                              cmocka_unit_test(chat_templates_are_found_wherever_they_lie)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
