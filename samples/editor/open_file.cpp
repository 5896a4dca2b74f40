#include "open_file.h"

#include <algorithm>
#include <array>

namespace editor {
namespace {

using namespace sample;

// A cursor that stands within so many tokens of the last cut has not moved: something was typed or deleted.
constexpr size_t kNear = 64;
// When so much was typed since, the cut is made anew behind it.
constexpr size_t kTyped = 32;

size_t common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

OpenFile::OpenFile(const Model& model, const Options& options, std::string text)
    : model_(model),
      options_(options),
      text_(std::move(text)),
      file_(create_session(model, options.session)),
      cut_(nullptr, wi_session_release),
      keystroke_(nullptr, wi_session_release),
      task_(nullptr, wi_task_release) {}

void OpenFile::change(std::string text) {
  forget();
  text_ = std::move(text);
  file_current_ = false;
  if (task_reads_) wi_task_cancel(task_.get());  // what it has read so far stays
}

void OpenFile::want(size_t cursor) {
  forget();
  wanted_ = cursor;
}

void OpenFile::forget() {
  wanted_.reset();
  if (task_ && !task_reads_) drop_task();
}

std::optional<Completion> OpenFile::advance() {
  if (task_) {
    const std::optional<int32_t> last = take_events();
    if (!last) return std::nullopt;
    if (!task_reads_) return end_writing(*last == WI_EVENT_FAILED ? failure() : std::string());
    // What cannot be read says so when a completion needs it.
    end_reading(*last != WI_EVENT_CANCELLED);
  }
  if (!wanted_) {
    if (!file_was_read_ && !file_current_) read_file();
    return std::nullopt;
  }
  const Tokens before = tokens_of(std::string_view(text_).substr(0, *wanted_));
  if (before.empty()) {
    wanted_.reset();
    return Completion{};
  }
  if (!near_cut(before) && !settle(before)) {
    read_file();
    if (task_) return std::nullopt;
    settle(before);
  }
  write(before);
  return std::nullopt;
}

bool OpenFile::near_cut(const Tokens& before) const {
  if (!cut_) return false;
  const size_t same = common(cut_tokens_, before);
  return cut_tokens_.size() - same <= kNear && before.size() - same <= kNear;
}

// Cuts where the cursor is. False: the file has to be read first, as it is now.
bool OpenFile::settle(const Tokens& before) {
  const size_t same = common(file_tokens_, before);
  if (!file_current_ && (!file_was_read_ || before.size() - same > kNear)) return false;
  Session cut = fork(file_);
  call(wi_session_truncate, cut.get(), same);
  cut_ = std::move(cut);
  cut_tokens_.assign(before.begin(), before.begin() + static_cast<ptrdiff_t>(same));
  return true;
}

// A task writes at least a token; this one is cut off again.
void OpenFile::read_file() {
  const Tokens tokens = tokens_of(text_);
  warned_ = warned_ || warn_beyond_model("editor", model_, tokens.size(), options_.most_tokens);
  const size_t same = common(file_tokens_, tokens);
  call(wi_session_truncate, file_.get(), same);
  file_tokens_.resize(same);
  file_current_ = true;
  if (same == tokens.size()) return;
  submit(file_, tokens, same, 1);
  task_reads_ = true;
  file_tokens_given_ += tokens.size() - same;
  file_tokens_ = tokens;
}

void OpenFile::end_reading(bool whole) {
  drop_task();
  file_was_read_ = file_was_read_ || whole;
  uint64_t count = 0;
  call(wi_session_tokens, file_.get(), nullptr, 0, &count);
  file_tokens_.resize(std::min<size_t>(count, file_tokens_.size()));
  call(wi_session_truncate, file_.get(), file_tokens_.size());
}

void OpenFile::write(const Tokens& before) {
  const size_t same = common(cut_tokens_, before);
  keystroke_ = fork(cut_);
  call(wi_session_truncate, keystroke_.get(), same);
  submit(keystroke_, before, same, options_.most_tokens);
  keystroke_tokens_ = before;
  completion_ = {};
  completion_.kept_tokens = same;
  completion_.read_tokens = before.size() - same;
}

Completion OpenFile::end_writing(std::string failure) {
  drop_task();
  wanted_.reset();
  completion_.failure = std::move(failure);
  const Session keystroke = std::exchange(keystroke_, Session(nullptr, wi_session_release));
  if (completion_.failure.empty() && completion_.read_tokens > kTyped) {
    Session cut = fork(keystroke);
    call(wi_session_truncate, cut.get(), keystroke_tokens_.size());
    cut_ = std::move(cut);
    cut_tokens_ = std::move(keystroke_tokens_);
  }
  return std::exchange(completion_, {});
}

OpenFile::Tokens OpenFile::tokens_of(std::string_view text) const {
  return tokenize(model_, text, WI_TOKENIZE_ADD_BOS);
}

void OpenFile::submit(const Session& session, const Tokens& tokens, size_t from, uint64_t most_tokens) {
  const wi_text stop{"\n", 1};
  auto sampling = sized<wi_sampling_params>();
  sampling.stops = &stop;
  sampling.stop_count = 1;
  auto params = sized<wi_task_params>();
  params.tokens = tokens.data() + from;
  params.token_count = tokens.size() - from;
  params.max_tokens = most_tokens;
  params.sampling = &sampling;
  wi_task* task = nullptr;
  call(wi_task_submit, session.get(), &params, &task);
  task_.reset(task);
  task_reads_ = false;
  call(wi_task_get_fd, task, &descriptor_);
}

// Released before its end, a task is cancelled.
void OpenFile::drop_task() {
  task_.reset();
  task_reads_ = false;
  descriptor_ = -1;
}

// The kind of the last event, when it is there.
std::optional<int32_t> OpenFile::take_events() {
  std::array<wi_event, 16> events;
  events.fill(sized<wi_event>());
  for (uint64_t count = 1; count > 0;) {
    call(wi_task_poll, task_.get(), events.data(), events.size(), &count);
    for (uint64_t i = 0; i < count; ++i) {
      if (!task_reads_) completion_.text.append(events[i].text, events[i].text_length);
      if (events[i].kind != WI_EVENT_TOKEN) return events[i].kind;
    }
  }
  return std::nullopt;
}

std::string OpenFile::failure() const {
  auto info = sized<wi_task_info>();
  call(wi_task_get_info, task_.get(), &info);
  return info.message;
}

}  // namespace editor
