// The prompt of wi_ask. The library renders and tokenises each conversation as a whole, so that a document or
// a question that spells a control token stays text, whatever the template.
#include "ask_prompt.h"

#include <algorithm>
#include <stdexcept>

namespace sample {
namespace {

void check_template(const Model& model, const std::string& path);
std::vector<int32_t> user_turn(const Model& model, const std::string& content);

}  // namespace

Prompt::Prompt(const Model& model, const AskOptions& options) {
  std::string document = read_file(options.document);
  if (!options.raw) {
    check_template(model, options.model);
    document.erase(document.find_last_not_of('\n') + 1);
  }
  if (document.empty()) throw std::runtime_error(options.document + " holds no text");

  const uint32_t flags = options.raw ? WI_TOKENIZE_PARSE_SPECIAL | WI_TOKENIZE_ADD_BOS : 0;
  std::vector<int32_t> tokens = tokenize(model, document, flags);
  const auto limit = static_cast<size_t>(options.document_tokens);
  if (limit > 0 && tokens.size() > limit) {
    tokens.resize(limit);
    document = detokenize(model, tokens, WI_DETOKENIZE_KEEP_SPECIAL);
  }
  document_tokens_ = tokens.size();
  if (options.raw)
    read_raw(model, options, std::move(tokens));
  else
    read_chat(model, options, document);
}

void Prompt::read_raw(const Model& model, const AskOptions& options, std::vector<int32_t> document) {
  opening_ = std::move(document);
  for (const Question& question : options.questions)
    questions_[question.text] = tokenize(model, question.text, WI_TOKENIZE_PARSE_SPECIAL);
}

void Prompt::read_chat(const Model& model, const AskOptions& options, const std::string& document) {
  // A conversation about nothing, so that a single question has something to share its beginning with.
  opening_ = user_turn(model, document + "\n\n");
  for (const Question& question : options.questions) {
    std::vector<int32_t>& tokens = questions_[question.text];
    tokens = user_turn(model, document + "\n\n" + question.text);
    const auto differs = std::mismatch(opening_.begin(), opening_.end(), tokens.begin(), tokens.end());
    opening_.erase(differs.first, opening_.end());
  }
  if (opening_.empty()) throw std::runtime_error("the chat template drops the user's message");
  for (auto& [text, tokens] : questions_)
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(opening_.size()));
}

uint64_t Prompt::most_tokens() const {
  size_t longest = 0;
  for (const auto& [text, tokens] : questions_) longest = std::max(longest, tokens.size());
  return opening_.size() + longest;
}

namespace {

void check_template(const Model& model, const std::string& path) {
  auto info = sized<wi_model_info>();
  call(wi_model_get_info, model.get(), &info);
  if (info.chat_family[0]) return;
  throw std::runtime_error(
      path + " has no chat template; with --raw, document and question are taken as a ready prompt");
}

std::vector<int32_t> user_turn(const Model& model, const std::string& content) {
  auto message = sized<wi_chat_message>();
  message.role = "user";
  message.content = content.data();
  message.content_length = content.size();
  auto params = sized<wi_chat_params>();
  params.flags = WI_CHAT_ADD_GENERATION_PROMPT;
  uint64_t count = 0;
  call(wi_model_chat_tokens, model.get(), &message, 1, &params, nullptr, 0, &count);
  std::vector<int32_t> tokens(count);
  call(wi_model_chat_tokens, model.get(), &message, 1, &params, tokens.data(), count, &count);
  return tokens;
}

}  // namespace
}  // namespace sample
