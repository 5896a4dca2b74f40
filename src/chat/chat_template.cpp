#include "src/chat/chat_template.h"

#include <algorithm>

#include "src/chat/interpreter.h"
#include "src/chat/json_value.h"
#include "src/chat/parser.h"

namespace wi {

using chat::Dict;
using chat::Kind;
using chat::Text;
using chat::Value;

namespace {

using Variables = std::vector<std::pair<std::string, Value>>;

Value message_value(const ChatMessage& message, size_t index);
Value with_reasoning(const Dict& message);
Value host_json(std::string_view json, const char* name, Kind kind);
uint64_t bytes_of(const ChatRequest& request);

}  // namespace

Text ChatTemplate::render(const ChatRequest& request, std::string* literals) const {
  const bool with_tools = !request.tools_json.empty();
  const std::string& source = choose(with_tools);
  const uint64_t bytes = bytes_of(request);
  check(bytes <= chat::limits::kInputBytes, WI_E_ARGUMENT, "messages, tools and variables have ", bytes,
        " bytes, at most ", chat::limits::kInputBytes, " are taken");
  check(!request.messages.empty(), WI_E_ARGUMENT, "messages is empty");
  std::vector<Value> messages;
  messages.reserve(request.messages.size());
  for (size_t i = 0; i < request.messages.size(); ++i)
    messages.push_back(message_value(request.messages[i], i));

  Variables variables;
  for (const auto& [name, text] : specials_) variables.emplace_back(name, Value::of(Text(text)));
  variables.emplace_back("messages", Value::of(std::move(messages)));
  variables.emplace_back(
      "tools", with_tools ? host_json(request.tools_json, "tools_json", Kind::list) : Value::none());
  variables.emplace_back("documents", Value::none());
  variables.emplace_back("add_generation_prompt", Value::of(request.add_generation_prompt));
  if (!request.variables_json.empty()) {
    const Value more = host_json(request.variables_json, "variables_json", Kind::dict);
    for (const auto& [name, value] : more.dict().entries()) {
      const std::string_view text = name.text().bytes();
      check(text != "messages" && text != "tools" && text != "add_generation_prompt", WI_E_ARGUMENT,
            "variables_json has '", text, "', which has an argument of its own");
      check(text != "self", WI_E_ARGUMENT, "variables_json has 'self', which is the template itself");
      variables.emplace_back(text, value);
    }
  }
  try {
    const chat::Template program = chat::parse_template(source);
    if (literals) *literals = program.literals;
    chat::Budget budget(bytes, steps_);
    chat::Interpreter run(budget, request.now);
    return run.render(program, variables);
  } catch (const Error& error) {
    fail(error.code(), "the chat template, ", error.what());
  }
}

// As transformers does: the one for tools if there are any, else the default.
const std::string& ChatTemplate::choose(bool with_tools) const {
  check(!empty(), WI_E_UNSUPPORTED,
        "the model has no chat template; write the prompt in the model's own format "
        "and pass it as plain text with special tokens parsed (wi_ask: --raw)");
  const auto named = [&](std::string_view name) -> const std::string* {
    const auto found = std::find_if(templates_.begin(), templates_.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    return found == templates_.end() ? nullptr : &found->second;
  };
  const std::string* chosen = with_tools ? named("tool_use") : nullptr;
  if (!chosen) chosen = named("default");
  check(chosen, WI_E_UNSUPPORTED, "the model has ", templates_.size(),
        " chat templates, and none is called default");
  return *chosen;
}

namespace {

// A plain name chosen by the program, not text from somewhere: it may complete a control token, as in
// '<|' + message.role + '|>'.
bool is_plain_name(std::string_view role) {
  return role.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
         std::string_view::npos;
}

Value message_value(const ChatMessage& message, size_t index) {
  auto dict = std::make_shared<Dict>();
  const Text role =
      is_plain_name(message.role) ? Text(std::string(message.role)) : Text::of_host(message.role);
  dict->set(Value::of("role"), Value::of(role));
  if (message.has_content) dict->set(Value::of("content"), Value::of(Text::of_host(message.content)));
  if (message.fields_json.empty()) {
    return Value::of(std::move(dict));
  }
  const std::string name = concat("messages[", index, "].fields_json");
  const Value fields = host_json(message.fields_json, name.c_str(), Kind::dict);
  for (const auto& [key, value] : fields.dict().entries()) {
    check(key.text().bytes() != "role" && (key.text().bytes() != "content" || !message.has_content),
          WI_E_ARGUMENT, name, " has '", key.text().bytes(), "', which the message has already");
    // As transformers does: what clients write as null many templates would print, or read as if it were set.
    if (!value.is(Kind::none)) dict->set(key, value);
  }
  return with_reasoning(*dict);
}

// An answer's reasoning goes under several names; templates read two of them, so those are filled in as
// transformers does.
Value with_reasoning(const Dict& message) {
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* held = message.find(std::string_view(name));
    if (!reasoning && held) reasoning = held;
  }
  auto dict = std::make_shared<Dict>();
  if (reasoning) dict->set(Value::of("thinking"), *reasoning);
  for (const auto& [key, value] : message.entries()) dict->set(key, value);
  if (reasoning) dict->set(Value::of("reasoning_content"), *reasoning);
  return Value::of(std::move(dict));
}

Value host_json(std::string_view json, const char* name, Kind kind) {
  Value value = chat::parse_json_value(json, name);
  check(value.is(kind), WI_E_ARGUMENT, name, " is a JSON ", value.type_name(), ", must be ",
        kind == Kind::list ? "an array" : "an object");
  return value;
}

uint64_t bytes_of(const ChatRequest& request) {
  uint64_t bytes = request.tools_json.size() + request.variables_json.size();
  for (const ChatMessage& message : request.messages)
    bytes += message.role.size() + message.content.size() + message.fields_json.size() + 64;
  return bytes;
}

}  // namespace
}  // namespace wi
