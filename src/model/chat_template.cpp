// Which family a template belongs to is told by the marks in its text; what varies inside a family (a default
// system prompt, spaces around [INST], trimming, thinking) is read from the text too, when it is rendered.
#include "src/model/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "src/error.h"
#include "src/model/chat_text.h"

namespace wi {
namespace {

using Family = ChatTemplate::Family;
using Messages = std::span<const ChatMessage>;

// A template at work: its text, the marks in it, and the two tokens it may print.
struct Source {
  std::string_view text, bos, eos;
  bool has(std::string_view mark) const { return text.find(mark) != std::string_view::npos; }
  bool trims() const { return has("| trim") || has("|trim") || has(".strip()"); }
  std::string_view content(const ChatMessage& message) const {
    return trims() ? python_strip(message.content) : message.content;
  }
  std::string_view leading_bos() const { return has("bos_token") ? bos : std::string_view(); }
};

std::string with_newlines(std::string_view jinja);
std::string render_chatml(const Source& source, Messages messages, bool prompt);
std::string render_llama2(const Source& source, Messages messages);
std::string render_llama3(const Source& source, Messages messages, bool prompt);
std::string render_mistral(const Source& source, Messages messages);
std::string render_deepseek(const Source& source, Messages messages, bool prompt);
std::string render_tagged(const Source& source, Messages messages, bool prompt);

}  // namespace

ChatTemplate ChatTemplate::recognise(std::string_view jinja, std::string_view bos, std::string_view eos) {
  ChatTemplate result;
  result.source_ = with_newlines(jinja);
  result.bos_ = bos;
  result.eos_ = eos;
  const Source source{result.source_, bos, eos};
  if (source.has("<|im_start|>") && source.has("<|im_end|>"))
    result.family_ = Family::chatml;
  else if (source.has("<|start_header_id|>") && source.has("<|eot_id|>"))
    result.family_ = Family::llama3;
  else if (source.has("[INST]") && source.has("<<SYS>>"))
    result.family_ = Family::llama2;
  else if (source.has("[INST]") && !source.has("[SYSTEM_PROMPT]"))
    result.family_ = Family::mistral;
  else if ((source.has("<｜User｜>") && source.has("<｜Assistant｜>")) ||
           (source.has("'User: ' + message['content'] + '\n\n'") &&
            source.has("'Assistant: ' + message['content'] + eos_token")))
    result.family_ = Family::deepseek;
  else if ((source.has("'<|' + message['role'] + '|>") && source.has("<|end|>\n")) ||
           source.has("'<|user|>\n' + message['content'] + eos_token"))
    result.family_ = Family::tagged;
  return result;
}

const char* ChatTemplate::family_name() const {
  switch (family_) {
    case Family::none:
      return "";
    case Family::chatml:
      return "chatml";
    case Family::llama2:
      return "llama-2";
    case Family::llama3:
      return "llama-3";
    case Family::mistral:
      return "mistral";
    case Family::deepseek:
      return "deepseek";
    case Family::tagged:
      return "tagged";
  }
  return "";
}

std::string ChatTemplate::render(Messages messages, bool add_generation_prompt) const {
  check(family_ != Family::none, WI_E_UNSUPPORTED, "the model's chat template is ",
        source_.empty() ? "missing" : "of no family this library knows",
        "; write the prompt in the model's own format and pass it as plain text with special tokens parsed "
        "(wi_ask: --raw)");
  check(!messages.empty(), WI_E_ARGUMENT, "messages is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    check(role == "system" || role == "user" || role == "assistant", WI_E_ARGUMENT, "messages[", i,
          "].role is \"", role, "\", must be system, user or assistant");
    const bool late = role == "system" && i > 0;
    const bool anywhere = family_ == Family::chatml || family_ == Family::tagged || family_ == Family::llama3;
    check(!late || anywhere, WI_E_ARGUMENT, "messages[", i, "].role is system, ", family_name(),
          " takes it only first");
  }
  const Source source{source_, bos_, eos_};
  switch (family_) {
    case Family::chatml:
      return render_chatml(source, messages, add_generation_prompt);
    case Family::llama2:
      return render_llama2(source, messages);
    case Family::llama3:
      return render_llama3(source, messages, add_generation_prompt);
    case Family::mistral:
      return render_mistral(source, messages);
    case Family::deepseek:
      return render_deepseek(source, messages, add_generation_prompt);
    default:
      return render_tagged(source, messages, add_generation_prompt);
  }
}

namespace {

// Some files write a newline in a literal as \n, some as itself: to the marks below both are the latter.
std::string with_newlines(std::string_view jinja) {
  std::string text;
  for (size_t at = 0; at < jinja.size(); ++at) {
    const bool escaped = jinja.substr(at, 2) == "\\n";
    text += escaped ? '\n' : jinja[at];
    at += escaped;
  }
  return text;
}

// Llama 2 and Mistral: user and assistant take turns after the system message, if there is one.
void check_turns(Messages turns, size_t first, std::string_view family) {
  for (size_t i = 0; i < turns.size(); ++i)
    check((turns[i].role == "user") == (i % 2 == 0), WI_E_ARGUMENT, "messages[", first + i, "].role is ",
          turns[i].role, ", ", family, " takes user and assistant in turn");
}

// The system prompt that a chatml template writes itself where the conversation has none (Qwen2.5).
std::optional<std::string> default_system(std::string_view text) {
  constexpr std::string_view opening = "<|im_start|>system\n", closing = "<|im_end|>";
  for (size_t at = 0; (at = text.find(opening, at)) != std::string_view::npos; ++at) {
    const size_t begin = at + opening.size(), end = text.find(closing, begin);
    if (end == std::string_view::npos) break;
    const std::string_view inside = text.substr(begin, end - begin);
    const char before = at > 0 ? text[at - 1] : '\0';
    if ((before != '\'' && before != '"') || inside.find(before) != std::string_view::npos) continue;
    return jinja_literal(concat(before, inside, before), 0);
  }
  return std::nullopt;
}

// Qwen3: an answer's thoughts are shown only behind the last question, where an empty thought is written out.
std::string thinking_answer(std::string_view content, bool behind_last_question, bool last) {
  constexpr std::string_view open = "<think>", close = "</think>";
  const auto strip = [](std::string_view text, bool front, bool back) {
    while (front && text.starts_with('\n')) text.remove_prefix(1);
    while (back && text.ends_with('\n')) text.remove_suffix(1);
    return text;
  };
  std::string_view thought;
  if (const size_t first = content.find(close); first != std::string_view::npos) {
    thought = strip(content.substr(0, first), false, true);
    if (const size_t start = thought.rfind(open); start != std::string_view::npos)
      thought.remove_prefix(start + open.size());
    thought = strip(thought, true, false);
    content = strip(content.substr(content.rfind(close) + close.size()), true, false);
  }
  if (!behind_last_question || (!last && thought.empty())) return std::string(content);
  return concat("<think>\n", strip(thought, true, true), "\n</think>\n\n", strip(content, true, false));
}

std::string render_chatml(const Source& source, Messages messages, bool prompt) {
  std::string text(source.leading_bos());
  // Yi-1.5 prints the system message bare and opens the answer with the question.
  const bool yi = source.has("content + '<|im_end|>\n<|im_start|>assistant\n'");
  const bool thinks = source.has("</think>");
  if (const auto system = default_system(source.text); system && messages[0].role != "system")
    text += concat("<|im_start|>system\n", *system, "<|im_end|>\n");
  size_t last_question = messages.size() - 1;
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == "user") last_question = i;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::string_view content = thinks ? message.content : source.content(message);
    if (yi && message.role == "system")
      text += i == 0 ? content : std::string_view();
    else if (yi && message.role == "assistant")
      text += concat(content, "<|im_end|>\n");
    else if (thinks && message.role == "assistant")
      text += concat("<|im_start|>assistant\n",
                     thinking_answer(content, i > last_question, i + 1 == messages.size()), "<|im_end|>\n");
    else
      text += concat("<|im_start|>", message.role, '\n', content, "<|im_end|>\n",
                     yi ? "<|im_start|>assistant\n" : "");
  }
  if (prompt && !yi) text += "<|im_start|>assistant\n";
  return text;
}

