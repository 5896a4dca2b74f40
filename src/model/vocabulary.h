// Reduces the tokenizer data of both file formats to the one Vocabulary that tokenizers are built from.
#pragma once

#include <string>
#include <string_view>

#include "src/model/tokenizer.h"

namespace wi {

class Gguf;

struct VocabularyFile {
  Vocabulary vocabulary;
  std::string chat_template;  // Jinja; empty if the file has none
};

VocabularyFile vocabulary_from_gguf(const Gguf& gguf);

// The texts of a model directory; all but tokenizer.json may be empty. vocab is config.json's vocab_size:
// ids that the tokenizer leaves unused up to it become unused tokens.
struct TokenizerTexts {
  std::string_view tokenizer, tokenizer_config, config, generation_config, chat_template;
};
VocabularyFile vocabulary_from_json(const TokenizerTexts& texts, int32_t vocab);

// What both readers do at the end: tokens that end an answer by their name (<|im_end|>, <|eot_id|>, …) join
// those that the files list; the list is sorted and without repeats.
void add_known_ends(Vocabulary* vocabulary);

}  // namespace wi
