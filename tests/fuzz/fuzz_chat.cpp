// Templates out of strangers' files: a template, a message's content, its fields_json, tools_json and
// variables_json, with a NUL between them. Only wi::Error may come out, and what came from the host must be
// inside.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/chat/chat_template.h"
#include "src/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wi;
  std::string_view rest(reinterpret_cast<const char*>(data), size), texts[5];
  for (std::string_view& text : texts) {
    text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
  }
  try {
    ChatTemplate chat({{"default", std::string(texts[0])}}, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    chat.set_steps(20'000);  // so that one input takes milliseconds
    const ChatMessage messages[] = {{.role = "system", .content = "S"},
                                    {.role = "user", .content = texts[1], .fields_json = texts[2]}};
    ChatRequest request;
    request.messages = messages;
    request.add_generation_prompt = true;
    request.tools_json = texts[3];
    request.variables_json = texts[4];
    request.now = 1767225845;
    const chat::Text text = chat.render(request);
    size_t end = 0;
    for (const TextRange& range : text.host()) {
      if (range.begin < end || range.begin >= range.end || range.end > text.size()) std::abort();
      end = range.end;
    }
  } catch (const Error&) {
  }
  return 0;
}
