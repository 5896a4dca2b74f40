// Where the newest tokens stood before. A model that copies a name, a number or a line of code attends to
// what followed them there, which is one key among all; vectors alone may miss it, the text itself cannot: a
// vector store's lookup by words, beside the one by meaning.
#pragma once

#include <span>

#include "src/token_log.h"

namespace wi {

struct Repeat {
  int64_t last = 0;    // position of the newest token's equal
  int64_t tokens = 0;  // that are equal, ending there; at most kLongestRepeat
};
constexpr int64_t kShortestRepeat = 3;  // shorter ones are everywhere
constexpr int64_t kLongestRepeat = 64;  // equally good beyond
constexpr int32_t kMostRepeats = 8;
constexpr int64_t kFollowed = 4;  // tokens from `last` on that are wanted

// Writes the longest repeats that end in [first, end), longest first, of equals the newest first, and at most
// `most`; returns how many. Compares each id a few times, whatever the text.
int32_t find_repeats(const TokenLog& tokens, int64_t first, int64_t end, int32_t most, Repeat* out);

}  // namespace wi
