// Chat templates of the named families, recognised from the template text that a model file carries. A
// Jinja interpreter this is not: an unknown template is refused with a message that says how to go on.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace wi {

struct ChatMessage {
  std::string_view role;  // system, user, assistant
  std::string_view content;
};

class ChatTemplate {
 public:
  enum class Family {
    none,
    chatml,
    llama2,
    llama3,
    mistral,
    deepseek,
    tagged
  };  // tagged: <|role|>\ncontent<|end|>\n
  ChatTemplate() = default;
  // jinja may be empty; bos and eos are the tokens' texts.
  static ChatTemplate recognise(std::string_view jinja, std::string_view bos, std::string_view eos);

  Family family() const { return family_; }
  const char* family_name() const;  // "" for none
  // Throws WI_E_UNSUPPORTED if the family is none, WI_E_ARGUMENT for a role or order the family lacks.
  // The text includes BOS where the family's template does; encode it with parse_special and without add_bos.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

 private:
  Family family_ = Family::none;
  std::string source_, bos_, eos_;
};

}  // namespace wi
