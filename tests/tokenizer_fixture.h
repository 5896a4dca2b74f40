// Vocabularies and expected ids from tests/fixtures/tokenizers, as make_tokenizers.py writes them.
#pragma once

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/tokenizer/tokenizer.h"

namespace wi::test {

struct TokenizerCase {
  std::string text;
  std::vector<int32_t> ids, plain_ids;  // special tokens parsed, and not
};

struct TokenizerFixture {
  Vocabulary vocabulary;
  std::vector<TokenizerCase> cases;
};

// A file's own patterns, which stand in the fixtures with NUL between them.
inline std::vector<SplitStep> splits(const std::string& patterns) {
  std::vector<SplitStep> steps;
  for (size_t begin = 0; begin <= patterns.size();) {
    const size_t end = std::min(patterns.find('\0', begin), patterns.size());
    steps.push_back({patterns.substr(begin, end - begin), SplitStep::Behavior::isolated, false});
    begin = end + 1;
  }
  return steps;
}

// with_pattern: the file's own patterns, as from tokenizer.json; else the GGUF name.
inline TokenizerFixture read_tokenizer(const std::string& name, bool with_pattern = false) {
  std::ifstream file(std::string(WI_TEST_DATA "/fixtures/tokenizers/") + name + ".json");
  const nlohmann::json json = nlohmann::json::parse(file);
  TokenizerFixture fixture;
  Vocabulary& vocabulary = fixture.vocabulary;
  const bool bytes = json.at("model") == "byte_bpe";
  vocabulary.model = bytes ? Vocabulary::Model::byte_bpe : Vocabulary::Model::sentencepiece;
  vocabulary.tokens = json.at("tokens").get<std::vector<std::string>>();
  for (int32_t kind : json.at("kinds")) vocabulary.kinds.push_back(static_cast<TokenKind>(kind));
  vocabulary.bos = json.at("bos");
  vocabulary.eos = json.at("eos");
  vocabulary.unknown = json.at("unknown");
  if (bytes) {
    vocabulary.pre_tokenizer = json.at("pre_tokenizer");
    if (with_pattern) vocabulary.splits = splits(json.at("pattern"));
    vocabulary.merges = json.at("merges").get<std::vector<std::string>>();
    vocabulary.ignore_merges = json.at("ignore_merges");
  } else {
    vocabulary.scores = json.at("scores").get<std::vector<float>>();
    vocabulary.add_space_prefix = vocabulary.space_after_special = json.at("add_space_prefix");
  }
  for (const auto& one : json.at("cases")) {
    const auto ids = one.at("ids").get<std::vector<int32_t>>();
    fixture.cases.push_back(
        {one.at("text"), ids,
         one.contains("plain_ids") ? one.at("plain_ids").get<std::vector<int32_t>>() : ids});
  }
  return fixture;
}

constexpr const char* kByteTokenizers[] = {"llama-bpe",      "qwen2",  "gpt-2",       "smollm",
                                           "gpt-4o",         "tekken", "deepseek-v3", "deepseek-llm",
                                           "deepseek-coder", "sample"};

// The smallest byte-level vocabulary: 256 bytes, so that a token shows where no merge was made.
inline Vocabulary byte_vocabulary(const std::string& pre_tokenizer) {
  Vocabulary vocabulary;
  vocabulary.pre_tokenizer = pre_tokenizer;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const unsigned c = printable ? byte : next++;
    vocabulary.tokens.push_back(
        c < 0x80 ? std::string(1, static_cast<char>(c))
                 : std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))});
  }
  vocabulary.kinds.assign(vocabulary.tokens.size(), TokenKind::normal);
  return vocabulary;
}

inline void add_merge(Vocabulary& vocabulary, const std::string& left, const std::string& right) {
  vocabulary.merges.push_back(left + ' ' + right);
  vocabulary.tokens.push_back(left + right);
  vocabulary.kinds.push_back(TokenKind::normal);
}

inline int32_t add_special(Vocabulary& vocabulary, const std::string& text,
                           TokenKind kind = TokenKind::control) {
  vocabulary.tokens.push_back(text);
  vocabulary.kinds.push_back(kind);
  return static_cast<int32_t>(vocabulary.tokens.size() - 1);
}

}  // namespace wi::test
