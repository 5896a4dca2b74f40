#include "character.h"

#include <algorithm>
#include <stdexcept>

namespace game {
namespace {

using namespace sample;

constexpr uint64_t kMostAnswerTokens = 128;

// Threads that stand back: a frame that wakes up gets its core at once, and they have what frames leave.
Runtime create_nice_runtime(int32_t threads, int32_t nice) {
  auto params = sized<wi_runtime_params>();
  params.threads = threads;
  params.nice = nice;
  wi_runtime* runtime = nullptr;
  call(wi_runtime_create, &params, &runtime);
  return Runtime(runtime, wi_runtime_release);
}

// A user's turn in the model's own chat template, up to where the answer begins.
std::vector<int32_t> user_turn(const Model& model, const std::string& text) {
  auto message = sized<wi_chat_message>();
  message.role = "user";
  message.content = text.data();
  message.content_length = text.size();
  auto params = sized<wi_chat_params>();
  params.flags = WI_CHAT_ADD_GENERATION_PROMPT;
  uint64_t count = 0;
  call(wi_model_chat_tokens, model.get(), &message, 1, &params, nullptr, 0, &count);
  std::vector<int32_t> tokens(count);
  call(wi_model_chat_tokens, model.get(), &message, 1, &params, tokens.data(), count, &count);
  return tokens;
}

}  // namespace

// To render the whole conversation for each question would be to make tokens of the document each time. What the
// template writes before and after a question is the same for all: found here by two that have nothing in common.
Character::Character(const std::string& model, int32_t threads, int32_t nice, const std::string& document)
    : runtime_(create_nice_runtime(threads, nice)),
      model_(open_model(runtime_, model)),
      memory_(create_session(model_, sized<wi_session_params>())),
      task_(nullptr, wi_task_release) {
  const std::string text = document.substr(0, document.find_last_not_of('\n') + 1) + "\n\n";
  opening_ = user_turn(model_, text + "What");
  std::vector<int32_t> other = user_turn(model_, text + "0?");
  opening_.erase(std::mismatch(opening_.begin(), opening_.end(), other.begin(), other.end()).first,
                 opening_.end());

  closing_ = user_turn(model_, "What");
  other = user_turn(model_, "0?");
  const auto differs = std::mismatch(closing_.rbegin(), closing_.rend(), other.rbegin(), other.rend()).first;
  closing_.erase(closing_.begin(), differs.base());
  warn_beyond_model("game_loop", model_, opening_.size() + closing_.size(), kMostAnswerTokens);
}

// A task writes at least a token; this one is cut off again.
void Character::read() { begin(memory_.get(), opening_, 1); }

// Tokens of the question alone: whatever a player types, <|end|> too, is text.
void Character::ask(std::string_view question) {
  std::vector<int32_t> prompt = tokenize(model_, question, 0);
  prompt.insert(prompt.end(), closing_.begin(), closing_.end());
  answer_.clear();
  const Session fork = sample::fork(memory_);  // the task keeps it
  begin(fork.get(), prompt, kMostAnswerTokens);
}

void Character::begin(wi_session* session, const std::vector<int32_t>& prompt, uint64_t max_tokens) {
  auto params = sized<wi_task_params>();
  params.tokens = prompt.data();
  params.token_count = prompt.size();
  params.max_tokens = max_tokens;
  wi_task* task = nullptr;
  call(wi_task_submit, session, &params, &task);
  task_.reset(task);
}

void Character::look() {
  if (!task_) return;
  wi_event events[16];
  for (wi_event& event : events) event = sized<wi_event>();
  uint64_t count = 0;
  call(wi_task_poll, task_.get(), events, std::size(events), &count);
  for (uint64_t i = 0; i < count; ++i) {
    if (has_read_) answer_.append(events[i].text, events[i].text_length);
    if (events[i].kind != WI_EVENT_TOKEN) return end(events[i]);
  }
}

void Character::end(const wi_event& last) {
  if (last.kind == WI_EVENT_FAILED) {
    auto info = sized<wi_task_info>();
    call(wi_task_get_info, task_.get(), &info);
    throw std::runtime_error(info.message);
  }
  task_.reset();
  if (has_read_) return;
  call(wi_session_truncate, memory_.get(), opening_.size());
  has_read_ = true;
}

}  // namespace game
