// Text to token ids and back, from the arrays a model file carries: byte-level BPE (gpt-2, llama-3, qwen2,
// deepseek-r1-distill pre-tokenizers, PCRE2) and SentencePiece-style BPE (llama-2). Immutable and
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wi {

enum class TokenKind : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};  // GGUF's numbers

// What both file formats are reduced to.
struct Vocabulary {
  enum class Model { byte_bpe, sentencepiece } model = Model::byte_bpe;
  std::string pre_tokenizer;  // "llama-bpe", "qwen2", "gpt-2", "deepseek-r1-qwen", "deepseek-llm", …;
                              // unknown: refused
  std::string
      pattern;  // or the file's own (tokenizer.json), NUL between those applied in turn; wins over the name
  std::vector<std::string> tokens;  // byte-level BPE: in the GPT-2 byte alphabet, as in the files
  std::vector<float> scores;        // sentencepiece
  std::vector<TokenKind> kinds;     // (tokens)
  std::vector<std::string> merges;  // byte-level BPE: "left right", best first
  int32_t bos = -1, eos = -1, unknown = -1;
  std::vector<int32_t> end_of_generation;  // every token that ends an answer (eos, <|im_end|>, <|eot_id|>, …)
  bool add_bos = false;
  bool add_space_prefix = true;  // sentencepiece
  bool ignore_merges = false;    // llama-3: a whole word in the vocabulary is one token
};

class Tokenizer {
 public:
  static std::unique_ptr<const Tokenizer> create(Vocabulary vocabulary);  // throws FORMAT or UNSUPPORTED
  virtual ~Tokenizer() = default;

  // add_bos: put BOS first if the file asks for one (Vocabulary::add_bos). parse_special: text like <|end|>
  // becomes the control token; otherwise it is plain text. Any bytes are accepted: those that are not UTF-8
  // are encoded one by one, and decode(encode(x)) == x.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_bos, bool parse_special) const = 0;
  // The bytes of one token; control tokens are empty unless keep_special. Not necessarily whole UTF-8.
  virtual std::string_view piece(int32_t token, bool keep_special) const = 0;
  // Whole sequence (SentencePiece drops the first space it added itself).
  virtual std::string decode(std::span<const int32_t> tokens, bool keep_special) const = 0;

  virtual const Vocabulary& vocabulary() const = 0;
  bool ends_generation(int32_t token) const;
  virtual int32_t find(std::string_view token) const = 0;  // id or -1; by the text in the file
};

}  // namespace wi
