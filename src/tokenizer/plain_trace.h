// Follows the plain bytes of a text, those that no control token may touch, through one rewriting of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "src/text_range.h"

namespace wi {

class PlainTrace {
 public:
  explicit PlainTrace(std::vector<TextRange> plain) : from_(std::move(plain)) {}  // ascending, apart

  bool touches(size_t begin, size_t end) const {
    const auto range = behind(begin);
    return range != from_.end() && range->begin < end;
  }

  // What is written is told in order. These bytes of the text now stand at `at` ...
  void kept(size_t begin, size_t end, size_t at) {
    for (auto range = behind(begin); range != from_.end() && range->begin < end; ++range)
      add(at + std::max(range->begin, begin) - begin, at + std::min(range->end, end) - begin);
  }
  // ... and these bytes are new ones.
  void made(size_t begin, size_t end, bool plain) {
    if (plain) add(begin, end);
  }
  std::vector<TextRange> take() { return std::move(to_); }

 private:
  std::vector<TextRange>::const_iterator behind(size_t begin) const {
    return std::partition_point(from_.begin(), from_.end(),
                                [&](const TextRange& range) { return range.end <= begin; });
  }
  void add(size_t begin, size_t end) {
    if (begin == end) return;
    if (!to_.empty() && to_.back().end == begin)
      to_.back().end = end;
    else
      to_.push_back({begin, end});
  }

  std::vector<TextRange> from_, to_;
};

}  // namespace wi
