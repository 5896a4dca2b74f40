// What a tokenizer.json does to text before it is cut into words, as a list of steps: Unicode forms, and
// replacing and prepending of marks (Metaspace's U+2581 among them).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/poll.h"

namespace wi {

struct RewriteStep {
  enum class Kind {
    nfc,
    nfd,
    nfkc,
    nfkd,
    replace,          // every `from` becomes `to`
    prepend,          // `to` comes first
    prepend_missing,  // likewise, unless the text begins with it
    prepend_first,    // likewise, and only where the whole text begins
  } kind;
  std::string from, to;
  bool operator==(const RewriteStep&) const = default;
};

class Normalizer {
 public:
  explicit Normalizer(std::vector<RewriteStep> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }

  // A piece of the text; first: that with which it begins. An empty one stays empty. The result is the piece
  // itself where nothing changes, else lies in *buffer.
  std::string_view apply(std::string_view piece, bool first, std::string* buffer, Poll& poll) const;

 private:
  std::vector<RewriteStep> steps_;
};

}  // namespace wi
