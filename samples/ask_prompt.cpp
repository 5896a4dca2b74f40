// The prompt of wi_ask. The template is whatever the library renders around a mark, so that this works for
// every family the library knows.
#include "ask_prompt.h"

#include <stdexcept>

namespace sample {
namespace {

std::string render_user_turn(const Model& model, const std::string& content);

}  // namespace

Prompt::Prompt(const Model& model, const AskOptions& options) {
  std::string document = read_file(options.document);
  uint32_t document_flags = 0;
  if (options.raw) {
    text_flags_ = WI_TOKENIZE_PARSE_SPECIAL;
    document_flags = WI_TOKENIZE_PARSE_SPECIAL | WI_TOKENIZE_ADD_BOS;
  } else {
    split_template(model, options.model);
    separator_ = "\n\n";
    document.erase(document.find_last_not_of('\n') + 1);
  }
  if (document.empty()) throw std::runtime_error(options.document + " holds no text");

  std::vector<int32_t> tokens = tokenize(model, document, document_flags);
  auto limit = static_cast<size_t>(options.document_tokens);
  if (limit > 0 && tokens.size() > limit) tokens.resize(limit);
  document_tokens_ = tokens.size();
  opening_.insert(opening_.end(), tokens.begin(), tokens.end());
}

std::vector<int32_t> Prompt::question(const Model& model, const std::string& text) const {
  std::vector<int32_t> tokens = tokenize(model, separator_ + text, text_flags_);
  tokens.insert(tokens.end(), closing_.begin(), closing_.end());
  return tokens;
}

void Prompt::split_template(const Model& model, const std::string& model_path) {
  auto info = sized<wi_model_info>();
  call(wi_model_get_info, model.get(), &info);
  if (!info.chat_family[0]) {
    throw std::runtime_error(model_path +
                             " has no chat template that this library knows; with --raw, document and "
                             "question are taken as a ready prompt");
  }
  const std::string mark = "@@CONTENT@@";
  std::string turn = render_user_turn(model, mark);
  size_t split = turn.find(mark);
  if (split == std::string::npos) throw std::runtime_error("the chat template drops the user's message");
  opening_ = tokenize(model, std::string_view(turn).substr(0, split), WI_TOKENIZE_PARSE_SPECIAL);
  closing_ = tokenize(model, std::string_view(turn).substr(split + mark.size()), WI_TOKENIZE_PARSE_SPECIAL);
}

namespace {

std::string render_user_turn(const Model& model, const std::string& content) {
  auto message = sized<wi_chat_message>();
  message.role = "user";
  message.content = content.data();
  message.content_length = content.size();
  uint64_t length = 0;
  call(wi_model_chat_render, model.get(), &message, 1, WI_CHAT_ADD_GENERATION_PROMPT, nullptr, 0, &length);
  std::string text(length, '\0');
  call(wi_model_chat_render, model.get(), &message, 1, WI_CHAT_ADD_GENERATION_PROMPT, text.data(), length,
       &length);
  return text;
}

}  // namespace
}  // namespace sample
