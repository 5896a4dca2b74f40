// The trie of special tokens: built once for a vocabulary, then only read. And what a match must pass:
// whether special tokens are wanted, whether it stands inside a word, and the white space that it takes
// along.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizer/special_tokens.h"

#include <algorithm>
#include <pcre2.h>
#include <unordered_set>

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
  for (const AddedToken& added : *vocabulary.added) {
    if (added.normalized != normalized) continue;
    const auto i = static_cast<size_t>(added.token);
    std::string buffer;
    std::string_view text = vocabulary.tokens[i];
    check_length(i, text);
    RewriteCall call{poll, kSpecialGrowth};
    if (normalized) text = normalizer.apply(text, true, &buffer, call);
    check_length(i, text);
    const std::string& own = vocabulary.tokens[i];
    poll(text.size() + 256);
    if (!text.empty()) insert(text, added.token, text.ends_with(own) ? text.size() - own.size() : 0);
  }
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
  for (size_t begin = from; begin < text.size(); ++begin) {
    if ((begin - from) % kBlock == 0) poll(kBlock);
    uint32_t node = trie_.root(text[begin]);
    Match longest{begin, begin, -1};
    for (size_t at = begin + 1; node != 0; ++at) {
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

TokenTrie::Node& TokenTrie::add(std::string_view text) {
  const auto add_node = [&](unsigned char byte, uint32_t sibling) {
    nodes_.push_back({byte, 0, -1, 0, sibling});
    return static_cast<uint32_t>(nodes_.size() - 1);
  };
  const auto first = static_cast<unsigned char>(text[0]);
  if (roots_[first] == 0) roots_[first] = add_node(first, 0);
  uint32_t node = roots_[first];
  for (size_t i = 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    uint32_t child = find_child(node, byte);
    if (child == 0) {
      child = add_node(byte, nodes_[node].child);
      nodes_[node].child = child;
    }
    node = child;
  }
  return nodes_[node];
}

void SpecialTokens::insert(std::string_view text, int32_t token, size_t mark) {
  TokenTrie::Node& node = trie_.add(text);
  // Two tokens with one text: the first is what a search finds, but one of the user's own stays findable.
  const int32_t held = node.token;
  const auto special = [&](int32_t id) { return flags_[static_cast<size_t>(id)].special; };
  if (held >= 0 && !(special(held) && !special(token))) return;
  node.token = token;
  node.mark = static_cast<uint16_t>(mark);
}

TemplateMarks::TemplateMarks(const Vocabulary& vocabulary, Watch* watch) {
  size_t calls = 0;
  for (const AddedToken& added : *vocabulary.added) {
    tick(watch, ++calls);
    const std::string_view text = vocabulary.tokens[static_cast<size_t>(added.token)];
    size_t spaces = 0;
    while (const size_t length = space_length(text, spaces)) spaces += length;
    if (added.special || spaces == text.size()) continue;
    int32_t& held = words_.add(text).token;
    if (held < 0) held = added.token;
    const size_t first = find_name(text, 0), end = name_end(text, first);
    if (first > 0 && end > first && end < text.size() && find_name(text, end) == text.size())
      named_.push_back({text, static_cast<uint32_t>(first), static_cast<uint32_t>(end), added.token});
  }
}

std::vector<int32_t> TemplateMarks::find(std::string_view literals, Poll& poll) const {
  std::vector<int32_t> found;
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < literals.size(); ++begin) {
    if (begin % kBlock == 0) poll(kBlock);
    uint32_t node = words_.root(literals[begin]);
    for (size_t at = begin + 1; node != 0; ++at) {
      if (words_.node(node).token >= 0) found.push_back(words_.node(node).token);
      if (at == literals.size()) break;
      node = words_.find_child(node, static_cast<unsigned char>(literals[at]));
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

uint32_t TokenTrie::find_child(uint32_t node, unsigned char byte) const {
  uint32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void SpecialTokens::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

}  // namespace wi
