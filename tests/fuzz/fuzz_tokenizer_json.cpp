// Any texts as the tokenizer files of a model directory: tokenizer.json, tokenizer_config.json, config.json,
// generation_config.json, chat_template.jinja, added_tokens.json and special_tokens_map.json, with a NUL
// between them. Only wi::Error may come out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/error.h"
#include "src/tokenizer/vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wi;
  std::string_view rest(reinterpret_cast<const char*>(data), size), texts[7];
  for (std::string_view& text : texts) {
    text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
  }
  try {
    const VocabularyFile file =
        vocabulary_from_json({texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6]}, 300);
    const auto tokenizer = Tokenizer::create(file.vocabulary);
    (void)tokenizer->decode(tokenizer->encode("Hello, wörld <|end|> e\u0301 x\xff", true, true), true);
  } catch (const Error&) {
  }
  return 0;
}
