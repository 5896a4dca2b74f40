// Finds special tokens (<|end|>, user-defined words) in text: the leftmost, and the longest where several
// start, as the library tokenizers does. A trie walked only from bytes that begin one, so plain text costs a
// table look-up a byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/text_range.h"
#include "src/tokenizer/normalizer.h"
#include "src/tokenizer/poll.h"
#include "src/tokenizer/tokenizer.h"

struct pcre2_real_code_8;

namespace wi {

// Which control tokens count. Words that were added to the vocabulary always do.
struct ControlTokens {
  bool parsed = true;                     // false: those that stand there are text
  std::span<const TextRange> plain = {};  // ascending, apart: bytes that none of them may touch
  size_t offset = 0;                      // of the text in what plain counts
  std::span<const int32_t> words = {};    // ascending: words that may not touch them either

  bool is_bound(const AddedToken& token) const {
    return token.special || std::binary_search(words.begin(), words.end(), token.token);
  }
  bool allowed(size_t begin, size_t end) const {
    const auto after = [&](const TextRange& range) { return range.end <= begin + offset; };
    const auto range = std::partition_point(plain.begin(), plain.end(), after);
    return range == plain.end() || range->begin >= end + offset;
  }
  // The plain ranges of a part of the text, counted from where it begins.
  std::vector<TextRange> plain_within(size_t begin, size_t end) const;
};

// Words by their first bytes.
class TokenTrie {
 public:
  struct Word {
    std::string_view text;  // not empty
    int32_t token;
    uint16_t mark = 0;  // bytes of a mark that the normalizer put before the token's own text
  };
  struct Node {
    uint32_t child = 0;  // the first of its children, which lie side by side by their bytes
    int32_t token = -1;
    uint16_t children = 0, mark = 0;
    unsigned char byte = 0;
  };
  static constexpr uint32_t kTop = 0;  // of no byte at all; as a child: none

  // Once. Of words of one text the first counts.
  void build(std::vector<Word> words, Poll& poll);
  const Node& node(uint32_t at) const { return nodes_[at]; }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }  // children have greater numbers
  uint32_t root(char first) const { return roots_[static_cast<unsigned char>(first)]; }
  uint32_t find_child(uint32_t node, unsigned char byte) const;

 private:
  std::vector<Node> nodes_{1};
  std::array<uint32_t, 256> roots_{};  // first byte → node
};

// Which of the words added to a vocabulary, which are no special tokens, a chat template writes as marks between
// turns: those in its own text, and those that it puts a role into ('<|' + role + '|>'). Not white space, nor words
// of a language, nor signs alone, which texts of all kinds have, and a template's prose, too.
class TemplateMarks {
 public:
  // The vocabulary must outlive this.
  TemplateMarks(const Vocabulary& vocabulary, Watch* watch);
  // Ascending. literals: the template's texts with a NUL around each.
  std::vector<int32_t> find(std::string_view literals, Poll& poll) const;

 private:
  struct Named {  // a word with a name inside
    std::string_view text;
    uint32_t name, name_end;
    int32_t token;
  };
  uint32_t step(uint32_t node, unsigned char byte) const;

  TokenTrie words_;
  // By node: that of the longest end of its text with which a word begins, as a search goes on from it (Aho and
  // Corasick, 1975): its time does not depend on what the words are.
  std::vector<uint32_t> falls_back_;
  std::vector<Named> named_;
};

class SpecialTokens {
 public:
  // Those of vocabulary.added, which must be set, that are looked for in the text as it is, or else in
  // normalised text; then by their own texts normalised.
  SpecialTokens(const Vocabulary& vocabulary, const Normalizer& normalizer, bool normalized, Watch* watch);

  // Calls plain(begin, end) and found(token) in the order of the text.
  template <class Plain, class Found>
  void split(std::string_view text, const ControlTokens& control, Poll& poll, Plain&& plain,
             Found&& found) const {
    size_t done = 0, spaces_end = 0;
    for (size_t at = 0; at < text.size();) {
      Match match = next(text, at, control, poll);
      if (match.token < 0) break;
      at = match.end;
      if (!accept(text, control.parsed, done, &spaces_end, &match)) continue;
      if (match.begin > done) plain(done, match.begin);
      found(match.token);
      done = match.end;
    }
    if (done < text.size()) plain(done, text.size());
  }

 private:
  struct Match {
    size_t begin, end;
    int32_t token;  // -1: none
  };
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };

  Match next(std::string_view text, size_t from, const ControlTokens& control, Poll& poll) const;
  bool accept(std::string_view text, bool parse_special, size_t done, size_t* spaces_end, Match* match) const;
  bool is_word_character(std::string_view character) const;

  TokenTrie trie_;
  std::vector<AddedToken> flags_;                                // (tokens)
  std::unique_ptr<pcre2_real_code_8, FreeCode> word_character_;  // null if no token asks
};

}  // namespace wi
