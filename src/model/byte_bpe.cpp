#include "src/model/byte_bpe.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/model/merge_queue.h"
#include "src/model/merge_table.h"
#include "src/model/pre_tokenizer.h"
#include "src/model/tokenizer_base.h"
#include "src/model/utf8.h"
#include "src/model/word_cache.h"

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

class ByteBpe final : public TokenizerBase {
 public:
  explicit ByteBpe(Vocabulary vocabulary);

 private:
  class WordEncoder;
  std::unique_ptr<Encoder> make_encoder(size_t text_bytes) const override;
  void read_merges();

  PreTokenizer pre_tokenizer_;
  bool whole_words_;
  std::array<int32_t, 256> byte_tokens_{};
  MergeTable merges_;
  std::unordered_map<std::string_view, int32_t> words_;  // raw bytes → id, filled if whole_words_
};

// One call's state: the pattern matcher, the words met so far, and the scratch of the merge loop.
class ByteBpe::WordEncoder final : public TokenizerBase::Encoder {
 public:
  WordEncoder(const ByteBpe& owner, size_t text_bytes)
      : owner_(owner), matcher_(owner.pre_tokenizer_), cache_(text_bytes) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    for (size_t at = 0; at < text.size();) {
      const size_t end = utf8_run_end(text, at);
      matcher_.split(text.substr(at, end - at), [&](std::string_view word) {
        cache_.append(word, ids, [&] { append_word(word, ids); });
      });
      for (at = end; at < text.size() && utf8_length(text, at) == 0; ++at)
        ids.push_back(owner_.byte_tokens_[static_cast<unsigned char>(text[at])]);
    }
  }

 private:
  void append_word(std::string_view word, std::vector<int32_t>& ids) {
    if (owner_.whole_words_) {
      const auto whole = owner_.words_.find(word);
      if (whole != owner_.words_.end()) return ids.push_back(whole->second);
    }
    symbols_.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i)
      symbols_[i] = owner_.byte_tokens_[static_cast<unsigned char>(word[i])];
    queue_.run(
        static_cast<uint32_t>(word.size()),
        [&](uint32_t left, uint32_t right) {
          return owner_.merges_.find(symbols_[left], symbols_[right]).rank;
        },
        [&](uint32_t left, uint32_t right) {
          symbols_[left] = owner_.merges_.find(symbols_[left], symbols_[right]).token;
        });
    for (uint32_t i = 0; i != MergeQueue::kEnd; i = queue_.next(i)) ids.push_back(symbols_[i]);
  }

  const ByteBpe& owner_;
  PreTokenizer::Matcher matcher_;
  WordCache cache_;
  MergeQueue queue_;
  std::vector<int32_t> symbols_;
};

ByteBpe::ByteBpe(Vocabulary moved)
    : TokenizerBase(std::move(moved)),
      pre_tokenizer_(vocabulary().pattern.empty() ? PreTokenizer::named(vocabulary().pre_tokenizer)
                                                  : PreTokenizer::from_patterns(vocabulary().pattern)),
      whole_words_(vocabulary().ignore_merges || pre_tokenizer_.ignores_merges()) {
  const ByteAlphabet alphabet;
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = find(alphabet.written(byte));
    check(byte_tokens_[byte] >= 0, WI_E_FORMAT, "tokens lacks byte ", byte, " (\"", alphabet.written(byte),
          "\"), byte-level BPE needs all 256");
  }
  for (size_t i = 0; i < vocabulary().tokens.size(); ++i) {
    const std::string& text = vocabulary().tokens[i];
    const TokenKind kind = vocabulary().kinds[i];
    const bool encoded = kind == TokenKind::normal || kind == TokenKind::byte;
    add_piece(encoded ? alphabet.read(text).value_or(text) : text);
  }
  if (whole_words_)
    for (size_t i = 0; i < vocabulary().tokens.size(); ++i)
      if (vocabulary().kinds[i] == TokenKind::normal)
        words_.emplace(piece(static_cast<int32_t>(i), true), static_cast<int32_t>(i));
  read_merges();
}

std::unique_ptr<TokenizerBase::Encoder> ByteBpe::make_encoder(size_t text_bytes) const {
  return std::make_unique<WordEncoder>(*this, text_bytes);
}

void ByteBpe::read_merges() {
  const std::vector<std::string>& merges = vocabulary().merges;
  check(merges.size() < kNoRank, WI_E_FORMAT, "merges has ", merges.size(), " entries");
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos && space + 1 < merge.size(), WI_E_FORMAT, "merges[", i, "] is \"",
          merge, "\", not two tokens with a space between");
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    const int32_t left_id = find(left), right_id = find(right), joined = find(concat(left, right));
    check(left_id >= 0, WI_E_FORMAT, "merges[", i, "] names \"", left, "\", which tokens lacks");
    check(right_id >= 0, WI_E_FORMAT, "merges[", i, "] names \"", right, "\", which tokens lacks");
    check(joined >= 0, WI_E_FORMAT, "merges[", i, "] makes \"", left, right, "\", which tokens lacks");
    merges_.insert(left_id, right_id, {static_cast<uint32_t>(i), joined});
  }
}

}  // namespace

std::unique_ptr<const Tokenizer> make_byte_bpe(Vocabulary vocabulary) {
  return std::make_unique<ByteBpe>(std::move(vocabulary));
}

}  // namespace wi
