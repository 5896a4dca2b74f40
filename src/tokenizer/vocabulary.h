// Reduces the tokenizer data of both file formats to the one Vocabulary that tokenizers are built from.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/files/watch.h"
#include "src/tokenizer/tokenizer.h"

namespace wi {

class Gguf;

namespace limits {
inline constexpr int64_t kVocab = 1 << 22;  // far above any model
}

struct VocabularyFile {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> chat_templates;  // name ("default", "tool_use"), Jinja
  // What templates call bos_token and so on, with the tokens' texts.
  std::vector<std::pair<std::string, std::string>> special_texts;
};

VocabularyFile vocabulary_from_gguf(const Gguf& gguf, Watch* watch = nullptr);

// The texts of a model directory; all but tokenizer.json may be empty. vocab is config.json's vocab_size:
// ids that the tokenizer leaves unused up to it become unused tokens.
struct TokenizerTexts {
  std::string_view tokenizer = {}, tokenizer_config = {}, config = {}, generation_config = {},
                   chat_template = {}, added_tokens = {}, special_tokens_map = {},
                   tool_template = {};  // additional_chat_templates/tool_use.jinja
  Watch* watch = nullptr;               // ticked while they are read
};
VocabularyFile vocabulary_from_json(const TokenizerTexts& texts, int32_t vocab);

// What both readers do at the end: tokens that end an answer by their name (<|im_end|>, <|eot_id|>, …) join
// those that the files list; the list is sorted and without repeats.
void add_known_ends(Vocabulary* vocabulary, Watch* watch);

}  // namespace wi
