// Finds special tokens (<|end|>, user-defined words) in text: the leftmost, and the longest where several
// start. A trie walked only from bytes that begin one, so plain text costs a table look-up a byte.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/model/tokenizer.h"

namespace wi {

class SpecialTokens {
 public:
  struct Match {
    size_t begin, end;
    int32_t token;  // -1: none, and begin == end == text.size()
  };

  explicit SpecialTokens(const Vocabulary& vocabulary);
  // user_only: only user-defined tokens, which are words of the text; otherwise control tokens too.
  Match next(std::string_view text, size_t from, bool user_only) const;

 private:
  struct Node {
    unsigned char byte;
    int32_t token = -1;
    uint32_t child = 0, sibling = 0;  // 0: none
  };
  void insert(std::string_view text, int32_t token);
  uint32_t find_child(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_{};  // first byte → node
  std::vector<bool> user_defined_;     // (tokens)
};

}  // namespace wi
