// The trie of special tokens: built once for a vocabulary, then only read. And what a match must pass:
// whether special tokens are wanted, whether it stands inside a word, and the white space that it takes
// along.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizer/special_tokens.h"

#include <algorithm>
#include <deque>
#include <pcre2.h>
#include <unordered_set>
#include <utf8proc.h>
#include <utility>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/text_hash.h"
#include "src/utf8.h"

namespace wi {

namespace {

// Longer ones are no special tokens of any model, and would make a hostile file cost time in every text.
constexpr size_t kLongestSpecialBytes = 1024;
// By which a token's text may grow on its way to a normalised one, which may shrink it again.
constexpr size_t kSpecialGrowth = 4 * kLongestSpecialBytes;

// \w of Unicode's regular expressions (UTS #18, annex C).
constexpr std::string_view kWordCharacter = R"(\A[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])";

// Bytes of the white space character that starts at text[at]; 0 if none does.
size_t space_length(std::string_view text, size_t at) {
  if (at == text.size()) return 0;
  const auto c = static_cast<unsigned char>(text[at]);
  if (c == ' ' || (c >= '\t' && c <= '\r')) return 1;
  if (c < 0xC2) return 0;
  for (const std::string_view space :
       {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
        "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"})
    if (text.substr(at, space.size()) == space) return space.size();
  return 0;
}

// Where the character that ends at text[end] begins; end > 0.
size_t character_begin(std::string_view text, size_t end) {
  for (size_t length = 1; length <= std::min<size_t>(end, 4); ++length)
    if (utf8_length(text.substr(0, end), end - length) == length) return end - length;
  return end - 1;
}

// Of a role that a template puts between texts of its own.
bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
size_t find_name(std::string_view text, size_t from) {
  while (from < text.size() && !is_name_byte(text[from])) ++from;
  return from;
}
size_t name_end(std::string_view text, size_t from) {
  while (from < text.size() && is_name_byte(text[from])) ++from;
  return from;
}

// Whether a template that holds it means it as a mark ('<think>', '[INST]'): it has a name and a sign.
bool may_be_mark(std::string_view text) {
  bool name = false, sign = false;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                         static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    if (length <= 0) return false;
    at += static_cast<size_t>(length);
    const auto category = utf8proc_category(character);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO)
      name = true;
    else if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO)
      sign = true;
  }
  return name && sign;
}

void check_length(size_t token, std::string_view text) {
  check(text.size() <= kLongestSpecialBytes, WI_E_FORMAT, "tokens[", token, "] is a special token of ",
        text.size(), " bytes, at most ", kLongestSpecialBytes, " are allowed");
}

}  // namespace

std::vector<TextRange> ControlTokens::plain_within(size_t begin, size_t end) const {
  std::vector<TextRange> within;
  const auto before = [&](const TextRange& range) { return range.end <= begin + offset; };
  for (auto range = std::partition_point(plain.begin(), plain.end(), before);
       range != plain.end() && range->begin < end + offset; ++range)
    within.push_back({std::max(range->begin, begin + offset) - begin - offset,
                      std::min(range->end, end + offset) - begin - offset});
  return within;
}

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary, const Normalizer& normalizer, bool normalized,
                             Watch* watch)
    : flags_(vocabulary.tokens.size()) {
  bool asks_for_words = false;
  const std::function<void()> look = [&] { tick(watch); };
  Poll poll(nullptr, &look);
  for (const AddedToken& added : *vocabulary.added) {
    const auto i = static_cast<size_t>(added.token);
    flags_[i] = added;
    asks_for_words = asks_for_words || added.single_word;
  }
  std::deque<std::string> buffers;
  std::vector<TokenTrie::Word> words;
  for (const AddedToken& added : *vocabulary.added) {
    if (added.normalized != normalized) continue;
    const auto i = static_cast<size_t>(added.token);
    const std::string& own = vocabulary.tokens[i];
    std::string_view text = own;
    check_length(i, text);
    RewriteCall call{poll, kSpecialGrowth};
    if (normalized) text = normalizer.apply(text, true, &buffers.emplace_back(), call);
    check_length(i, text);
    poll(text.size() + 256);
    const size_t mark = text.ends_with(own) ? text.size() - own.size() : 0;
    if (!text.empty()) words.push_back({text, added.token, static_cast<uint16_t>(mark)});
  }
  // Of tokens of one text the first is what a search finds, but one of the user's own stays findable.
  std::stable_partition(words.begin(), words.end(), [&](const TokenTrie::Word& word) {
    return !flags_[static_cast<size_t>(word.token)].special;
  });
  trie_.build(std::move(words), poll);
  if (!asks_for_words) return;
  int code = 0;
  PCRE2_SIZE offset = 0;
  word_character_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kWordCharacter.data()),
                                      kWordCharacter.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr));
  check(word_character_ != nullptr || code != PCRE2_ERROR_HEAP_FAILED, WI_E_MEMORY,
        "no memory to compile the pattern of a word's characters");
  check(word_character_ != nullptr, WI_E_INTERNAL, "the pattern of a word's characters does not compile");
}

