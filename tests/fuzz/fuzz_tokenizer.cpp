// Any bytes through every pre-tokenizer and SentencePiece: ids are in range and decode back to the same
// bytes. The first byte picks the tokenizer and whether special tokens are parsed.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "src/tokenizer/tokenizer.h"

namespace {

using wi::TokenKind;
using wi::Vocabulary;

void add(Vocabulary& vocabulary, const std::string& text, TokenKind kind, float score = 0) {
  vocabulary.tokens.push_back(text);
  vocabulary.kinds.push_back(kind);
  if (vocabulary.model == Vocabulary::Model::sentencepiece) vocabulary.scores.push_back(score);
}

void add_specials(Vocabulary& vocabulary) {
  for (const char* text : {"<s>", "<|end|>", "<|end|>>"}) add(vocabulary, text, TokenKind::control);
  add(vocabulary, "<think>", TokenKind::user_defined);
}

Vocabulary byte_bpe(const char* name) {
  Vocabulary vocabulary;
  vocabulary.pre_tokenizer = name;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const unsigned c = printable ? byte : next++;
    add(vocabulary,
        c < 0x80 ? std::string(1, static_cast<char>(c))
                 : std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))},
        TokenKind::normal);
  }
  for (auto [left, right] : {std::pair{"a", "a"},
                             {"aa", "aa"},
                             {"Ġ", "Ġ"},
                             {"Ġ", "a"},
                             {"t", "h"},
                             {"th", "e"},
                             {"h", "e"},
                             {"ÿ", "ÿ"},
                             {"Ã", "©"}}) {
    vocabulary.merges.push_back(std::string(left) + ' ' + right);
    add(vocabulary, std::string(left) + right, TokenKind::normal);
  }
  add_specials(vocabulary);
  return vocabulary;
}

Vocabulary sentencepiece() {
  Vocabulary vocabulary;
  vocabulary.model = Vocabulary::Model::sentencepiece;
  vocabulary.add_space_prefix = vocabulary.space_after_special = true;
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte)
    add(vocabulary, std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + '>', TokenKind::byte);
  float score = 0;
  for (const char* text :
       {"aa", "aaaa", "\u2581\u2581", "\u2581a", "th", "the", "\u2581", "a", "t", "h", "e", "\u00e9"})
    add(vocabulary, text, TokenKind::normal, --score);
  add_specials(vocabulary);
  return vocabulary;
}

const wi::Tokenizer& tokenizer(size_t which) {
  static const std::vector<std::unique_ptr<const wi::Tokenizer>> all = [] {
    std::vector<std::unique_ptr<const wi::Tokenizer>> made;
    for (const char* name :
         {"llama-bpe", "qwen2", "gpt-2", "smollm", "gpt-4o", "deepseek-v3", "deepseek-llm", "deepseek-coder"})
      made.push_back(wi::Tokenizer::create(byte_bpe(name)));
    made.push_back(wi::Tokenizer::create(sentencepiece()));
    return made;
  }();
  return *all[which % all.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const wi::Tokenizer& chosen = tokenizer(data[0] & 0x7F);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::vector<int32_t> ids = chosen.encode(text, false, data[0] & 0x80);
  const bool spells_space = chosen.vocabulary().model == Vocabulary::Model::sentencepiece &&
                            text.find("\u2581") != std::string::npos;
  if (chosen.decode(ids, true) != text && !spells_space) std::abort();
  chosen.decode(ids, false);
  return 0;
}
