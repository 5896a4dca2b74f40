// Strings that end an answer when its text has one of them, whichever tokens it is spread over. Knuth, Morris
// and Pratt's automaton for each, so that a text costs its length, not its length times that of a string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wi {

class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> strings);  // none of them empty
  const std::vector<std::string>& strings() const { return strings_; }

  struct Match {
    bool found = false;
    size_t begin = 0;  // found: of the string that is complete first, the longest of those; else: where what
                       // may yet become one begins, the text's end if nothing does
    size_t end = 0;    // found: of it
  };
  Match find(std::string_view text) const;

 private:
  std::vector<std::string> strings_;
  // (strings, length) of the prefix that ends there: the longest shorter one that does too
  std::vector<std::vector<uint32_t>> borders_;
};

}  // namespace wi