SpecialTokens::Match SpecialTokens::next(std::string_view text, size_t from, const ControlTokens& control,
                                         Poll& poll) const {
  constexpr size_t kBlock = 4096;
  size_t steps = kBlock;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (++steps >= kBlock) poll(std::exchange(steps, 0));
    uint32_t node = trie_.root(text[begin]);
    Match longest{begin, begin, -1};
    for (size_t at = begin + 1; node != 0; ++at, ++steps) {
      const int32_t token = trie_.node(node).token;
      const size_t mark = trie_.node(node).mark;
      // A mark may stand for a space of the host's: only the token's own text must be the template's.
      if (token >= 0 &&
          (!control.is_bound(flags_[static_cast<size_t>(token)]) || control.allowed(begin + mark, at)))
        longest = {begin, at, token};
      if (at == text.size()) break;
      node = trie_.find_child(node, static_cast<unsigned char>(text[at]));
    }
    if (longest.token >= 0) return longest;
  }
  return {text.size(), text.size(), -1};
}

// done: where what was found before ends. *spaces_end: where the white space ends that was last taken along
// on the right, so that a run of it is walked once.
bool SpecialTokens::accept(std::string_view text, bool parse_special, size_t done, size_t* spaces_end,
                           Match* match) const {
  const AddedToken& flags = flags_[static_cast<size_t>(match->token)];
  if (flags.special && !parse_special) return false;
  if (flags.single_word) {
    const std::string_view before = text.substr(0, match->begin);
    if (!before.empty() && is_word_character(before.substr(character_begin(before, before.size()))))
      return false;
    if (is_word_character(text.substr(match->end, 4))) return false;
  }
  if (flags.lstrip) {
    match->begin = std::max(match->begin, done);
    while (match->begin > done) {
      const size_t begin = character_begin(text, match->begin);
      if (begin < done || space_length(text, begin) == 0) break;
      match->begin = begin;
    }
  }
  if (flags.rstrip) {
    match->end = std::max(match->end, *spaces_end);
    while (const size_t length = space_length(text, match->end)) match->end += length;
    *spaces_end = match->end;
  }
  return match->begin < match->end;  // else one before took it along
}

