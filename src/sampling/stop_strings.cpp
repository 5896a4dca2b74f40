#include "src/sampling/stop_strings.h"

#include <algorithm>

namespace wi {
namespace {

// The longest prefix of `string` that ends with this byte, if the longest before it was `matched` long.
uint32_t step(const std::string& string, const std::vector<uint32_t>& borders, uint32_t matched, char byte) {
  while (matched && string[matched] != byte) matched = borders[matched - 1];
  return matched + (string[matched] == byte);
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    std::vector<uint32_t>& borders = borders_.emplace_back(string.size());
    for (size_t i = 1; i < string.size(); ++i) borders[i] = step(string, borders, borders[i - 1], string[i]);
  }
}

StopStrings::Match StopStrings::find(std::string_view text) const {
  Match match{false, text.size(), 0};
  size_t end = text.size();  // of the match; nobody need look beyond the first
  for (size_t s = 0; s < strings_.size(); ++s) {
    const std::string& string = strings_[s];
    uint32_t matched = 0;
    for (size_t i = 0; i < end; ++i) {
      matched = step(string, borders_[s], matched, text[i]);
      if (matched < string.size()) continue;
      const size_t begin = i + 1 - matched;
      if (!match.found || i + 1 < end || begin < match.begin) match = {true, begin, i + 1};
      end = i + 1;
      break;
    }
    if (!match.found) match.begin = std::min(match.begin, text.size() - matched);
  }
  return match;
}

}  // namespace wi
