// Chat templates against Jinja's own rendering of real models' templates (fixtures/make_chat.py), and what is
// refused. A conversation that a family has no rule for may be refused where Jinja prints something odd.
#include "src/model/chat_template.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/model/chat_text.h"
#include "test.h"

namespace wi {
namespace {

using nlohmann::json;

const json& fixture() {
  static const json read = [] {
    std::ifstream file(WI_TEST_DATA "/fixtures/chat.json");
    return json::parse(file);
  }();
  return read;
}

std::vector<ChatMessage> messages_of(const json& conversation) {
  std::vector<ChatMessage> messages;
  for (const json& one : conversation)
    messages.push_back(
        {one.at("role").get_ref<const std::string&>(), one.at("content").get_ref<const std::string&>()});
  return messages;
}

bool takes_system_only_first(ChatTemplate::Family family) {
  using Family = ChatTemplate::Family;
  return family == Family::llama2 || family == Family::mistral || family == Family::deepseek;
}

void families_render_as_jinja_does(void**) {
  int compared = 0, refused = 0;
  for (const json& model : fixture().at("models")) {
    const std::string name = model.at("name"), jinja = model.at("template"), bos = model.at("bos"),
                      eos = model.at("eos");
    const ChatTemplate chat = ChatTemplate::recognise(jinja, bos, eos);
    assert_string_equal(chat.family_name(), model.at("family").get<std::string>().c_str());
    size_t index = 0;
    for (const json& conversation : fixture().at("conversations")) {
      const std::vector<ChatMessage> messages = messages_of(conversation);
      for (bool prompt : {false, true}) {
        const json& wanted = model.at("texts").at(index++);
        // Where Jinja raises, and where it would drop a system message in the middle without a word.
        const bool late_system = messages.size() > 1 && messages[1].role == "system";
        if (wanted.is_null() || (late_system && takes_system_only_first(chat.family()))) {
          assert_error(WI_E_ARGUMENT, "messages[", chat.render(messages, prompt));
          ++refused;
          continue;
        }
        const std::string text = chat.render(messages, prompt);
        const std::string wanted_text = wanted.get<std::string>();
        if (text != wanted_text)
          std::printf("%s, text %zu:\n%s\nwanted:\n%s\n", name.c_str(), index - 1, text.c_str(),
                      wanted_text.c_str());
        assert_true(text == wanted_text);
        ++compared;
      }
    }
  }
  std::printf("%d texts equal, %d refused\n", compared, refused);
}

void unknown_templates_tell_how_to_go_on(void**) {
  const ChatMessage hello{"user", "Hello"};
  for (const char* jinja :
       {"", "{{ messages[0].content }}", "{{ '[SYSTEM_PROMPT]' }}{{ '[INST]' + messages[0].content }}"}) {
    const ChatTemplate chat = ChatTemplate::recognise(jinja, "<s>", "</s>");
    assert_string_equal(chat.family_name(), "");
    assert_error(WI_E_UNSUPPORTED, "--raw", chat.render({&hello, 1}, true));
  }
  assert_error(WI_E_UNSUPPORTED, "missing", ChatTemplate().render({&hello, 1}, true));
}

void bad_messages_are_named(void**) {
  const ChatTemplate chat = ChatTemplate::recognise("<|im_start|><|im_end|>", "", "");
  assert_error(WI_E_ARGUMENT, "messages is empty", chat.render({}, true));
  const ChatMessage bad[] = {{"user", "a"}, {"tool", "b"}};
  assert_error(WI_E_ARGUMENT, "messages[1].role is \"tool\"", chat.render(bad, true));
  const ChatTemplate deepseek = ChatTemplate::recognise("<｜User｜><｜Assistant｜>", "", "");
  const ChatMessage late[] = {{"user", "a"}, {"system", "b"}};
  assert_error(WI_E_ARGUMENT, "messages[1].role is system", deepseek.render(late, true));
}

void a_mistral_template_that_cannot_be_read_is_refused(void**) {
  const ChatMessage hello{"user", "Hello"};
  const ChatTemplate chat =
      ChatTemplate::recognise("{{ '[INST]' + fancy(message['content']) + eos_token }}", "<s>", "</s>");
  assert_error(WI_E_UNSUPPORTED, "not understood", chat.render({&hello, 1}, true));
}

void hostile_templates_do_not_crash(void**) {
  const ChatMessage hello{"user", "Hello"};
  for (const char* jinja :
       {"[INST]{{", "[INST]{{'", "[INST]{{ '[INST]content", "{{ '[INST]' + content + '\\", "[INST]{{-}}",
        "{{-[INST]content-}}", "<|im_start|>system\\n<|im_end|>", "'<|im_start|>system\\n\\q<|im_end|>'",
        "<|start_header_id|><|eot_id|>date_string = ",
        "Cutting Knowledge Date: December 2023<|start_header_id|><|eot_id|>date_string = \"x"}) {
    try {
      ChatTemplate::recognise(jinja, "", "").render({&hello, 1}, true);
    } catch (const Error&) {
    }
  }
}

void strip_is_pythons(void**) {
  assert_string_equal(std::string(python_strip("\x1c\u2003 a \u200b\u3000\n")).c_str(), "a \u200b");
  assert_string_equal(std::string(python_strip(" \t\r\n")).c_str(), "");
  assert_string_equal(std::string(python_strip("\xff a \x85")).c_str(),
                      "\xff a \x85");  // bytes that are no text stay
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(families_render_as_jinja_does),
      cmocka_unit_test(unknown_templates_tell_how_to_go_on),
      cmocka_unit_test(bad_messages_are_named),
      cmocka_unit_test(a_mistral_template_that_cannot_be_read_is_refused),
      cmocka_unit_test(hostile_templates_do_not_crash),
      cmocka_unit_test(strip_is_pythons),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
