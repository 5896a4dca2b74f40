#include "src/repeats.h"

#include <algorithm>

namespace wi {
namespace {

// How many tokens equal the newest ones, ending at positions that are asked for from the last to the first. What one
// match has compared is not compared again for those that end within it (the Z algorithm, backwards): a text of rulers
// and padding costs a few comparisons a token, as any other.
class Lengths {
 public:
  explicit Lengths(const TokenLog& tokens)
      : tokens_(tokens),
        most_(std::min(kLongestRepeat, tokens.size())),
        start_(tokens.size()),
        below_(start_) {
    for (int64_t i = 0; i < most_; ++i) newest_[i] = tokens[tokens.size() - 1 - i];
    for (int64_t i = 1, start = 0, past = 0; i < most_; ++i) {
      int64_t length = i < past ? std::min<int64_t>(again_[i - start], past - i) : 0;
      while (i + length < most_ && newest_[length] == newest_[i + length]) ++length;
      again_[i] = static_cast<int32_t>(length);
      if (i + length > past) start = i, past = i + length;
    }
  }

  int64_t most() const { return most_; }
  int32_t newest(int64_t i) const { return newest_[i]; }  // i back from it; i < most()

  // last: has the newest token. ids: of positions from `first` on, `last` among them.
  int64_t at(int64_t last, const int32_t* ids, int64_t first) {
    int64_t length = 1;
    if (last > below_) {
      const int64_t known = last - below_, again = again_[start_ - last];
      if (again != known) return std::min(again, known);
      length = known;
    }
    const int64_t most = std::min(most_, last + 1);
    const auto id = [&](int64_t i) { return i >= first ? ids[i - first] : tokens_[i]; };
    while (length < most && id(last - length) == newest_[length]) ++length;
    start_ = last;
    below_ = last - length;
    return length;
  }

 private:
  const TokenLog& tokens_;
  int64_t most_;
  int64_t start_, below_;           // the match that reaches farthest: of positions (below_, start_]
  int32_t newest_[kLongestRepeat];  // the newest one first
  int32_t again_[kLongestRepeat];   // from 1 on: how many from there on equal those from 0 on
};

// Without branches, so that they vectorise.
bool contains(const int32_t* ids, int64_t count, int32_t id) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= ids[i] == id;
  return found != 0;
}

bool contains(const int32_t* ids, int64_t count, int32_t id, int64_t back, int32_t id_there) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= (ids[i] == id) & (ids[i - back] == id_there);
  return found != 0;
}

}  // namespace

int32_t find_repeats(const TokenLog& tokens, int64_t first, int64_t end, int32_t most, Repeat* out) {
  constexpr int64_t kBlock = 64, kChunk = static_cast<int64_t>(TokenLog::kChunk);
  end = std::min(end, tokens.size() - 1);
  if (most <= 0 || first >= end) return 0;
  Lengths lengths(tokens);
  int32_t count = 0;
  const auto consider = [&](int64_t last, int64_t length) {
    if (length < kShortestRepeat || (count == most && length <= out[count - 1].tokens)) return;
    if (count < most) ++count;
    int32_t at = count - 1;
    for (; at > 0 && out[at - 1].tokens < length; --at) out[at] = out[at - 1];
    out[at] = {last, length};
  };
  for (int64_t block = (end - 1) / kBlock * kBlock; block + kBlock > first; block -= kBlock) {
    const int64_t begins = block / kChunk * kChunk;
    const int32_t* ids = tokens.chunk(static_cast<size_t>(block / kChunk)).data();  // of position `begins`
    const int64_t low = std::max(block, first) - begins, high = std::min(block + kBlock, end) - begins;
    if (!contains(ids + low, high - low, lengths.newest(0))) continue;
    // A repeat longer than the worst of those found equals the newest tokens that far back too.
    const int64_t longer = count == most ? out[count - 1].tokens : kShortestRepeat - 1;
    if (longer >= lengths.most()) break;
    const int64_t back = longer <= low ? longer : 0;
    const int32_t newest = lengths.newest(0), there = lengths.newest(back);
    if (!contains(ids + low, high - low, newest, back, there)) continue;
    for (int64_t i = high; i-- > low;)
      if ((ids[i] == newest) & (ids[i - back] == there))
        consider(begins + i, lengths.at(begins + i, ids, begins));
  }
  return count;
}

}  // namespace wi
