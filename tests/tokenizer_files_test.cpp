// tokenizer.json with its companions: every supported construct against the ids that the libraries tokenizers
// and transformers give (tests/fixtures/make_tokenizer_files.py), and everything else refused by name.
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/vocabulary.h"
#include "support/cancel_time.h"
#include "test.h"

namespace wi {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const json& fixtures() {
  static const json all = json::parse(std::ifstream(WI_TEST_DATA "/fixtures/tokenizer_files.json"));
  return all;
}

const json& fixture(const std::string& name) {
  for (const json& file : fixtures().at("files"))
    if (file.at("name") == name) return file;
  fail(WI_E_INTERNAL, "no fixture ", name);
}

json tokenizer_json(const json& file) {
  json tokenizer = file.at("steps");
  tokenizer["model"] = fixtures().at("models").at(file.at("model").get<std::string>());
  tokenizer["model"].update(file.at("changes"));
  return tokenizer;
}

Vocabulary read(const json& tokenizer, const json& companions = json::object(), int32_t vocab = 600) {
  const auto text = [&](const char* name) {
    return companions.contains(name) ? companions.at(name).dump() : std::string();
  };
  const std::string file = tokenizer.dump(), config = text("tokenizer_config"), added = text("added_tokens"),
                    map = text("special_tokens_map"), generation = text("generation_config"),
                    model = text("config");
  return vocabulary_from_json({file, config, model, generation, {}, added, map}, vocab).vocabulary;
}

std::unique_ptr<const Tokenizer> open(const json& file) {
  return Tokenizer::create(read(tokenizer_json(file), file.at("companions"), file.at("vocab")));
}

void expect_ids(const Tokenizer& tokenizer, const std::string& name, const std::string& text, bool special,
                const Ids& wanted) {
  const Ids ids = tokenizer.encode(text, false, special);
  if (ids == wanted) return;
  std::printf("%s: %s, special %d:", name.c_str(), json(text).dump().c_str(), special);
  for (int32_t id : ids) std::printf(" %d", id);
  std::printf(", wanted:");
  for (int32_t id : wanted) std::printf(" %d", id);
  std::printf("\n");
  assert_true(ids == wanted);
}

void every_construct_gives_the_reference_ids(void**) {
  size_t cases = 0;
  for (const json& file : fixtures().at("files")) {
    const auto tokenizer = open(file);
    const size_t before =
        tokenizer->encode("a", true, false).size() - tokenizer->encode("a", false, false).size();
    if (before != file.at("bos")) std::printf("%s:\n", file.at("name").dump().c_str());
    assert_int_equal(before, file.at("bos").get<size_t>());
    for (const json& one : file.at("cases")) {
      const std::string text = one.at("text");
      expect_ids(*tokenizer, file.at("name"), text, true, one.at("ids"));
      expect_ids(*tokenizer, file.at("name"), text, false,
                 one.contains("plain_ids") ? one.at("plain_ids") : one.at("ids"));
      ++cases;
    }
  }
  std::printf("%zu files, %zu texts\n", fixtures().at("files").size(), cases);
  assert_true(cases > 4000);
}

// What a file's tokenizer does not lose comes back; a space of its own goes, one of the text stays.
void decoding_takes_away_what_encoding_added(void**) {
  for (const char* name : {"llama-2", "metaspace-always", "metaspace-first", "metaspace-never", "gemma",
                           "prefix-space", "one-word", "digits"}) {
    const auto tokenizer = open(fixture(name));
    for (const char* text :
         {"Hello world", "a  b\n\n c", "caf\u00e9 \u4e2d", "a\xff\xfe", "x</s>y", "<s>x"}) {
      const bool added_before = std::string(name) == "metaspace-first" && std::string(text) == "<s>x";
      for (bool special : {false, true}) {
        if (added_before && !special) continue;
        assert_string_equal(tokenizer->decode(tokenizer->encode(text, false, special), true).c_str(), text);
      }
    }
  }
  const auto llama2 = open(fixture("llama-2")), metaspace = open(fixture("metaspace-first"));
  assert_string_equal(llama2->decode(llama2->encode(" x", false, false), true).c_str(), " x");
  assert_string_equal(metaspace->decode(metaspace->encode(" x", false, false), true).c_str(), "x");
  const auto nfc = open(fixture("nfc"));
  assert_string_equal(nfc->decode(nfc->encode("e\u0301", false, false), true).c_str(), "\u00e9");
}

void bytes_that_utf8_never_has_may_be_missing(void**) {
  json file = tokenizer_json(fixture("one-word"));
  json& vocab = file["model"]["vocab"];
  // 0xC0, 0xC1 and 0xF5 to 0xFF stand for themselves in the byte alphabet.
  std::vector<std::string> missing = {"\u00c0", "\u00c1"};
  for (unsigned c = 0xF5; c <= 0xFF; ++c)
    missing.push_back({static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))});
  int32_t spare = 0;
  for (const std::string& byte : missing)
    vocab[concat("unused-", ++spare)] = vocab.at(byte), vocab.erase(byte);
  const auto tokenizer = Tokenizer::create(read(file));
  assert_string_equal(tokenizer->decode(tokenizer->encode("\u00ff\U0010ffff", false, false), true).c_str(),
                      "\u00ff\U0010ffff");
  assert_error(WI_E_ARGUMENT, "value 255", tokenizer->encode("a\xff", false, false));
  vocab["other"] = vocab.at("A");
  vocab.erase("A");
  assert_error(WI_E_FORMAT, "lacks byte 65", Tokenizer::create(read(file)));
}

