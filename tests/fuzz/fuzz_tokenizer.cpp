// Any bytes through every pre-tokenizer and SentencePiece: ids are in range and decode back to the same
// bytes. The first byte picks the tokenizer and whether special tokens are parsed.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/vocabularies.h"

namespace {

const wi::Tokenizer& tokenizer(size_t which) {
  static const std::vector<std::unique_ptr<const wi::Tokenizer>> all = [] {
    std::vector<std::unique_ptr<const wi::Tokenizer>> made;
    for (const char* name :
         {"llama-bpe", "qwen2", "gpt-2", "smollm", "gpt-4o", "deepseek-v3", "deepseek-llm", "deepseek-coder"})
      made.push_back(wi::Tokenizer::create(wi::fuzz::byte_bpe(name)));
    made.push_back(wi::Tokenizer::create(wi::fuzz::sentencepiece()));
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
  const bool spells_space = chosen.vocabulary().model == wi::Vocabulary::Model::sentencepiece &&
                            text.find("\u2581") != std::string::npos;
  if (chosen.decode(ids, true) != text && !spells_space) std::abort();
  chosen.decode(ids, false);
  return 0;
}
