// A model's chat templates, rendered as transformers renders them: which of several is taken, what variables
// a template sees, and what of its text came from the host.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/chat/limits.h"
#include "src/chat/text.h"

namespace wi {

struct ChatMessage {
  std::string_view role, content;
  bool has_content = true;
  std::string_view fields_json = {};  // empty: none; else an object of more fields
};

struct ChatRequest {
  std::span<const ChatMessage> messages;
  bool add_generation_prompt = false;
  std::string_view tools_json, variables_json;  // empty: none; an array, an object
  int64_t now = 0;                              // seconds since the epoch
};

class ChatTemplate {
 public:
  using Named = std::vector<std::pair<std::string, std::string>>;  // name, text

  ChatTemplate() = default;
  // templates: "default", "tool_use" and so on; specials: bos_token and so on, with their texts.
  ChatTemplate(Named templates, Named specials)
      : templates_(std::move(templates)), specials_(std::move(specials)) {}

  bool empty() const { return templates_.empty(); }
  void set_steps(uint64_t steps) { steps_ = steps; }  // less than the limit, for tests
  // Throws WI_E_UNSUPPORTED if there is no template or it uses something that this library does not know or
  // costs too much, WI_E_FORMAT if it is broken, WI_E_ARGUMENT for what it refuses and for JSON that is none.
  // literals: set to the texts of the template that is taken, with a NUL around each.
  chat::Text render(const ChatRequest& request, std::string* literals = nullptr) const;

 private:
  const std::string& choose(bool with_tools) const;

  Named templates_, specials_;
  uint64_t steps_ = chat::limits::kSteps;
};

}  // namespace wi
