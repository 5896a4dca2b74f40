#include "src/repeats.h"

#include <algorithm>

namespace wi {
namespace {

int64_t length_of(const TokenLog& tokens, int64_t last) {
  const int64_t newest = tokens.size() - 1;
  const int64_t most = std::min(kLongestRepeat, last + 1);
  int64_t length = 1;
  while (length < most && tokens[last - length] == tokens[newest - length]) ++length;
  return length;
}

bool contains(const int32_t* ids, int64_t count, int32_t id) {
  int32_t found = 0;  // without a branch, so that it vectorises
  for (int64_t i = 0; i < count; ++i) found |= ids[i] == id;
  return found != 0;
}

}  // namespace

int32_t find_repeats(const TokenLog& tokens, int64_t first, int64_t end, int32_t most, Repeat* out) {
  constexpr int64_t kBlock = 64, kChunk = static_cast<int64_t>(TokenLog::kChunk);
  end = std::min(end, tokens.size() - 1);
  if (most <= 0 || first >= end) return 0;
  const int32_t newest = tokens[tokens.size() - 1];
  int32_t count = 0;
  const auto consider = [&](int64_t last) {
    const int64_t length = length_of(tokens, last);
    if (length < kShortestRepeat || (count == most && length <= out[count - 1].tokens)) return;
    if (count < most) ++count;
    int32_t at = count - 1;
    for (; at > 0 && out[at - 1].tokens < length; --at) out[at] = out[at - 1];
    out[at] = {last, length};
  };
  for (int64_t block = (end - 1) / kBlock * kBlock; block + kBlock > first; block -= kBlock) {
    const std::span<const int32_t> chunk = tokens.chunk(static_cast<size_t>(block / kChunk));
    const int64_t low = std::max(block, first), high = std::min(block + kBlock, end);
    const int32_t* ids = chunk.data() + block % kChunk;  // of position `block`
    if (!contains(ids + (low - block), high - low, newest)) continue;
    for (int64_t i = high; i-- > low;)
      if (ids[i - block] == newest) consider(i);
    if (count == most && out[count - 1].tokens == kLongestRepeat) break;  // a million spaces
  }
  return count;
}

}  // namespace wi
