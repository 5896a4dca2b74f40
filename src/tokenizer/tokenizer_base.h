// What all kinds of tokenizer share: the vocabulary with its text → id table, special tokens cut out of the
// text before the model sees the rest, normalisation, and the bytes of every token for decoding.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/special_tokens.h"
#include "src/tokenizer/text_table.h"
#include "src/tokenizer/tokenizer.h"

namespace wi {

class TokenizerBase : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool add_bos, bool parse_special,
                              const std::atomic<bool>* cancel,
                              const std::function<void()>* pause) const final;
  std::vector<int32_t> encode_beside(std::string_view text, std::span<const TextRange> plain,
                                     std::string_view literals) const final;
  std::string_view piece(int32_t token, bool keep_special) const final;
  std::string decode(std::span<const int32_t> tokens, bool keep_special) const final;
  const Vocabulary& vocabulary() const final { return vocabulary_; }
  int32_t find(std::string_view token) const final;

 protected:
  TokenizerBase(Vocabulary vocabulary, Watch* watch);  // already validated

  // Plain text between two special tokens, or between one and an end of the text; rewritten as the file asks.
  // It stays where it is until the call of encode() ends.
  class Encoder {
   public:
    virtual ~Encoder() = default;
    virtual void append(std::string_view text, std::vector<int32_t>& ids) = 0;
  };
  // Tokens that nothing is joined to, ascending: a template's marks and control tokens, which parts of a host's text may
  // spell.
  using Withheld = std::span<const int32_t>;
  static bool holds(Withheld tokens, int32_t token) {
    return !tokens.empty() && std::binary_search(tokens.begin(), tokens.end(), token);
  }
  // State for one call of encode(), whose text has so many bytes.
  virtual std::unique_ptr<Encoder> make_encoder(size_t text_bytes, Withheld withheld, Poll& poll) const = 0;

  // Control, unknown and unused tokens: shown only if asked for.
  bool is_special(int32_t token) const;
  // Tokens that are found in text as a whole, before the model sees what is around them.
  bool splits_text(int32_t token) const;
  // Whether a byte has its place in UTF-8: a vocabulary may lack the others.
  static bool occurs_in_utf8(unsigned byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }
  // The unknown token for a byte that has none of its own; throws if there is no such token.
  int32_t unknown_for(unsigned char byte) const;
  // Called by the constructor of the model for every token, in order.
  void add_piece(std::string_view bytes);
  // Likewise, once: control tokens that text would be joined to, ascending.
  void withhold(std::vector<int32_t> specials) { joined_specials_ = std::move(specials); }

 private:
  std::vector<int32_t> encode_parts(std::string_view text, bool add_bos, const ControlTokens& control,
                                    Poll poll) const;
  size_t checked(int32_t token) const;

  Vocabulary vocabulary_;
  TextTable<int32_t> ids_;  // views into vocabulary_.tokens
  Normalizer normalizer_, rewrites_;
  SpecialTokens specials_, normalized_specials_;
  TemplateMarks marks_;
  std::vector<int32_t> joined_specials_;
  std::string piece_bytes_;
  std::vector<size_t> piece_offsets_{0};  // (tokens + 1)
};

}  // namespace wi