bool SpecialTokens::is_word_character(std::string_view character) const {
  const size_t length = character.empty() ? 0 : utf8_length(character, 0);
  if (length == 0) return false;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  check(data != nullptr, WI_E_MEMORY, "no memory to look at a word's characters");
  const int code = pcre2_match(word_character_.get(), reinterpret_cast<PCRE2_SPTR>(character.data()), length,
                               0, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
  check(code != PCRE2_ERROR_NOMEMORY, WI_E_MEMORY, "no memory to look at a word's characters");
  return code >= 0;
}

// Level by level, so that a node's children lie side by side.
void TokenTrie::build(std::vector<Word> words, Poll& poll) {
  struct Range {
    size_t begin, end;
  };
  std::stable_sort(words.begin(), words.end(), [&](const Word& a, const Word& b) {
    poll(16);
    return a.text < b.text;
  });
  std::vector<Range> of_node{{0, words.size()}};  // those that begin with its text
  size_t level = 0;
  for (size_t depth = 0; level < nodes_.size(); ++depth) {
    for (const size_t level_end = nodes_.size(); level < level_end; ++level) {
      auto [begin, end] = of_node[level];
      if (begin < end && words[begin].text.size() == depth) {
        nodes_[level].token = words[begin].token;
        nodes_[level].mark = words[begin].mark;
      }
      while (begin < end && words[begin].text.size() == depth) ++begin;
      nodes_[level].child = size();
      for (size_t next = begin; begin < end; begin = next) {
        const char byte = words[begin].text[depth];
        while (next < end && words[next].text[depth] == byte) ++next;
        poll(next - begin);
        Node child;
        child.byte = static_cast<unsigned char>(byte);
        nodes_.push_back(child);
        of_node.push_back({begin, next});
        ++nodes_[level].children;
      }
    }
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    roots_[byte] = find_child(kTop, static_cast<unsigned char>(byte));
}

uint32_t TokenTrie::find_child(uint32_t node, unsigned char byte) const {
  const Node* begin = nodes_.data() + nodes_[node].child;
  const Node* end = begin + nodes_[node].children;
  const Node* found =
      std::lower_bound(begin, end, byte, [](const Node& a, unsigned char b) { return a.byte < b; });
  return found < end && found->byte == byte ? static_cast<uint32_t>(found - nodes_.data()) : kTop;
}

TemplateMarks::TemplateMarks(const Vocabulary& vocabulary, Watch* watch) {
  const std::function<void()> look = [&] { tick(watch); };
  Poll poll(nullptr, &look);
  std::vector<TokenTrie::Word> words;
  for (const AddedToken& added : *vocabulary.added) {
    const std::string_view text = vocabulary.tokens[static_cast<size_t>(added.token)];
    poll(text.size() + 256);
    if (added.special || !may_be_mark(text)) continue;
    words.push_back({text, added.token});
    const size_t first = find_name(text, 0), end = name_end(text, first);
    if (first > 0 && end > first && end < text.size() && find_name(text, end) == text.size())
      named_.push_back({text, static_cast<uint32_t>(first), static_cast<uint32_t>(end), added.token});
  }
  words_.build(std::move(words), poll);
  falls_back_.assign(words_.size(), TokenTrie::kTop);
  for (uint32_t node = 0; node < words_.size(); ++node) {
    const uint32_t begin = words_.node(node).child, end = begin + words_.node(node).children;
    for (uint32_t child = begin; child < end; ++child) {
      poll(16);
      if (node != TokenTrie::kTop) falls_back_[child] = step(falls_back_[node], words_.node(child).byte);
    }
  }
}

// Where a search that is at a node goes with the next byte.
uint32_t TemplateMarks::step(uint32_t node, unsigned char byte) const {
  for (;; node = falls_back_[node]) {
    const uint32_t child = words_.find_child(node, byte);
    if (child != TokenTrie::kTop || node == TokenTrie::kTop) return child;
  }
}

std::vector<int32_t> TemplateMarks::find(std::string_view literals, Poll& poll) const {
  std::vector<int32_t> found;
  std::vector<bool> seen(words_.size());
  uint32_t at_node = TokenTrie::kTop;
  for (const char byte : literals) {
    poll(1);
    at_node = step(at_node, static_cast<unsigned char>(byte));
    // Whatever it falls back to ends here, too; behind one that was seen, all were.
    for (uint32_t node = at_node; node != TokenTrie::kTop && !seen[node]; node = falls_back_[node]) {
      seen[node] = true;
      if (words_.node(node).token >= 0) found.push_back(words_.node(node).token);
    }
  }
  // What the texts begin and end with, as far as that is no name.
  constexpr size_t kLongest = 32;
  std::unordered_set<std::string_view, TextHash> begins, ends;
  for (size_t at = 0; !named_.empty() && at < literals.size();) {
    const size_t next = std::min(literals.find('\0', at), literals.size());
    const std::string_view text = literals.substr(at, next - at);
    for (size_t i = 1; i <= std::min(text.size(), kLongest) && !is_name_byte(text[i - 1]); ++i)
      begins.insert(text.substr(0, i));
    for (size_t i = 1; i <= std::min(text.size(), kLongest) && !is_name_byte(text[text.size() - i]); ++i)
      ends.insert(text.substr(text.size() - i));
    at = next + 1;
  }
  for (const Named& word : named_)
    if (ends.count(word.text.substr(0, word.name)) > 0 && begins.count(word.text.substr(word.name_end)) > 0)
      found.push_back(word.token);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void SpecialTokens::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

}  // namespace wi
