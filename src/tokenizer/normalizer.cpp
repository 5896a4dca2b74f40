// One pass over the text for each step.
#include "src/tokenizer/normalizer.h"

#include <algorithm>

#include "src/tokenizer/unicode_form.h"

namespace wi {
namespace {

constexpr size_t kBlock = 4096;  // bytes between two looks at the cancel flag

void append(std::string_view text, std::string* out, Poll& poll) {
  while (!text.empty()) {
    const std::string_view block = text.substr(0, kBlock);
    out->append(block);
    text.remove_prefix(block.size());
    poll(block.size());
  }
}

std::string replace(std::string_view text, const std::string& from, const std::string& to, Poll& poll) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t at = 0; at < text.size();) {
    // find() within a block and what a match that begins there may need
    const size_t found = text.substr(0, std::min(text.size(), at + kBlock + from.size() - 1)).find(from, at);
    const size_t end = std::min({found, at + kBlock, text.size()});
    append(text.substr(at, end - at), &out, poll);
    at = end;
    if (found == end) {
      out += to;
      at += from.size();
      poll(to.size());
    }
  }
  return out;
}

std::string prepend(std::string_view text, const std::string& mark, Poll& poll) {
  std::string out;
  out.reserve(mark.size() + text.size());
  out += mark;
  append(text, &out, poll);
  return out;
}

}  // namespace

std::string_view Normalizer::apply(std::string_view piece, bool first, std::string* buffer,
                                   Poll& poll) const {
  if (piece.empty()) return piece;
  using Kind = RewriteStep::Kind;
  std::string_view text = piece;
  const auto now = [&](std::string changed) {
    *buffer = std::move(changed);
    text = *buffer;
  };
  for (const RewriteStep& step : steps_) {
    switch (step.kind) {
      case Kind::nfc:
        now(to_form(text, UnicodeForm::nfc, poll));
        break;
      case Kind::nfd:
        now(to_form(text, UnicodeForm::nfd, poll));
        break;
      case Kind::nfkc:
        now(to_form(text, UnicodeForm::nfkc, poll));
        break;
      case Kind::nfkd:
        now(to_form(text, UnicodeForm::nfkd, poll));
        break;
      case Kind::replace:
        now(replace(text, step.from, step.to, poll));
        break;
      case Kind::prepend:
        if (!text.empty()) now(prepend(text, step.to, poll));
        break;
      case Kind::prepend_first:
        if (!first) break;
        [[fallthrough]];
      case Kind::prepend_missing:
        if (!text.empty() && !text.starts_with(step.to)) now(prepend(text, step.to, poll));
        break;
    }
  }
  return text;
}

}  // namespace wi