void ends_come_from_every_file(void**) {
  const json& file = fixture("config-decoder");
  json companions = file.at("companions");
  companions["generation_config"] = {{"eos_token_id", {5, 9}}};
  const Vocabulary words = read(tokenizer_json(file), companions, file.at("vocab"));
  const auto end = std::find(words.tokens.begin(), words.tokens.end(), "<|end|>") - words.tokens.begin();
  assert_true((words.end_of_generation == Ids{5, 9, static_cast<int32_t>(end)}));
  assert_int_equal(words.eos, end);
  // config.json's are those of before, if the other file has any.
  companions["config"] = {{"eos_token_id", 50}};
  assert_true(read(tokenizer_json(file), companions, file.at("vocab")).end_of_generation ==
              words.end_of_generation);
  companions["generation_config"] = {{"temperature", 0.6}};
  assert_true((read(tokenizer_json(file), companions, file.at("vocab")).end_of_generation ==
               Ids{50, static_cast<int32_t>(end)}) ||
              end < 50);
}

// What LlamaConfig begins with, which a config.json need not say.
void a_llama_that_names_no_end_has_its_class_s(void**) {
  const json& file = fixture("config-decoder");
  json companions = file.at("companions");
  companions["tokenizer_config"].erase("eos_token");
  const auto ends = [&](const json& config) {
    companions["config"] = config;
    return read(tokenizer_json(file), companions, file.at("vocab")).end_of_generation;
  };
  const auto is_end = [](const Ids& ids) { return std::count(ids.begin(), ids.end(), 2); };
  assert_int_equal(is_end(ends({{"model_type", "llama"}})), 1);
  assert_int_equal(is_end(ends({{"model_type", "mistral"}})), 1);
  assert_int_equal(is_end(ends({{"model_type", "qwen2"}})), 0);
  assert_int_equal(is_end(ends({{"model_type", "llama"}, {"eos_token_id", nullptr}})), 0);
  assert_int_equal(is_end(ends({{"model_type", "llama"}, {"eos_token_id", 5}})), 0);
}

// A <pad> for training, as Llama 2's folders have it: the model has no row for it.
void a_declared_token_beyond_the_embedding_is_left_out(void**) {
  const json& file = fixture("llama-2");
  const Vocabulary padded = read(tokenizer_json(file), file.at("companions"), file.at("vocab"));
  const auto vocab = static_cast<int32_t>(
      padded.kinds.size() -
      static_cast<size_t>(std::count(padded.kinds.begin(), padded.kinds.end(), TokenKind::unused)));
  const Vocabulary before = read(tokenizer_json(file), file.at("companions"), vocab);
  json companions = file.at("companions");
  companions["added_tokens"] = {{"<pad>", vocab}, {"<other>", vocab + 1}};
  const Vocabulary with = read(tokenizer_json(file), companions, vocab);
  assert_true(with.tokens == before.tokens && *with.added == *before.added);
}

