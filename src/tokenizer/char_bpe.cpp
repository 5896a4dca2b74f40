#include "src/tokenizer/char_bpe.h"

#include <algorithm>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/tokenizer/bpe.h"
#include "src/utf8.h"

namespace wi {
namespace {

// The text with a space for each mark.
std::string with_spaces(std::string_view text, std::string_view mark) {
  std::string spaced;
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find(mark, at), text.size());
    spaced += text.substr(at, next - at);
    if (next < text.size()) spaced += ' ';
    at = next + mark.size();
  }
  return spaced;
}

class CharBpe final : public Bpe {
 public:
  CharBpe(Vocabulary vocabulary, Watch* watch);

 private:
  class CharEncoder;
  std::unique_ptr<Encoder> make_encoder(size_t text_bytes, Withheld withheld, Poll& poll) const override;
  void read_tokens(Watch* watch);
  void check_fallback() const;
  bool spaces_begin_words(Watch* watch) const;

  bool cuts_;  // no merge joins a space to what stands before it, so text may be cut there
};

// One call's state. Words of the pre-tokenizer are cut further where no merge can reach across; mostly that
// is before every run of spaces, so the cache sees words of the language.
class CharBpe::CharEncoder final : public WordEncoder {
 public:
  CharEncoder(const CharBpe& owner, size_t text_bytes, Withheld withheld, Poll& poll)
      : WordEncoder(owner, text_bytes, withheld, poll), owner_(owner) {}

 private:
  void append_word(std::string_view word, std::vector<int32_t>& ids) override {
    for (size_t at = 0; at < word.size();) {
      const size_t end = owner_.cuts_ ? word_end(word, at) : word.size();
      poll_(end - at);
      append_cached(word.substr(at, end - at), ids);
      at = end;
    }
  }

  size_t word_end(std::string_view text, size_t begin) const {
    const std::string& mark = owner_.vocabulary().space_mark;
    size_t at = begin;
    while (text.substr(at, mark.size()) == mark) at += mark.size();
    return std::min(text.find(mark, at), text.size());
  }

  // An unknown character is put down only when the next that is a token comes, or the next unknown one, or
  // the end: byte tokens overtake it. That is how tokenizers does it.
  void read_symbols(std::string_view word, LongList<int32_t>& symbols) override {
    const Vocabulary& vocabulary = owner_.vocabulary();
    symbols.reserve(word.size());
    bool unknown = false;
    for (size_t at = 0; at < word.size();) {
      const std::string_view character = word.substr(at, std::max<size_t>(utf8_length(word, at), 1));
      at += character.size();
      poll_(1);
      if (const int32_t* found = owner_.words_.find(character); found && !is_withheld(*found)) {
        if (unknown) symbols.push_back(vocabulary.unknown);
        unknown = false;
        symbols.push_back(*found);
      } else if (!read_bytes(character, symbols)) {
        if (unknown && !vocabulary.fuse_unknown) symbols.push_back(vocabulary.unknown);
        unknown = true;
      }
    }
    if (unknown) symbols.push_back(vocabulary.unknown);
  }

  bool read_bytes(std::string_view character, LongList<int32_t>& symbols) const {
    const auto token = [&](char c) { return owner_.byte_tokens_[static_cast<unsigned char>(c)]; };
    if (std::any_of(character.begin(), character.end(), [&](char c) { return token(c) < 0; })) return false;
    for (char c : character) symbols.push_back(token(c));
    return true;
  }

  const CharBpe& owner_;
};

CharBpe::CharBpe(Vocabulary moved, Watch* watch) : Bpe(std::move(moved), watch) {
  pre_tokenizer_ = PreTokenizer::from_steps(vocabulary().splits.value_or(std::vector<SplitStep>()));
  whole_words_ = vocabulary().ignore_merges;
  read_tokens(watch);
  merges_ = read_merges(*this, watch);
  withhold(merges_.specials);
  check_fallback();
  cuts_ = !vocabulary().ignore_merges && spaces_begin_words(watch);
}

std::unique_ptr<TokenizerBase::Encoder> CharBpe::make_encoder(size_t text_bytes, Withheld withheld,
                                                              Poll& poll) const {
  return std::make_unique<CharEncoder>(*this, text_bytes, withheld, poll);
}

void CharBpe::read_tokens(Watch* watch) {
  byte_tokens_.fill(-1);
  words_.reserve(vocabulary().tokens.size());
  for (size_t i = 0; i < vocabulary().tokens.size(); ++i) {
    tick(watch, i);
    const std::string& text = vocabulary().tokens[i];
    const TokenKind kind = vocabulary().kinds[i];
    if (kind == TokenKind::byte) {
      const int byte = byte_of(text);
      check(byte >= 0, WI_E_FORMAT, "tokens[", i, "] is a byte token, but \"", text, "\" is not <0xNN>");
      byte_tokens_[static_cast<size_t>(byte)] = static_cast<int32_t>(i);
      add_piece(std::string(1, static_cast<char>(byte)));
      continue;
    }
    if (kind == TokenKind::normal || kind == TokenKind::user_defined)
      words_.insert(text, static_cast<int32_t>(i));
    const std::string& mark = vocabulary().space_mark;
    add_piece(kind == TokenKind::normal && !mark.empty() ? with_spaces(text, mark) : text);
  }
}

void CharBpe::check_fallback() const {
  if (vocabulary().unknown >= 0) return;
  for (unsigned byte = 0; byte < 256; ++byte)
    check(byte_tokens_[byte] >= 0 || !occurs_in_utf8(byte), WI_E_FORMAT, "tokens lacks byte ", byte,
          ", and there is no unknown token");
}

bool CharBpe::spaces_begin_words(Watch* watch) const {
  const std::string& mark = vocabulary().space_mark;
  if (mark.empty() || !words_.find(mark)) return false;
  size_t looked_at = 0;
  for (const std::string_view merge : vocabulary().merges) {
    tick(watch, ++looked_at);
    const size_t space = merge.find(' ', 1);
    if (!merge.substr(0, space).ends_with(mark) && merge.substr(space + 1).starts_with(mark)) return false;
  }
  return true;
}

}  // namespace

int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const size_t digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return -1;
    byte = byte * 16 + static_cast<int>(digit);
  }
  return byte;
}

std::unique_ptr<const Tokenizer> make_char_bpe(Vocabulary vocabulary, Watch* watch) {
  return std::make_unique<CharBpe>(std::move(vocabulary), watch);
}

}  // namespace wi