std::string render_llama2(const Source& source, Messages messages) {
  std::string system;
  const bool has_system = messages[0].role == "system";
  if (has_system) system = concat("<<SYS>>\n", messages[0].content, "\n<</SYS>>\n\n");
  const Messages turns = messages.subspan(has_system);
  check_turns(turns, has_system, "llama-2");
  std::string text;
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string content = concat(i == 0 ? system : std::string(), turns[i].content);
    if (turns[i].role == "user")
      text += concat(source.bos, "[INST] ", python_strip(content), " [/INST]");
    else
      text += concat(' ', python_strip(content), ' ', source.eos);
  }
  return text;
}

// The literal behind `date_string = ` in Llama 3.1's template. 3.2's takes today's date where the host has a
// clock to offer; here it is always the one written down, so that a prompt is the same every day.
std::string written_date(const Source& source) {
  constexpr std::string_view name = "date_string = ";
  for (size_t at = 0; (at = source.text.find(name, at)) != std::string_view::npos; ++at) {
    const size_t quote = at + name.size();
    if (quote < source.text.size() && (source.text[quote] == '"' || source.text[quote] == '\''))
      if (const auto date = jinja_literal(source.text, quote)) return *date;
  }
  return "26 Jul 2024";
}

std::string render_llama3(const Source& source, Messages messages, bool prompt) {
  const auto turn = [&](std::string_view role, std::string_view content) {
    return concat("<|start_header_id|>", role, "<|end_header_id|>\n\n", content, "<|eot_id|>");
  };
  std::string text(source.leading_bos());
  if (source.has("Cutting Knowledge Date: December 2023")) {
    const bool has_system = messages[0].role == "system";
    const std::string_view system = has_system ? source.content(messages[0]) : std::string_view();
    text += turn("system", concat("Cutting Knowledge Date: December 2023\nToday Date: ", written_date(source),
                                  "\n\n", system));
    messages = messages.subspan(has_system);
  }
  for (const ChatMessage& message : messages) text += turn(message.role, source.content(message));
  if (prompt || !source.has("add_generation_prompt"))
    text += "<|start_header_id|>assistant<|end_header_id|>\n\n";
  return text;
}

