// What the readers of a Hugging Face directory's tokenizer share: vocabulary_json.cpp the model with its
// tokens and merges, tokenizer_steps_json.cpp what is done to text before and around it,
// special_tokens_json.cpp the tokens that are cut out of the text,
// tokenizer_class_json.cpp what the folder's tokenizer_class changes.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/files/json_file.h"
#include "src/text_hash.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {

// Never destroyed: exit() may come while another thread opens a model.
inline const std::string& kTokenizerFile = *new std::string("tokenizer.json");

// The words of ByteLevel's own pattern.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Token ids by text. Tokens of the file's model come first, then those added to it.
using TokenIds = std::unordered_map<std::string, int32_t, TextHash>;

// A normalizer, pre-tokenizer or the like as the list of its steps: a Sequence's members, or itself, or none.
std::vector<const Json*> tokenizer_steps(const Json& root, const char* key, const char* members);

// Fills normalizer, rewrites, splits and the model's kind; refuses by name whatever is none of these.
void read_tokenizer_steps(const Json& root, Vocabulary* vocabulary);

// What a tokenizer_class does whatever the file says.
struct BuiltByClass {
  bool rebuilt = false;           // from the tokens alone
  bool byte_fallback = false;     // characters that are no tokens become bytes
  std::optional<bool> bos_first;  // the post-processor is its own
  bool plain_names = false;       // tokens with names have no flags
  Json names = Json::object();    // bos_token and the like, of its own
};

// Behind read_tokenizer_steps: what tokenizer_class makes of the steps, where it says more than the file.
// model is the file's.
BuiltByClass apply_tokenizer_class(const TokenizerTexts& texts, const Json& root, const JsonFields& model,
                                   Vocabulary* vocabulary);

// words: tokenizer_config.json. Tokenizers of Mistral's with this many tokens were saved with another's pattern of words;
// where the folder asks for that (fix_mistral_regex) and was saved before transformers 5, theirs takes its place.
void mend_mistral_words(const TokenizerTexts& texts, const Json& words, const Json& root, size_t tokens,
                        Vocabulary* vocabulary);

// What names tokens, as one object: tokenizer_config.json with what special_tokens_map.json says in its place, if that
// is read at all, over the class's own names.
JsonTree tokenizer_words(const TokenizerTexts& texts, const BuiltByClass& built);

// The token that the post-processor puts first; -1: none. Refuses one that puts several there.
int32_t post_processor_first(const Json& root, const TokenIds& ids);

// Places the added tokens of all files, and reads which of the tokens begin a text and end an answer. vocab
// is config.json's vocab_size; tokens beyond it do not exist.
void read_special_tokens(const TokenizerTexts& texts, const Json& root, int32_t vocab,
                         const BuiltByClass& built, TokenIds* ids, Vocabulary* vocabulary);

// Gives a token its id; throws WI_E_FORMAT if either is taken.
void place_token(const std::string& where, const std::string& text, int64_t id, TokenKind kind, TokenIds* ids,
                 Vocabulary* vocabulary);

JsonTree parse_or_empty(std::string_view text, const std::string& file, Watch* watch);

}  // namespace wi
