// The trie of special tokens: built once for a vocabulary, then only read.
#include "src/model/special_tokens.h"

#include "src/error.h"

namespace wi {

namespace {
// Longer ones are no special tokens of any model, and would make a hostile file cost time in every text.
constexpr size_t kLongestSpecialBytes = 1024;
}  // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : nodes_(1) {
  user_defined_.resize(vocabulary.tokens.size());
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    const std::string& text = vocabulary.tokens[i];
    if (kind != TokenKind::control && kind != TokenKind::user_defined && kind != TokenKind::unknown) continue;
    if (text.empty()) continue;
    check(text.size() <= kLongestSpecialBytes, WI_E_FORMAT, "tokens[", i, "] is a special token of ",
          text.size(), " bytes, at most ", kLongestSpecialBytes, " are allowed");
    user_defined_[i] = kind == TokenKind::user_defined;
    insert(text, static_cast<int32_t>(i));
  }
}

SpecialTokens::Match SpecialTokens::next(std::string_view text, size_t from, bool user_only) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    uint32_t node = roots_[static_cast<unsigned char>(text[begin])];
    Match longest{begin, begin, -1};
    for (size_t at = begin + 1; node != 0; ++at) {
      const int32_t token = nodes_[node].token;
      if (token >= 0 && (!user_only || user_defined_[static_cast<size_t>(token)]))
        longest = {begin, at, token};
      if (at == text.size()) break;
      node = find_child(node, static_cast<unsigned char>(text[at]));
    }
    if (longest.token >= 0) return longest;
  }
  return {text.size(), text.size(), -1};
}

void SpecialTokens::insert(std::string_view text, int32_t token) {
  const auto add = [&](unsigned char byte, uint32_t sibling) {
    nodes_.push_back({byte, -1, 0, sibling});
    return static_cast<uint32_t>(nodes_.size() - 1);
  };
  const auto first = static_cast<unsigned char>(text[0]);
  if (roots_[first] == 0) roots_[first] = add(first, 0);
  uint32_t node = roots_[first];
  for (size_t i = 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    uint32_t child = find_child(node, byte);
    if (child == 0) {
      child = add(byte, nodes_[node].child);
      nodes_[node].child = child;
    }
    node = child;
  }
  // Two tokens with one text: the first is what a search finds, but one of the user's own stays findable.
  int32_t& held = nodes_[node].token;
  if (held < 0 || (!user_defined_[static_cast<size_t>(held)] && user_defined_[static_cast<size_t>(token)]))
    held = token;
}

uint32_t SpecialTokens::find_child(uint32_t node, unsigned char byte) const {
  uint32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

}  // namespace wi