void bos_is_what_the_template_puts_first(void**) {
  json file = tokenizer_json(fixture("llama-2"));
  const auto template_of = [](const json& single) {
    return json{{"type", "TemplateProcessing"},
                {"single", single},
                {"special_tokens",
                 {{"<s>", {{"id", "<s>"}, {"ids", {1}}}}, {"</s>", {{"id", "</s>"}, {"ids", {2}}}}}}};
  };
  const json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
             eos = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  file["post_processor"] = template_of({bos, text, eos});
  Vocabulary words = read(file);
  assert_true(words.add_bos && words.bos == 1);
  const auto tokenizer = Tokenizer::create(words);
  assert_int_equal(tokenizer->encode("a", true, false).front(), 1);
  assert_true(tokenizer->encode("a", true, false).back() != 2);
  file["post_processor"] = template_of({bos, bos, text});
  assert_error(WI_E_UNSUPPORTED, "several tokens first", read(file));
  file["post_processor"] = template_of({eos, text});
  assert_error(WI_E_UNSUPPORTED, "'</s>' first", read(file, {{"tokenizer_config", {{"bos_token", "<s>"}}}}));
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}};
  assert_true(read(file).add_bos);
}

// Every type and parameter that changes ids and is not implemented.
void what_is_not_implemented_is_refused_by_name(void**) {
  const auto expect = [](wi_status status, const char* words, const std::function<void(json&)>& change,
                         const char* name = "digits") {
    json file = tokenizer_json(fixture(name));
    change(file);
    assert_error(status, words, read(file));
  };
  for (const char* type :
       {"Lowercase", "Strip", "StripAccents", "Nmt", "Precompiled", "BertNormalizer", "ByteLevel", "Unknown"})
    expect(WI_E_UNSUPPORTED, concat("'", type, "'").c_str(), [&](json& j) {
      j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", type}}}}};
    });
  expect(WI_E_UNSUPPORTED, "no String", [](json& j) {
    j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}};
  });
  for (const char* type : {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit",
                           "Punctuation", "UnicodeScripts", "FixedLength"})
    expect(WI_E_UNSUPPORTED, concat("'", type, "'").c_str(), [&](json& j) {
      j["pre_tokenizer"] = {{"type", type}};
    });
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}},
             digits = {{"type", "Digits"}, {"individual_digits", true}},
             metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  const auto in_turn = [&](const json& first, const json& second) {
    return [=](json& j) { j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {first, second}}}; };
  };
  expect(WI_E_UNSUPPORTED, "add_prefix_space", in_turn(digits, bytes));
  expect(WI_E_UNSUPPORTED, "behind ByteLevel", in_turn(bytes, digits));
  expect(WI_E_UNSUPPORTED, "as the first only", in_turn(digits, metaspace));
  expect(WI_E_UNSUPPORTED, "'Sideways'", [](json& j) {
    j["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}, {"invert", false}};
  });
  expect(WI_E_UNSUPPORTED, "prepend_scheme", [&](json& j) {
    j["pre_tokenizer"] = metaspace;
    j["pre_tokenizer"]["prepend_scheme"] = "sometimes";
  });
  expect(WI_E_UNSUPPORTED, "dropout", [](json& j) { j["model"]["dropout"] = 0.1; });
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    expect(WI_E_UNSUPPORTED, key, [&](json& j) { j["model"][key] = "##"; });
  expect(WI_E_UNSUPPORTED, "'Unigram'", [](json& j) { j["model"]["type"] = "Unigram"; });
  expect(WI_E_UNSUPPORTED, "'Fancy'", [](json& j) { j["post_processor"] = {{"type", "Fancy"}}; });
  expect(WI_E_UNSUPPORTED, "'WordPiece'", [](json& j) { j["decoder"] = {{"type", "WordPiece"}}; });
  expect(WI_E_UNSUPPORTED, "would give it", [](json& j) {
    j["added_tokens"].push_back({{"id", 590}, {"content", "<|far|>"}, {"special", true}});
  });
}

