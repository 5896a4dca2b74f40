#include "src/tokenizer/sentencepiece.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/tokenizer/merge_queue.h"
#include "src/tokenizer/tokenizer_base.h"
#include "src/tokenizer/word_cache.h"
#include "src/utf8.h"

namespace wi {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

std::string unescape(std::string_view token) {
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const bool space = token.substr(at, kSpace.size()) == kSpace;
    text += space ? ' ' : token[at];
    at += space ? kSpace.size() : 1;
  }
  return text;
}

class SentencePiece final : public TokenizerBase {
 public:
  SentencePiece(Vocabulary vocabulary, Watch* watch);

 private:
  class TextEncoder;
  std::unique_ptr<Encoder> make_encoder(size_t text_bytes, Withheld withheld, Poll& poll) const override;
  void read_bytes(Watch* watch);
  void rank_tokens(Watch* watch);
  void check_fallback() const;

  std::array<int32_t, 256> byte_tokens_{};  // -1: the file has none
  struct Piece {
    uint32_t rank;  // of the score, best first; equal scores share one
    int32_t token;
  };
  // What merging may make of plain text: never a control or byte token, however the text spells it.
  TextTable<Piece> pieces_;
  size_t longest_ = 0;              // bytes of the longest token
  bool spaces_begin_words_ = true;  // no token goes on after a space that follows something else
};

// One call's state. Text is escaped into a buffer and cut where no token can reach across; mostly that is
// before every run of spaces, so the cache sees words.
class SentencePiece::TextEncoder final : public TokenizerBase::Encoder {
 public:
  TextEncoder(const SentencePiece& owner, size_t text_bytes, Withheld withheld, Poll& poll)
      : owner_(owner), withheld_(withheld), poll_(poll), cache_(text_bytes) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    // The cache keeps views of the words, so every buffer lives as long as this call.
    buffers_.push_back(std::make_unique<std::string>(escape(text)));
    const std::string_view escaped = *buffers_.back();
    for (size_t at = 0; at < escaped.size();) {
      const size_t end = word_end(escaped, at);
      const std::string_view word = escaped.substr(at, end - at);
      poll_(word.size());
      cache_.append(word, ids, [&] { append_word(word, ids); });
      at = end;
    }
  }

 private:
  std::string escape(std::string_view text) {
    std::string escaped;
    escaped.reserve(text.size() + text.size() / 2 + kSpace.size());
    if (owner_.vocabulary().add_space_prefix) escaped += kSpace;
    for (char c : text) {
      poll_(1);
      c == ' ' ? escaped.append(kSpace) : escaped.append(1, c);
    }
    return escaped;
  }

  size_t word_end(std::string_view text, size_t begin) const {
    if (!owner_.spaces_begin_words_) return text.size();
    size_t at = begin;
    while (text.substr(at, kSpace.size()) == kSpace) at += kSpace.size();
    return std::min(text.find(kSpace, at), text.size());
  }

  void append_word(std::string_view word, std::vector<int32_t>& ids) {
    starts_.clear();
    for (size_t at = 0; at < word.size(); at += std::max<size_t>(utf8_length(word, at), 1)) {
      poll_(1);
      starts_.push_back(static_cast<uint32_t>(at));
    }
    const auto count = static_cast<uint32_t>(starts_.size());
    starts_.push_back(static_cast<uint32_t>(word.size()));
    ends_.assign(starts_.begin() + 1, starts_.end());
    queue_.run(
        count,
        [&](uint32_t left, uint32_t right) {
          return rank(word.substr(starts_[left], ends_[right] - starts_[left]));
        },
        [&](uint32_t left, uint32_t right) { ends_[left] = ends_[right]; }, &poll_);
    for (uint32_t i = 0; i != MergeQueue::kEnd; i = queue_.next(i))
      append_symbol(word.substr(starts_[i], ends_[i] - starts_[i]), ids);
  }

  const Piece* find(std::string_view text) const {
    const Piece* found = text.size() > owner_.longest_ ? nullptr : owner_.pieces_.find(text);
    return found && !holds(withheld_, found->token) ? found : nullptr;
  }
  uint32_t rank(std::string_view text) const {
    const Piece* found = find(text);
    return found ? found->rank : kNoRank;
  }

  void append_symbol(std::string_view text, std::vector<int32_t>& ids) const {
    if (const Piece* found = find(text)) return ids.push_back(found->token);
    for (char c : text) {
      const int32_t byte_token = owner_.byte_tokens_[static_cast<unsigned char>(c)];
      if (byte_token < 0)  // of the character, once
        return ids.push_back(owner_.unknown_for(static_cast<unsigned char>(c)));
      ids.push_back(byte_token);
    }
  }

  const SentencePiece& owner_;
  const Withheld withheld_;
  Poll& poll_;
  WordCache cache_;
  MergeQueue queue_;
  LongList<uint32_t> starts_, ends_;  // (symbols): byte offsets in the word
  std::vector<std::unique_ptr<std::string>> buffers_;
};

