#include "src/tokenizer/byte_bpe.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/tokenizer/bpe.h"
#include "src/utf8.h"

namespace wi {
namespace {

// The alphabet that lets every byte be written as a visible character: the printable Latin-1 bytes stand for
// themselves, the other 68 take U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    uint32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const uint32_t code_point = printable ? byte : next++;
      written_[byte] = to_utf8(code_point);
      bytes_[code_point] = static_cast<int16_t>(byte);
    }
  }
  const std::string& written(unsigned byte) const { return written_[byte]; }

  // The bytes a token stands for; nothing if it has a character from outside the alphabet.
  std::optional<std::string> read(std::string_view token) const {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const size_t length = utf8_length(token, at);
      if (length == 0 || length > 2) return std::nullopt;
      const auto first = static_cast<unsigned char>(token[at]);
      const uint32_t code_point =
          length == 1 ? first : (first & 0x1Fu) << 6 | (static_cast<unsigned char>(token[at + 1]) & 0x3Fu);
      if (code_point >= bytes_.size() || bytes_[code_point] < 0) return std::nullopt;
      bytes += static_cast<char>(bytes_[code_point]);
      at += length;
    }
    return bytes;
  }

 private:
  static std::string to_utf8(uint32_t code_point) {
    if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
    return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
  }
  std::array<std::string, 256> written_;
  std::array<int16_t, 0x144> bytes_ = [] {
    std::array<int16_t, 0x144> none{};
    none.fill(-1);
    return none;
  }();
};

class ByteBpe final : public Bpe {
 public:
  ByteBpe(Vocabulary vocabulary, Watch* watch);

 private:
  class ByteEncoder;
  std::unique_ptr<Encoder> make_encoder(size_t text_bytes, Withheld withheld, Poll& poll) const override;
};

class ByteBpe::ByteEncoder final : public WordEncoder {
 public:
  ByteEncoder(const ByteBpe& owner, size_t text_bytes, Withheld withheld, Poll& poll)
      : WordEncoder(owner, text_bytes, withheld, poll), owner_(owner) {}

 private:
  void read_symbols(std::string_view word, LongList<int32_t>& symbols) override {
    symbols.reserve(word.size());
    for (const char byte : word) {
      poll_(1);
      symbols.push_back(owner_.byte_tokens_[static_cast<unsigned char>(byte)]);
    }
  }

  const ByteBpe& owner_;
};

ByteBpe::ByteBpe(Vocabulary moved, Watch* watch) : Bpe(std::move(moved), watch) {
  pre_tokenizer_ = vocabulary().splits ? PreTokenizer::from_steps(*vocabulary().splits)
                                       : PreTokenizer::named(vocabulary().pre_tokenizer);
  whole_words_ = vocabulary().ignore_merges || pre_tokenizer_.ignores_merges();
  const ByteAlphabet alphabet;
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = find(alphabet.written(byte));
    check(byte_tokens_[byte] >= 0 || !occurs_in_utf8(byte), WI_E_FORMAT, "tokens lacks byte ", byte, " (\"",
          alphabet.written(byte), "\"), byte-level BPE needs all that UTF-8 is made of");
  }
  for (size_t i = 0; i < vocabulary().tokens.size(); ++i) {
    tick(watch, i);
    const std::string& text = vocabulary().tokens[i];
    const TokenKind kind = vocabulary().kinds[i];
    const bool encoded = kind == TokenKind::normal || kind == TokenKind::byte;
    add_piece(encoded ? alphabet.read(text).value_or(text) : text);
  }
  if (whole_words_) words_.reserve(vocabulary().tokens.size());
  for (size_t i = 0; whole_words_ && i < vocabulary().tokens.size(); ++i) {
    tick(watch, i);
    if (vocabulary().kinds[i] == TokenKind::normal)
      words_.insert(piece(static_cast<int32_t>(i), true), static_cast<int32_t>(i));
  }
  merges_ = read_merges(*this, watch);
  withhold(merges_.specials);
}

std::unique_ptr<TokenizerBase::Encoder> ByteBpe::make_encoder(size_t text_bytes, Withheld withheld,
                                                              Poll& poll) const {
  return std::make_unique<ByteEncoder>(*this, text_bytes, withheld, poll);
}

}  // namespace

std::unique_ptr<const Tokenizer> make_byte_bpe(Vocabulary vocabulary, Watch* watch) {
  return std::make_unique<ByteBpe>(std::move(vocabulary), watch);
}

}  // namespace wi