// What chat templates call bos_token: of the folder, of its special_tokens_map.json, of the class's own.
void names_of_tokens_reach_templates_wherever_they_stand(void**) {
  const std::string file = tokenizer_json(fixture("llama-2")).dump();
  const auto named = [&](const json& config, const std::string& map) {
    const std::string text = config.dump();
    const VocabularyFile read =
        vocabulary_from_json({file, text, R"({"model_type": "llama"})", {}, {}, {}, map}, 600);
    return std::map<std::string, std::string>(read.special_texts.begin(), read.special_texts.end());
  };
  using Names = std::map<std::string, std::string>;
  assert_true((named({{"bos_token", "<unk>"}}, "") == Names{{"bos_token", "<unk>"}}));
  assert_true((named({{"bos_token", "<unk>"}}, R"({"bos_token": "<s>"})") == Names{{"bos_token", "<s>"}}));
  assert_true((named({{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", nullptr}, {"eos_token", "<s>"}},
                     "") == Names{{"unk_token", "<unk>"}, {"eos_token", "<s>"}}));
  assert_true(
      (named({{"bos_token", nullptr}, {"image_token", "<s>"}, {"extra_special_tokens", {{"end", "</s>"}}}},
             "") == Names{{"image_token", "<s>"}, {"end", "</s>"}}));
}

// A class of transformers that builds its own pipeline, over a file of which that would make something else.
void a_tokenizer_class_that_is_not_the_files_is_refused_by_name(void**) {
  const auto expect = [](const char* name, const char* class_name, const char* what,
                         const std::function<void(json&)>& change = {}, const json& more = json::object()) {
    json file = tokenizer_json(fixture(name));
    if (change) change(file);
    json config = {{"tokenizer_class", class_name}};
    config.update(more);
    const json companions = {{"tokenizer_config", config}, {"config", {{"model_type", "llama"}}}};
    assert_error(WI_E_UNSUPPORTED, "tokenizer_class", read(file, companions));
    assert_error(WI_E_UNSUPPORTED, what, read(file, companions));
    for (const char* other : {"PreTrainedTokenizerFast", "TokenizersBackend", "SomethingElse"}) {
      json kept = companions;
      kept["tokenizer_config"]["tokenizer_class"] = other;
      assert_true(read(file, kept).splits.has_value());
    }
    json mistral = companions;
    mistral["config"]["model_type"] = "mistral";
    assert_true(read(file, mistral).splits.has_value());
  };
  for (const char* class_name : {"Qwen2Tokenizer", "GPT2TokenizerFast"}) {
    expect("metaspace-first", class_name, "is no ByteLevel");
    expect("llama-2", class_name, "is no ByteLevel");
    expect("class-llama-byte-level", class_name, "cuts words otherwise");
  }
  // A folder of Qwen2's that does not ask for the class keeps what its file says.
  for (const char* class_name : {"LlamaTokenizerFast", "PreTrainedTokenizerFast"}) {
    const json companions = {{"tokenizer_config", {{"tokenizer_class", class_name}}},
                             {"config", {{"model_type", "qwen2"}}}};
    const Vocabulary kept = read(tokenizer_json(fixture("class-llama-byte-level")), companions);
    assert_true(kept.normalizer.empty() && kept.splits->at(0).pattern.find("{1,3}") != std::string::npos);
  }
  expect("nfd", "Qwen2Tokenizer", "is not NFC");
  expect("class-gpt2-prefix", "GPT2Tokenizer", "add_prefix_space");
  expect("class-gpt2", "GPT2Tokenizer", "normalizer", [](json& j) { j["normalizer"] = {{"type", "NFC"}}; });
  const auto nfd = [](json& j) { j["normalizer"] = {{"type", "NFD"}}; };
  expect("class-gpt-neox", "GPTNeoXTokenizerFast", "normalizer is not NFC", nfd);
  expect("class-gpt-neox", "GPTNeoXTokenizer", "add_prefix_space", {}, {{"add_prefix_space", true}});
  expect("class-gpt-neox", "CohereTokenizer", "cuts words otherwise");
  expect("class-cohere", "GPTNeoXTokenizer", "cuts words otherwise");
  expect("class-cohere", "CohereTokenizerFast", "normalizer is not NFC", nfd);
  expect("class-gpt-neox", "CodeGenTokenizer", "normalizer is there");
  expect("metaspace-first", "GemmaTokenizerFast", "normalizer does not");
  expect("llama-2", "GemmaTokenizer", "normalizer does not");
  expect("class-gemma", "GemmaTokenizer", "cuts words otherwise", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  });
  for (const char* class_name : {"RobertaTokenizerFast", "Qwen3_5Tokenizer", "WhisperTokenizer"})
    expect("class-gpt2", class_name, "which is not implemented; with PreTrainedTokenizerFast");
  expect("class-qwen2", "Qwen2Tokenizer", "ignore_merges",
         [](json& j) { j["model"]["ignore_merges"] = true; });
  expect("class-qwen2", "Qwen2Tokenizer", "add_prefix_space", {}, {{"add_prefix_space", true}});
  expect("nfc-metaspace", "LlamaTokenizer", "normalizer does more");
  expect("metaspace-underscore", "CodeLlamaTokenizerFast", "pre_tokenizer does more");
  expect("llama-2", "LlamaTokenizer", "cuts words otherwise", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  });
  expect("llama-2", "LlamaTokenizer", "lacks tokens of bytes", [](json& j) {
    json& vocab = j["model"]["vocab"];
    vocab["other"] = vocab.at("<0x41>");
    vocab.erase("<0x41>");
  });
}

