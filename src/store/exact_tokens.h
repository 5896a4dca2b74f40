// Which of a session's tokens were computed with exact attention: those of prompts, but for such as were read through
// the policy. A cut that ends in one of them computes it so again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace wi {

class ExactTokens {
 public:
  struct Range {
    int64_t begin = 0, end = 0;
    bool operator==(const Range&) const = default;
  };

  // All tokens below it are, of which segments may be reused.
  int64_t prefix() const { return prefix_; }
  const std::vector<Range>& later() const { return later_; }  // in order; none touches another or the prefix
  bool has(int64_t position) const {
    if (position < prefix_) return true;
    const auto after = std::upper_bound(later_.begin(), later_.end(), position,
                                        [](int64_t at, const Range& range) { return at < range.begin; });
    return after != later_.begin() && position < std::prev(after)->end;
  }

  void restore(int64_t prefix, std::vector<Range> later = {}) {
    prefix_ = prefix;
    later_ = std::move(later);
  }
  // Tokens from `begin` on, where a prompt's computed ones end, are computed anew: exactly up to `end`. Throws
  // std::bad_alloc, and changes nothing then.
  void add(int64_t begin, int64_t end) {
    if (begin <= prefix_) {
      prefix_ = end;
      later_.clear();
    } else if (!later_.empty() && begin <= later_.back().end) {
      later_.back().end = end;
    } else {
      later_.push_back({begin, end});
    }
  }
  void cut(int64_t tokens) noexcept {
    prefix_ = std::min(prefix_, tokens);
    while (!later_.empty() && later_.back().begin >= tokens) later_.pop_back();
    if (!later_.empty()) later_.back().end = std::min(later_.back().end, tokens);
  }

  // What a call changes is the prefix or the last range, and what comes after it.
  struct Mark {
    int64_t prefix;
    size_t count;
    Range last;
  };
  Mark mark() const { return {prefix_, later_.size(), later_.empty() ? Range{} : later_.back()}; }
  void back_to(const Mark& mark) noexcept {
    prefix_ = mark.prefix;
    later_.resize(mark.count);  // which it had room for
    if (mark.count) later_.back() = mark.last;
  }

 private:
  int64_t prefix_ = 0;
  std::vector<Range> later_;
};

}  // namespace wi
