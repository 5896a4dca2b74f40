// Small vocabularies for the fuzzers of tokenizers: bytes, some merges and some tokens that are cut out of the text.
#pragma once

#include <string>
#include <utility>

#include "src/tokenizer/tokenizer.h"

namespace wi::fuzz {

inline void add(Vocabulary& vocabulary, const std::string& text, TokenKind kind, float score = 0) {
  vocabulary.tokens.push_back(text);
  vocabulary.kinds.push_back(kind);
  if (vocabulary.model == Vocabulary::Model::sentencepiece) vocabulary.scores.push_back(score);
}

inline void add_specials(Vocabulary& vocabulary) {
  for (const char* text : {"<s>", "<|end|>", "<|end|>>"}) add(vocabulary, text, TokenKind::control);
  add(vocabulary, "<think>", TokenKind::user_defined);
}

inline Vocabulary byte_bpe(const char* name) {
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

inline Vocabulary sentencepiece() {
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

}  // namespace wi::fuzz
