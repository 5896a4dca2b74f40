// Text to token ids and back, from the arrays a model file carries: byte-level BPE (gpt-2, llama-3, qwen2,
// deepseek-r1-distill pre-tokenizers, PCRE2), BPE over characters (llama-2 as tokenizer.json writes it) and
// SentencePiece's own BPE (llama-2 in GGUF). Immutable and thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/text_range.h"
#include "src/tokenizer/normalizer.h"
#include "src/tokenizer/pre_tokenizer.h"

namespace wi {

class Watch;

enum class TokenKind : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};  // GGUF's numbers

// A token that is cut out of the text before the model sees what is around it.
struct AddedToken {
  int32_t token = -1;
  bool special = false;                 // only where the caller parses special tokens
  bool normalized = false;              // looked for in normalised text
  bool lstrip = false, rstrip = false;  // takes the white space beside it along
  bool single_word = false;             // not inside a word
  bool operator==(const AddedToken&) const = default;
};

// What both file formats are reduced to.
struct Vocabulary {
  enum class Model {
    byte_bpe,      // bytes are joined by the list of merges
    char_bpe,      // characters are; those that are no token fall back to byte tokens, or are unknown
    sentencepiece  // neighbours are joined to the token of the best score
  } model = Model::byte_bpe;
  std::string pre_tokenizer;  // "llama-bpe", "qwen2", "gpt-2", "deepseek-r1-qwen", "deepseek-llm", …;
                              // unknown: refused
  std::optional<std::vector<SplitStep>> splits;  // or the file's own (tokenizer.json); wins over the name
  std::vector<RewriteStep> normalizer;           // before tokens of normalised text are looked for
  std::vector<RewriteStep> rewrites;             // after that, on what lies between them
  std::vector<std::string> tokens;  // byte-level BPE: in the GPT-2 byte alphabet, as in the files
  std::vector<float> scores;        // sentencepiece
  std::vector<TokenKind> kinds;     // (tokens)
  std::vector<std::string> merges;  // both kinds of BPE: "left right", best first
  // Nothing: added_by_kind().
  std::optional<std::vector<AddedToken>> added;
  int32_t bos = -1, eos = -1, unknown = -1;
  std::vector<int32_t> end_of_generation;  // every token that ends an answer (eos, <|im_end|>, <|eot_id|>, …)
  bool add_bos = false;
  // The first space of a text is the tokenizer's own, and decoding takes it away (sentencepiece also puts it
  // there, the others have it among their rewrites). Likewise the first one after a special token.
  bool add_space_prefix = false, space_after_special = false;
  std::string space_mark = "\u2581";  // char_bpe: a space's place in tokens; empty: a space stands for itself
  bool ignore_merges = false;         // llama-3: a whole word in the vocabulary is one token
  bool fuse_unknown = false;          // char_bpe: unknown characters in a row are one token
};

// Every control, unknown and user-defined token, without flags.
std::vector<AddedToken> added_by_kind(const Vocabulary& vocabulary);

class Tokenizer {
 public:
  // Throws FORMAT or UNSUPPORTED, and what the watch does, which is ticked meanwhile.
  static std::unique_ptr<const Tokenizer> create(Vocabulary vocabulary, Watch* watch = nullptr);
  virtual ~Tokenizer() = default;

  // add_bos: put BOS first if the file asks for one (Vocabulary::add_bos). parse_special: text like <|end|>
  // becomes the control token; otherwise it is plain text. Any bytes are accepted: those that are not UTF-8
  // are encoded one by one. decode(encode(x)) == x, but where the file's tokenizer itself loses something:
  // it normalises, strips white space beside a token, has unknown tokens, or takes a leading space for its
  // own. A cancel flag that is set ends the call with WI_E_CANCELLED; pause, if there is one, is called every
  // few thousand bytes and may encode other texts meanwhile. Throws WI_E_ARGUMENT for a byte that
  // the vocabulary has no token for, WI_E_UNSUPPORTED where the file's pattern takes more steps on the text
  // than are granted.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_bos, bool parse_special,
                                      const std::atomic<bool>* cancel = nullptr,
                                      const std::function<void()>* pause = nullptr) const = 0;
  // Special tokens are parsed, but none that touches a byte of the plain ranges (ascending, apart), nor any other
  // added token that a template with these texts, a NUL around each, writes as a mark (TemplateMarks).
  virtual std::vector<int32_t> encode_beside(std::string_view text, std::span<const TextRange> plain,
                                             std::string_view literals) const = 0;
  // The bytes of one token; control tokens are empty unless keep_special. Not necessarily whole UTF-8.
  virtual std::string_view piece(int32_t token, bool keep_special) const = 0;
  // Whole sequence (SentencePiece drops the first space it added itself).
  virtual std::string decode(std::span<const int32_t> tokens, bool keep_special) const = 0;

  virtual const Vocabulary& vocabulary() const = 0;
  bool ends_generation(int32_t token) const;
  virtual int32_t find(std::string_view token) const = 0;  // id or -1; by the text in the file
};

}  // namespace wi
