#include "conversation.h"

#include <stdexcept>

namespace accuracy {

using namespace sample;

Template::Template(const Model& model) : model_(model) {
  const std::string one = "@@ONE@@", two = "@@TWO@@", three = "@@THREE@@";
  const std::string turn = render({one}), turns = render({one, two, three});
  const size_t content = turn.find(one), answer = turns.find(two), question = turns.find(three);
  if (content == std::string::npos || answer == std::string::npos || question == std::string::npos)
    throw std::runtime_error("the chat template drops a message");
  before_ = tokens(turn.substr(0, content), true);
  after_ = tokens(turn.substr(content + one.size()), true);
  between_ = tokens(turns.substr(answer + two.size(), question - answer - two.size()), true);
}

std::vector<int32_t> Template::opening(const std::string& document) const {
  std::vector<int32_t> all = before_;
  const std::vector<int32_t> text = tokens(document, false);
  all.insert(all.end(), text.begin(), text.end());
  return all;
}

std::vector<int32_t> Template::first_question(const std::string& text) const {
  std::vector<int32_t> all = tokens("\n\n" + text, false);
  all.insert(all.end(), after_.begin(), after_.end());
  return all;
}

std::vector<int32_t> Template::next_question(const std::string& text, int32_t last) const {
  std::vector<int32_t> all = between_;
  if (!all.empty() && all.front() == last) all.erase(all.begin());
  const std::vector<int32_t> question = tokens(text, false);
  all.insert(all.end(), question.begin(), question.end());
  all.insert(all.end(), after_.begin(), after_.end());
  return all;
}

std::string Template::render(const std::vector<std::string>& turns) const {
  std::vector<wi_chat_message> messages;
  for (size_t i = 0; i < turns.size(); i++) {
    auto message = sized<wi_chat_message>();
    message.role = i % 2 ? "assistant" : "user";
    message.content = turns[i].data();
    message.content_length = turns[i].size();
    messages.push_back(message);
  }
  auto params = sized<wi_chat_params>();
  params.flags = WI_CHAT_ADD_GENERATION_PROMPT;
  uint64_t length = 0;
  const auto* first = static_cast<const wi_chat_message*>(messages.data());
  const auto count = static_cast<uint64_t>(messages.size());
  call(wi_model_chat_render, model_.get(), first, count, &params, nullptr, 0, &length);
  std::string text(length, '\0');
  call(wi_model_chat_render, model_.get(), first, count, &params, text.data(), length, &length);
  return text;
}

std::vector<int32_t> Template::tokens(const std::string& text, bool special) const {
  return tokenize(model_, text, special ? WI_TOKENIZE_PARSE_SPECIAL : 0);
}

}  // namespace accuracy
