// One pass over the text for each step.
#include "src/tokenizer/normalizer.h"

#include <algorithm>
#include <optional>

#include "src/error.h"
#include "src/tokenizer/plain_trace.h"
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

// Of what is replaced, bytes that are the same at either end keep their place: "> " that becomes ">_" leaves
// the end of a control token as it is. All between them is plain if any byte of it was.
class Replacing {
 public:
  Replacing(const RewriteStep& step, PlainTrace* trace) : step_(step), trace_(trace) {
    const std::string &from = step.from, &to = step.to;
    const size_t shorter = std::min(from.size(), to.size());
    while (same_first_ < shorter && from[same_first_] == to[same_first_]) ++same_first_;
    while (same_last_ < shorter - same_first_ &&
           from[from.size() - same_last_ - 1] == to[to.size() - same_last_ - 1])
      ++same_last_;
  }

  void put(size_t at, std::string* out) const {
    const size_t begin = out->size(), end = at + step_.from.size();
    *out += step_.to;
    if (!trace_) return;
    trace_->kept(at, at + same_first_, begin);
    trace_->made(begin + same_first_, out->size() - same_last_, trace_->touches(at, end));
    trace_->kept(end - same_last_, end, out->size() - same_last_);
  }

 private:
  const RewriteStep& step_;
  PlainTrace* const trace_;
  size_t same_first_ = 0, same_last_ = 0;
};

std::string replace(std::string_view text, const RewriteStep& step, RewriteCall& call, PlainTrace* trace) {
  const std::string& from = step.from;
  const Replacing replacing(step, trace);
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t at = 0; at < text.size();) {
    // find() within a block and what a match that begins there may need
    const size_t found = text.substr(0, std::min(text.size(), at + kBlock + from.size() - 1)).find(from, at);
    const size_t end = std::min({found, at + kBlock, text.size()});
    if (trace) trace->kept(at, end, out.size());
    append(text.substr(at, end - at), &out, call.poll);
    at = end;
    if (found == end) {
      replacing.put(at, &out);
      at += from.size();
      call.poll(step.to.size());
    }
    if (out.size() > text.size() && out.size() - text.size() > call.room) break;  // take_room() says why
  }
  return out;
}

std::string prepend(std::string_view text, const std::string& mark, Poll& poll, PlainTrace* trace) {
  std::string out;
  out.reserve(mark.size() + text.size());
  out += mark;
  if (trace) trace->kept(0, text.size(), mark.size());
  append(text, &out, poll);
  return out;
}

void take_room(size_t before, size_t after, RewriteCall* call) {
  if (after <= before) return;
  check(after - before <= call->room, WI_E_UNSUPPORTED, "the file's normalizer makes a text of ", before,
        " bytes at least ", after - before, " longer, which is more than is granted");
  call->room -= after - before;
}

std::string rewrite(const RewriteStep& step, std::string_view text, RewriteCall& call, PlainTrace* trace) {
  using Kind = RewriteStep::Kind;
  switch (step.kind) {
    case Kind::nfc:
      return to_form(text, UnicodeForm::nfc, call.poll, trace);
    case Kind::nfd:
      return to_form(text, UnicodeForm::nfd, call.poll, trace);
    case Kind::nfkc:
      return to_form(text, UnicodeForm::nfkc, call.poll, trace);
    case Kind::nfkd:
      return to_form(text, UnicodeForm::nfkd, call.poll, trace);
    case Kind::replace:
      return replace(text, step, call, trace);
    default:
      return prepend(text, step.to, call.poll, trace);
  }
}

bool changes(const RewriteStep& step, std::string_view text, bool first) {
  using Kind = RewriteStep::Kind;
  if (step.kind == Kind::prepend_first && !first) return false;
  const bool unless_there = step.kind == Kind::prepend_first || step.kind == Kind::prepend_missing;
  return !text.empty() && !(unless_there && text.starts_with(step.to));
}

}  // namespace

std::string_view Normalizer::apply(std::string_view piece, bool first, std::string* buffer, RewriteCall& call,
                                   std::vector<TextRange>* plain) const {
  std::string_view text = piece;
  for (const RewriteStep& step : steps_) {
    if (!changes(step, text, first)) continue;
    std::optional<PlainTrace> trace;
    if (plain) trace.emplace(std::move(*plain));
    std::string changed = rewrite(step, text, call, plain ? &*trace : nullptr);
    take_room(text.size(), changed.size(), &call);
    if (plain) *plain = trace->take();
    *buffer = std::move(changed);
    text = *buffer;
  }
  return text;
}

}  // namespace wi
