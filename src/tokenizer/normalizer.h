// What a tokenizer.json does to text before it is cut into words, as a list of steps: Unicode forms, and
// replacing and prepending of marks (Metaspace's U+2581 among them).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/text_range.h"
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

// What rewriting the pieces of one text may take. A file's steps may double a text each; no real ones make
// more of it than a few times its bytes.
struct RewriteCall {
  static constexpr size_t kGrowthPerByte = 64, kFreeGrowth = size_t{1} << 20;
  static RewriteCall of_text(size_t bytes, Poll& poll) {
    return {poll, kGrowthPerByte * bytes + kFreeGrowth};
  }

  Poll& poll;
  size_t room;  // bytes by which steps may still make a piece longer, all of them together
};

class Normalizer {
 public:
  explicit Normalizer(std::vector<RewriteStep> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }

  // A piece of the text; first: that with which it begins. An empty one stays empty. The result is the piece
  // itself where nothing changes, else lies in *buffer. plain, if there is one: ranges of the piece, which
  // become those of the result that have anything of them in it. Throws WI_E_UNSUPPORTED where there is no
  // room.
  std::string_view apply(std::string_view piece, bool first, std::string* buffer, RewriteCall& call,
                         std::vector<TextRange>* plain = nullptr) const;

 private:
  std::vector<RewriteStep> steps_;
};

}  // namespace wi