// Mistral's versions differ in spaces only, so its own sums are evaluated.
std::string render_mistral(const Source& source, Messages messages) {
  using Words = std::initializer_list<std::string_view>;
  const auto expression = [&](Words with, Words without) {
    return jinja_expression(source.text, std::span(with.begin(), with.size()),
                            std::span(without.begin(), without.size()));
  };
  const auto user = expression({"[INST]", "content"}, {"system_message"});
  const auto first = expression({"[INST]", "content", "system_message"}, {});
  const auto assistant = expression({"eos_token", "content"}, {"[INST]", "system_message"});
  const bool has_system = messages[0].role == "system";
  check(!has_system || first, WI_E_ARGUMENT, "messages[0].role is system, this model's template takes none");
  const Messages turns = messages.subspan(has_system);
  check_turns(turns, has_system, "mistral");
  const bool at_end = source.has("loop.last and system_message");

  std::string text(source.leading_bos());
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool carries_system = has_system && turns[i].role == "user" && i == (at_end ? turns.size() - 1 : 0);
    const std::string_view content = turns[i].content,
                           system = has_system ? messages[0].content : std::string_view();
    const std::pair<std::string_view, std::string_view> values[] = {
        {"message['content']", content}, {"message[\"content\"]", content},
        {"message.content", content},    {"content", content},
        {"system_message", system},      {"eos_token", source.eos},
        {"bos_token", source.bos}};
    const auto& sum = turns[i].role == "assistant" ? assistant : carries_system ? first : user;
    const auto printed = sum ? jinja_sum(*sum, values) : std::nullopt;
    check(printed.has_value(), WI_E_UNSUPPORTED,
          "the model's chat template looks like mistral's, but how it prints ", turns[i].role,
          " messages is not understood; pass a ready prompt as plain text (wi_ask: --raw)");
    text += *printed;
  }
  return text;
}

std::string render_deepseek(const Source& source, Messages messages, bool prompt) {
  std::string text(source.leading_bos());
  const bool plain = !source.has("<｜User｜>");  // deepseek-llm: User: and Assistant:
  for (const ChatMessage& message : messages) {
    std::string_view content = message.content;
    constexpr std::string_view close = "</think>";
    if (message.role == "system") {
      text += concat(content, plain ? "\n\n" : "");
    } else if (message.role == "user") {
      text += plain ? concat("User: ", content, "\n\n") : concat("<｜User｜>", content);
    } else if (plain) {
      text += concat("Assistant: ", content, source.eos);
    } else {
      const size_t thought = source.has(close) ? content.rfind(close) : std::string_view::npos;
      if (thought != std::string_view::npos) content.remove_prefix(thought + close.size());
      text += concat("<｜Assistant｜>", content, "<｜end▁of▁sentence｜>");
    }
  }
  if (!prompt) return text;
  if (plain) return text + "Assistant:";
  return text + "<｜Assistant｜>" + (source.has("<｜Assistant｜><think>\n") ? "<think>\n" : "");
}

std::string render_tagged(const Source& source, Messages messages, bool prompt) {
  std::string text(source.leading_bos());
  const std::string_view end = source.has("<|end|>\n") ? std::string_view("<|end|>") : source.eos;
  for (const ChatMessage& message : messages)
    text += concat("<|", message.role, "|>\n", source.content(message), end, '\n');
  if (prompt) text += "<|assistant|>\n";
  return text;
}

}  // namespace
}  // namespace wi