SentencePiece::SentencePiece(Vocabulary moved, Watch* watch) : TokenizerBase(std::move(moved), watch) {
  check(!vocabulary().scores.empty(), WI_E_FORMAT,
        "scores is empty, a SentencePiece model needs one per token");
  read_bytes(watch);
  rank_tokens(watch);
  check_fallback();
}

std::unique_ptr<TokenizerBase::Encoder> SentencePiece::make_encoder(size_t text_bytes, Withheld withheld,
                                                                    Poll& poll) const {
  return std::make_unique<TextEncoder>(*this, text_bytes, withheld, poll);
}

void SentencePiece::read_bytes(Watch* watch) {
  byte_tokens_.fill(-1);
  for (size_t i = 0; i < vocabulary().tokens.size(); ++i) {
    tick(watch, i);
    const std::string& text = vocabulary().tokens[i];
    const TokenKind kind = vocabulary().kinds[i];
    if (kind == TokenKind::byte) {
      unsigned byte = 256;
      const bool written =
          text.size() == 6 && std::sscanf(text.c_str(), "<0x%2X>", &byte) == 1 && text[5] == '>';
      check(written && byte < 256, WI_E_FORMAT, "tokens[", i, "] is a byte token, but \"", text,
            "\" is not <0xNN>");
      if (byte_tokens_[byte] < 0) byte_tokens_[byte] = static_cast<int32_t>(i);
      add_piece(std::string(1, static_cast<char>(byte)));
      continue;
    }
    add_piece(kind == TokenKind::normal ? unescape(text) : text);
  }
}

void SentencePiece::rank_tokens(Watch* watch) {
  std::vector<float> scores = vocabulary().scores;
  pieces_.reserve(scores.size());
  size_t compared = 0;
  std::sort(scores.begin(), scores.end(), [&](float a, float b) {
    tick(watch, ++compared);
    return a > b;
  });
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (size_t i = 0; i < vocabulary().tokens.size(); ++i) {
    tick(watch, i);
    const TokenKind kind = vocabulary().kinds[i];
    if (kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::byte) continue;
    const std::string& text = vocabulary().tokens[i];
    const auto place =
        std::lower_bound(scores.begin(), scores.end(), vocabulary().scores[i], std::greater<>());
    pieces_.insert(text, Piece{static_cast<uint32_t>(place - scores.begin()), static_cast<int32_t>(i)});
    longest_ = std::max(longest_, text.size());
    // Spaces first, then anything but spaces: else a join may cross from one word into the next.
    size_t at = 0;
    while (text.compare(at, kSpace.size(), kSpace) == 0) at += kSpace.size();
    spaces_begin_words_ = spaces_begin_words_ && text.find(kSpace, at) == std::string::npos;
  }
}

void SentencePiece::check_fallback() const {
  if (vocabulary().unknown >= 0) return;
  for (unsigned byte = 0; byte < 256; ++byte)
    check(byte_tokens_[byte] >= 0 || !occurs_in_utf8(byte), WI_E_FORMAT, "tokens lacks byte ", byte,
          ", and there is no unknown token");
}

}  // namespace

std::unique_ptr<const Tokenizer> make_sentencepiece(Vocabulary vocabulary, Watch* watch) {
  return std::make_unique<SentencePiece>(std::move(vocabulary), watch);
}

}  // namespace wi