// A conversation's text: whose its parts are, and as one.
struct Conversation {
  std::string text;
  std::vector<TextRange> host;

  Conversation& own(const std::string& part) {
    text += part;
    return *this;
  }
  Conversation& of_host(const std::string& part) {
    if (!part.empty()) host.push_back({text.size(), text.size() + part.size()});
    return own(part);
  }
};

// The fixture's tokenizer, whose special tokens are looked for in normalised text.
std::unique_ptr<const Tokenizer> open_normalized(const std::string& name, const json& normalizer = nullptr) {
  json file = tokenizer_json(fixture(name));
  if (!normalizer.is_null()) file["normalizer"] = normalizer;
  for (json& token : file["added_tokens"]) token["normalized"] = true;
  return Tokenizer::create(read(file));
}

int64_t controls(const Ids& ids) {
  return std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id == 1 || id == 2; });
}

// As transformers does it: of a folder of Mistral's with so many tokens, saved before it was mended there.
void words_of_a_mistral_are_mended_where_the_folder_asks_for_it(void**) {
  const auto ids = [](const json& file, const json& asked, const json& config) {
    const json companions = {{"config", config}, {"tokenizer_config", {{"fix_mistral_regex", asked}}}};
    return Tokenizer::create(read(file, companions, 101'000))->encode("helloWorld don't", false, false);
  };
  json file = tokenizer_json(fixture("class-llama-byte-level")), mended = file;
  for (json* one : {&file, &mended})
    for (int i = 1000; i <= 101'000 - 1; ++i) (*one)["model"]["vocab"]["none " + std::to_string(i)] = i;
  mended["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kTekkenPattern;
  mended["model"]["merges"].push_back("o W");
  file["model"]["merges"].push_back("o W");
  for (json* one : {&file, &mended}) (*one)["model"]["vocab"]["oW"] = 999;
  const json old = {{"model_type", "mistral"}, {"transformers_version", "4.57.3"}};
  const Ids as_stored = ids(file, false, old), wanted = ids(mended, false, old);
  assert_true(as_stored != wanted);
  const auto saved_by = [](const char* version) {
    return json{{"model_type", "mistral"}, {"transformers_version", version}};
  };
  for (const json& config :
       {old, json{{"model_type", "mistral"}}, saved_by("5.0.0.dev0"), saved_by("5.0.0rc1")})
    assert_true(ids(file, true, config) == wanted);
  for (const json& config :
       {saved_by("5.0.0"), saved_by("5.1.0.dev0"), saved_by("10.0.0"), json{{"model_type", "llama"}}})
    assert_true(ids(file, true, config) == as_stored);
  assert_true(ids(file, nullptr, old) == as_stored);
  json few = file;
  few["model"]["vocab"] = tokenizer_json(fixture("class-llama-byte-level"))["model"]["vocab"];
  few["model"]["vocab"]["oW"] = 999;
  assert_true(ids(few, true, old) == as_stored);
  file["pre_tokenizer"] = file["pre_tokenizer"]["pretokenizers"][1];
  assert_error(WI_E_UNSUPPORTED, "fix_mistral_regex", ids(file, true, old));
}

void control_tokens_of_a_template_pass_the_normalizer(void**) {
  const auto nfc = open_normalized("nfc");
  const auto hello = Conversation().own("<s>").of_host("e\u0301te\u0301 <s>").own("</s>");
  const Ids ids = nfc->encode_beside(hello.text, hello.host, {});
  assert_true(ids.front() == 1 && ids.back() == 2 && controls(ids) == 2);
  assert_string_equal(nfc->decode(ids, true).c_str(), "<s>\u00e9t\u00e9 <s></s>");

  const char* own[] = {"<s>", "</s>", "<s>", " <s>", "</s>\n", "user", "e", ">", " "};
  const char* host[] = {"a",      "the word", " ",      " x ",          "e\u0301",       "\u0301",
                        "\u0338", "\u2581",   "\u00e9", "\u1100\u1161", "a\u0323\u0307", "\xff",
                        "x",      "",         "\ufb01", "b\n",          "\u0307\u0323a", "> "};
  std::minstd_rand random(7);
  const auto any = [&](const auto& list) { return list[random() % std::size(list)]; };
  int64_t found = 0;
  for (const char* name :
       {"nfc", "nfd", "nfkc", "nfkd", "llama-2", "replace-only", "replace-then-prepend", "nfc-metaspace"}) {
    const auto tokenizer = open_normalized(name);
    for (int i = 0; i < 300; ++i) {
      Conversation made;
      for (int part = 0; part < 8; ++part) made.own(any(own)).of_host(any(host));
      const Ids whole = tokenizer->encode(made.text, false, true);
      if (tokenizer->encode_beside(made.text, made.host, {}) != whole)
        std::printf("%s: %s\n", name, json(made.text).dump().c_str());
      assert_true(tokenizer->encode_beside(made.text, made.host, {}) == whole);
      found += controls(whole);
    }
  }
  std::printf("%lld control tokens\n", static_cast<long long>(found));
  assert_true(found > 5000);
}

// Not by spelling one, by completing one, nor by what a normalizer makes of it.
void no_normalizer_makes_a_control_token_of_host_text(void**) {
  const json marks = {{"type", "Sequence"},
                      {"normalizers",
                       {{{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", "<s>"}},
                        {{"type", "Replace"}, {"pattern", {{"String", "[/s"}}}, {"content", "</s"}},
                        {{"type", "Replace"}, {"pattern", {{"String", "y>"}}}, {"content", "s>"}}}}};
  const auto expect_none = [](const Tokenizer& tokenizer, const std::vector<Conversation>& texts) {
    for (const Conversation& text : texts) {
      assert_true(controls(tokenizer.encode(text.text, false, true)) > 0);
      assert_int_equal(controls(tokenizer.encode_beside(text.text, text.host, {})), 0);
    }
  };
  expect_none(*open_normalized("nfc"),
              {Conversation().of_host("e\u0301<s>"), Conversation().own("e\u0301<").of_host("s").own(">"),
               Conversation().own("<s").of_host("> e\u0301</s>")});
  expect_none(*open_normalized("nfkc"),
              {Conversation().of_host("\uff1cs\uff1e"), Conversation().own("<").of_host("\uff53>")});
  expect_none(*open_normalized("llama-2"),
              {Conversation().of_host("<s> a</s>"), Conversation().own("a <").of_host("s>")});
  expect_none(*open_normalized("one-word", marks),
              {Conversation().of_host("x"), Conversation().of_host("[/s").own(">"),
               Conversation().own("[").of_host("/s>"), Conversation().own("<").of_host("y").own(">")});
}

// 40 steps that each double a text would make a terabyte of one byte.
void a_normalizer_may_not_make_a_text_grow_without_end(void**) {
  const json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json many = {{"type", "Sequence"}, {"normalizers", std::vector<json>(40, doubles)}};
  const auto tokenizer = open_normalized("one-word", many);
  for (const char* text : {"a", "xax", "<s>a</s>a"})
    assert_error(WI_E_UNSUPPORTED, "the file's normalizer makes a text of",
                 tokenizer->encode(text, false, true));
  assert_error(WI_E_UNSUPPORTED, "longer, which is more than is granted",
               tokenizer->encode_beside("<s>a", std::vector<TextRange>{{3, 4}}, {}));
  assert_int_equal(tokenizer->encode("b", false, true).size(), 1);
  // What real files do is far from that.
  const auto llama2 = open(fixture("llama-2"));
  assert_true(llama2->encode(std::string(1'000'000, ' '), false, true).size() > 100'000);
}

void a_long_text_is_given_up_when_cancelled(void**) {
  const std::atomic<bool> cancelled{true};
  for (const char* name : {"nfc", "llama-2", "metaspace-first", "flags-char-normalizer", "one-word"})
    assert_error(WI_E_CANCELLED, "cancelled",
                 open(fixture(name))->encode("Hello world", true, true, &cancelled));
}

// Normal forms, marks for spaces, characters: whatever stage the text is in.
void a_long_text_is_given_up_within_100_ms(void**) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  constexpr size_t kBytes = 1'000'000;
#else
  constexpr size_t kBytes = 10'000'000;
#endif
  int given_up = 0;
  double worst = 0;
  for (const char* name : {"nfc", "llama-2", "metaspace-first", "flags-char-normalizer", "one-word"}) {
    const auto tokenizer = open(fixture(name));
    for (const char* unit : {"the LORD said ", "a", " ", "e\u0301"}) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      for (const int after : {2, 30, 150}) {
        const double took = test::milliseconds_to_cancel(
            [&](const std::atomic<bool>* flag) { tokenizer->encode(text, true, true, flag); },
            std::chrono::milliseconds(after));
        given_up += took >= 0;
        worst = std::max(worst, took);
      }
    }
  }
  std::printf("%d texts given up, within %.1f ms\n", given_up, worst);
  assert_in_time(worst < test::kCancelMs);
  assert_true(given_up > 10);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_construct_gives_the_reference_ids),
      cmocka_unit_test(decoding_takes_away_what_encoding_added),
      cmocka_unit_test(bytes_that_utf8_never_has_may_be_missing),
      cmocka_unit_test(ends_come_from_every_file),
      cmocka_unit_test(a_llama_that_names_no_end_has_its_class_s),
      cmocka_unit_test(a_declared_token_beyond_the_embedding_is_left_out),
      cmocka_unit_test(bos_is_what_the_template_puts_first),
      cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
      cmocka_unit_test(names_of_tokens_reach_templates_wherever_they_stand),
      cmocka_unit_test(a_tokenizer_class_that_is_not_the_files_is_refused_by_name),
      cmocka_unit_test(words_of_a_mistral_are_mended_where_the_folder_asks_for_it),
      cmocka_unit_test(control_tokens_of_a_template_pass_the_normalizer),
      cmocka_unit_test(no_normalizer_makes_a_control_token_of_host_text),
      cmocka_unit_test(a_normalizer_may_not_make_a_text_grow_without_end),
      cmocka_unit_test(a_long_text_is_given_up_when_cancelled),
      cmocka_unit_test(a_long_text_is_given_up_within_100_ms),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
