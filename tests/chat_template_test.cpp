// Chat templates against what jinja2 printed of them (fixtures/make_chat.py): real models' templates, and a
// short one for each feature of the language. And what the interpreter promises beside: strangers' templates
// are refused by name or end at a limit, and every byte of the host's is known as the host's.
#include "src/chat/chat_template.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <random>
#include <set>

#include "test.h"
#include "tests/support/fewer.h"

namespace wi {
namespace {

using nlohmann::ordered_json;

const ordered_json& fixture() {
  static const ordered_json read = [] {
    std::ifstream file(WI_TEST_DATA "/fixtures/chat.json");
    return ordered_json::parse(file);
  }();
  return read;
}

ChatTemplate one_template(std::string text) {
  return ChatTemplate({{"default", std::move(text)}}, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

std::string render(const ChatTemplate& chat, std::vector<ChatMessage> messages,
                   const std::string& variables = {}, const std::string& tools = {}) {
  ChatRequest request;
  request.messages = messages;
  request.variables_json = variables;
  request.tools_json = tools;
  request.now = fixture().at("now");
  request.add_generation_prompt = true;
  return std::string(chat.render(request).bytes());
}

std::string render(std::string text, const std::string& variables = {}) {
  return render(one_template(std::move(text)), {{.role = "user", .content = " Hi \n"}}, variables);
}

// Equal, or refused where jinja raises.
bool agrees(const std::string& name, const ordered_json& wanted, const std::string& got, bool refused) {
  const bool same = wanted.is_null() ? refused : !refused && got == wanted.get_ref<const std::string&>();
  if (!same) std::printf("%s:\n%s\nwanted:\n%s\n", name.c_str(), got.c_str(), wanted.dump().c_str());
  return same;
}

template <class Render>
bool agrees_with(const std::string& name, const ordered_json& wanted, Render render_it) {
  try {
    return agrees(name, wanted, render_it(), false);
  } catch (const Error& error) {
    return agrees(name, wanted, error.what(), true);
  }
}

// A message of the fixture as a host passes it; what is more than role and a text lies in *fields.
ChatMessage message_of(const ordered_json& one, std::string* fields) {
  ChatMessage message;
  message.role = one.at("role").get_ref<const std::string&>();
  message.has_content = one.contains("content") && one.at("content").is_string();
  if (message.has_content) message.content = one.at("content").get_ref<const std::string&>();
  ordered_json more = ordered_json::object();
  for (const auto& [key, value] : one.items())
    if (key != "role" && !(key == "content" && message.has_content)) more[key] = value;
  if (!more.empty()) *fields = more.dump();
  message.fields_json = *fields;
  return message;
}

std::string render_conversation(const ChatTemplate& chat, const ordered_json& conversation, bool prompt) {
  std::vector<ChatMessage> messages;
  std::vector<std::string> fields(conversation.size());
  for (size_t i = 0; i < conversation.size(); ++i)
    messages.push_back(message_of(conversation.at(i), &fields[i]));
  ChatRequest request;
  request.messages = messages;
  request.add_generation_prompt = prompt;
  request.now = fixture().at("now");
  return std::string(chat.render(request).bytes());
}

void real_templates_print_what_jinja_prints(void**) {
  int compared = 0, wrong = 0;
  for (const ordered_json& model : fixture().at("models")) {
    const ChatTemplate chat({{"default", model.at("template")}},
                            {{"bos_token", model.at("bos")}, {"eos_token", model.at("eos")}});
    size_t index = 0;
    for (const ordered_json& conversation : fixture().at("conversations"))
      for (const bool prompt : {false, true}) {
        wrong += !agrees_with(model.at("name"), model.at("texts").at(index++),
                              [&] { return render_conversation(chat, conversation, prompt); });
        ++compared;
      }
  }
  std::printf("%d texts\n", compared);
  assert_int_equal(wrong, 0);
  assert_true(compared > 700);
}

// Null ones are left out, but only those of the message itself.
void fields_that_are_null_are_left_out_as_transformers_does(void**) {
  int wrong = 0;
  for (const ordered_json& one : fixture().at("fields")) {
    const std::string text = one.at("template");
    const ChatTemplate chat({{"default", text}}, {});
    size_t index = 0;
    for (const ordered_json& conversation : fixture().at("more_fields"))
      wrong += !agrees_with(text, one.at("texts").at(index++),
                            [&] { return render_conversation(chat, conversation, false); });
  }
  assert_int_equal(wrong, 0);
}

void features_print_what_jinja_prints(void**) {
  const std::string variables = fixture().at("variables").dump();
  int wrong = 0;
  for (const ordered_json& feature : fixture().at("features")) {
    const std::string text = feature.at("template");
    wrong += !agrees_with(text, feature.at("text"), [&] { return render(text, variables); });
  }
  assert_int_equal(wrong, 0);
}

// By which an added token is known as a mark between turns.
void a_templates_texts_are_those_of_transformers(void**) {
  const ChatMessage message{.role = "user", .content = "x"};
  ChatRequest request;
  request.messages = {&message, 1};
  int wrong = 0, compared = 0;
  for (const ordered_json& feature : fixture().at("features")) {
    std::string literals;
    try {
      one_template(feature.at("template")).render(request, &literals);
    } catch (const Error&) {
    }
    if (literals.empty()) continue;  // refused before it ran
    std::set<std::string> texts;
    for (size_t at = 1; at < literals.size(); at = literals.find('\0', at) + 1)
      texts.insert(literals.substr(at, literals.find('\0', at) - at));
    const std::set<std::string> wanted = feature.at("literals");
    if (texts != wanted) std::printf("%s\n", feature.dump().c_str());
    wrong += texts != wanted;
    ++compared;
  }
  assert_int_equal(wrong, 0);
  assert_true(compared > 200);
}

void what_is_not_known_is_refused_by_name(void**) {
  for (const auto& [list, code] :
       {std::pair("unsupported", WI_E_UNSUPPORTED), std::pair("broken", WI_E_FORMAT)})
    for (const ordered_json& pair : fixture().at(list)) {
      const std::string text = pair.at(0), word = pair.at(1);
      assert_error(code, word.c_str(), render(text));
      assert_error(code, "line ", render(text));
    }
}

void templates_are_chosen_as_transformers_does(void**) {
  const ChatTemplate chat({{"rag", "R"}, {"default", "D"}, {"tool_use", "T"}}, {});
  const std::vector<ChatMessage> hello = {{.role = "user", .content = "Hello"}};
  assert_string_equal(render(chat, hello).c_str(), "D");
  assert_string_equal(render(chat, hello, "", "[]").c_str(), "T");
  assert_error(WI_E_UNSUPPORTED, "none is called default", render(ChatTemplate({{"rag", "R"}}, {}), hello));
  assert_error(WI_E_UNSUPPORTED, "none is called default",
               render(ChatTemplate({{"a", "A"}, {"b", "B"}}, {}), hello));
  assert_error(WI_E_UNSUPPORTED, "no chat template", render(ChatTemplate(), hello));
}

void filters_take_paths_and_what_is_defined(void**) {
  const ChatMessage message{
      .role = "user", .content = "x", .fields_json = R"({"calls": [{"f": {"n": 1}}, {"f": {"n": 2}}]})"};
  const auto print = [&](const char* text) { return render(one_template(text), {message}); };
  assert_string_equal(print("{{ messages[0].calls | join(', ', attribute='f.n') }}").c_str(), "1, 2");
  assert_error(WI_E_ARGUMENT, "has no 'g'", print("{{ messages[0].calls | join(', ', attribute='g.n') }}"));
  for (const char* text : {"{{ nothing | int }}", "{{ nothing | float(1.0) }}"})
    assert_error(WI_E_ARGUMENT, "'nothing' is undefined", print(text));
}

void messages_carry_more_fields(void**) {
  const auto print = [](ChatMessage message) {
    return render(one_template("{{ messages[0] | tojson }}"), {message});
  };
  ChatMessage message{
      .role = "assistant", .content = "x", .fields_json = R"({"z": [1, 1.50], "a": {"k": null}})"};
  assert_string_equal(print(message).c_str(),
                      R"({"role": "assistant", "content": "x", "z": [1, 1.5], "a": {"k": null}})");
  message.fields_json = R"({"reasoning": "r"})";  // is found under the names that templates read
  assert_string_equal(
      print(message).c_str(),
      R"({"thinking": "r", "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"})");
  message.fields_json = R"({"content": null})";
  assert_error(WI_E_ARGUMENT, "messages[0].fields_json has 'content'", print(message));
  message.has_content = false;
  assert_string_equal(print(message).c_str(), R"({"role": "assistant"})");
  for (const auto& [json, words] :
       {std::pair("{\"role\": 1}", "has 'role'"), std::pair("[]", "must be an object"),
        std::pair("{", "at byte"), std::pair("{\"a\": 1e", "at byte"),
        std::pair("{\"a\": 99999999999999999999}", "64 bits")}) {
    message.fields_json = json;
    try {
      print(message);
      assert_true(false);
    } catch (const Error& error) {
      if (!std::strstr(error.what(), words)) std::printf("%s: %s\n", json, error.what());
      assert_non_null(std::strstr(error.what(), words));
    }
  }
  message.fields_json = {};
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  assert_error(WI_E_ARGUMENT, "nests deeper", render("x", "{\"a\": " + deep + "}"));
  assert_error(WI_E_ARGUMENT, "'messages'", render("x", R"({"messages": 1})"));
  assert_error(WI_E_ARGUMENT, "'self'", render("x", R"({"self": 1})"));
  assert_error(WI_E_ARGUMENT, "messages is empty", render(one_template("x"), {}));
}

// What a template makes of the host's text stays the host's, byte for byte.
void host_text_stays_the_hosts(void**) {
  const auto marked = [](std::string text) {
    const ChatMessage message{.role = "user", .content = "Hello, W"};
    ChatRequest request;
    request.messages = {&message, 1};
    request.variables_json =
        R"({"v": "ab\n", "keys": {"<k>": 1}, "f": "{:<<1}{:x}", "p": "%%%5d", "h": "<&"})";
    const chat::Text rendered = one_template(std::move(text)).render(request);
    std::string out(rendered.bytes());
    for (auto range = rendered.host().rbegin(); range != rendered.host().rend(); ++range) {
      out.insert(range->end, "]");
      out.insert(range->begin, "[");
    }
    return out;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"<{{ messages[0].content }}>", "<[Hello, W]>"},
      {"{{ '<' + messages[0].content[1:3] ~ '>' }}", "<[el]>"},
      {"{{ messages[0].content.split(', ') | join('|') }}", "[Hello]|[W]"},
      {"{{ messages[0].content.replace('l', 'L') | upper }}", "[HE]LL[O, W]"},
      {"{{ (' ' ~ messages[0].content ~ ' ') | trim }}", "[Hello, W]"},
      {"{{ messages[0].content | tojson }}{{ v | tojson }}", "\"[Hello, W]\"\"[ab\\n]\""},
      {"{{ [v] }}", "['[ab\\n]']"},
      {"{{ '%s!' % v }}{{ '{}?'.format(v) }}", "[ab\n]![ab\n]?"},
      {"{{ v | indent(1, true) }}", " [ab]\n"},
      {"{% for c in v %}{{ c }}.{% endfor %}", "[a].[b].[\n]."},
      {"{{ messages[0].content[::-1] }}", "[W ,olleH]"},
      {"{% set x %}{{ v }}-{% endset %}{{ x * 2 }}", "[ab\n]-[ab\n]-"},
      {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(v) }}", "([ab\n])"},
      {"{{ messages[0].role }}", "user"},
      {"{{ v | e }}{{ v | capitalize }}", "[ab\nAb\n]"},
      {"<{{ strftime_now(v) }}>{{ strftime_now('%%') }}", "<[ab\n]>%"},
      {"{{ strftime_now('x' ~ v) }}", "[xab\n]"},
      {"{% for k in dict(**keys) %}{{ k }}{% endfor %}{{ namespace(**keys) is defined }}", "[<k>]True"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**keys) }}", "{'[<k>]': 1}"},
      {"{{ f.format('', 255) }}{{ p % 5 }}{{ '{:x>3}%%'.format(v[0]) }}", "[<ff%    5]xx[a]%%"},
      {"{{ h | e }}{{ '<' | e }}", "[&lt;&amp;]&lt;"},
  };
  for (const auto& [text, wanted] : cases) assert_string_equal(marked(text).c_str(), wanted);
  // A role that is no plain name is text like any other.
  const ChatMessage odd{.role = "user|>", .content = ""};
  ChatRequest request;
  request.messages = {&odd, 1};
  assert_int_equal(one_template("<|{{ messages[0].role }}").render(request).host().size(), 1);
}

void costs_are_bounded(void**) {
  const char* hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ "
      "ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}",
      "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}{% set a.x = "
      "[a.x, a.x] %}"
      "{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}",
      "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ 'a' * 9999999999 }}",
      "{{ [1] * 9999999999 }}",
      "{{ 'a'.ljust(9223372036854775807) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{% for i in range(99999) %}{{ ('a' * 100000).rfind('a' * 50000 + 'b') }}{% endfor %}",
      "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% for x in [ns.l] %}{% set ns.l = loop %}"
      "{% endfor %}{% endfor %}",
      "{{ range(99999) | map('string') | list | tojson(indent=999999) }}",
  };
  std::vector<std::string> all(std::begin(hostile), std::end(hostile));
  all.emplace_back("{{ ('1_' * 10000000 ~ '1') | int }}");
  all.emplace_back("{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a') }}");
  // What is looked at counts, also where nothing is made of it.
  for (const char* look : {"t.strip('a')",
                           "s | int",
                           "s | float",
                           "[t] | unique(true) | first",
                           "t in {'a': 1}",
                           "{'a': 1}[t]",
                           "{'a': 1}.get(t)",
                           "{t: 1}",
                           "{(t,): 1}",
                           "t.startswith(t)",
                           "t.endswith('b', 1)",
                           "t.find('b', 9999999)",
                           "t.count('b', 9999999)",
                           "t is upper",
                           "t is lower",
                           "t.isdigit()",
                           "t.isalpha()",
                           "s.isspace()",
                           "t | wordcount",
                           "t.removeprefix(t)",
                           "t[5:7]",
                           "t | string | length",
                           "t | upper | length",
                           "'x' | replace(t, 'y')",
                           "'x' | attr(t)",
                           "'x'[t]",
                           "1 | tojson(separators=(t, t))",
                           "dict(**{t: 1})",
                           "[] | join(t)",
                           "'{}'.format(1, **{t: 1})"})
    all.push_back(
        concat("{% set t = 'a' * 10000000 %}{% set s = ' ' * 10000000 %}{% for i in range(99999) %}{% if ",
               look, " %}{% endif %}{% endfor %}"));
  const std::string name(400000, 'x');
  for (const std::string& looked_up : {name, "bos_token." + name})
    all.push_back("{% for i in range(99999) %}{% for j in range(99) %}{% if " + looked_up +
                  " %}{% endif %}{% endfor %}{% endfor %}");
  const size_t each = test::slow_or(5, 1);  // of those, which ones by chance
  for (size_t i = test::seed() % each; i < all.size(); i += each) {
    const std::string& text = all[i];
    const std::clock_t start = std::clock();
    assert_error(WI_E_UNSUPPORTED, "line ", render(text));
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    if (seconds > 30) std::printf("%.300s: %.1f s\n", text.c_str(), seconds);
    assert_in_time(seconds < 120);
  }
  for (const std::string& deep : {"{{ " + std::string(2000, '(') + "1" + std::string(2000, ')') + " }}",
                                  "{{ 1" +
                                      [] {
                                        std::string t;
                                        for (int i = 0; i < 2000; ++i) t += " + 1";
                                        return t;
                                      }() +
                                      " }}",
                                  "{{ a" +
                                      [] {
                                        std::string t;
                                        for (int i = 0; i < 2000; ++i) t += ".a";
                                        return t;
                                      }() +
                                      " }}",
                                  [] {
                                    std::string t;
                                    for (int i = 0; i < 2000; ++i) t += "{% if 1 %}";
                                    return t;
                                  }(),
                                  "{{ " +
                                      [] {
                                        std::string t;
                                        for (int i = 0; i < 2000; ++i) t += "not ";
                                        return t;
                                      }() +
                                      "1 }}"})
    assert_error(WI_E_UNSUPPORTED, "nest", render(deep));
  assert_error(WI_E_UNSUPPORTED, "bytes", render(std::string((1 << 20) + 1, 'x')));
  // What can hold itself is given back too (the leak checker of sanitizers looks).
  assert_string_equal(
      render("{% set n = namespace() %}{% set n.me = n %}{% macro m() %}{% endmacro %}{% set n.m = m %}x")
          .c_str(),
      "x");
}

// The deepest recursion that the limit allows fits in a small stack.
void the_stack_that_is_taken_is_bounded(void**) {
#ifdef WI_SANITIZED
  const size_t bytes = size_t{8} << 20;
#else
  const size_t bytes = size_t{1} << 19;
#endif
  bool refused = false;
  pthread_attr_t small;
  pthread_t thread;
  assert_int_equal(pthread_attr_init(&small), 0);
  assert_int_equal(pthread_attr_setstacksize(&small, bytes), 0);
  const auto run = [](void* result) -> void* {
    try {
      render(
          "{% macro m(x) %}{% if caller or x %}{% for i in [1] %}{% call m([x, 1] | first) %}{% endcall %}{% "
          "endfor %}"
          "{% endif %}{% endmacro %}{{ m(1) }}");
    } catch (const Error& error) {
      *static_cast<bool*>(result) = std::strstr(error.what(), "nest deeper") != nullptr;
    }
    return nullptr;
  };
  assert_int_equal(pthread_create(&thread, &small, run, &refused), 0);
  assert_int_equal(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&small);
  assert_true(refused);
}

void long_conversations_are_rendered(void**) {
  const std::string content(1 << 20, 'x');
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 40; ++i) messages.push_back({.role = i % 2 ? "assistant" : "user", .content = content});
  const std::string text =
      render(one_template("{% for m in messages %}{% if '</think>' in m.content %}{% endif %}<|{{ m.role }}|>"
                          "{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}{% endfor %}"),
             messages);
  assert_int_equal(text.size(), 40 * content.size() + 20 * (8 + 13));
}

void random_templates_do_not_crash(void**) {
  std::mt19937_64 random(test::seed());
  std::vector<std::string> parts;
  for (const ordered_json& feature : fixture().at("features")) parts.push_back(feature.at("template"));
  const std::string variables = fixture().at("variables").dump();
  int rendered = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = parts[random() % parts.size()];
    const std::string& other = parts[random() % parts.size()];
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % (text.size() + 1);
      if (random() % 2)
        text.insert(at, other.substr(random() % other.size(), random() % 20));
      else
        text.erase(at, random() % 4);
    }
    try {
      render(text, variables);
      ++rendered;
    } catch (const Error&) {
    }
  }
  std::printf("%d of 2000 changed templates were rendered\n", rendered);
  assert_true(rendered > 50);
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  setenv("TZ", "UTC", 1);
  tzset();
  const CMUnitTest tests[] = {
      cmocka_unit_test(real_templates_print_what_jinja_prints),
      cmocka_unit_test(fields_that_are_null_are_left_out_as_transformers_does),
      cmocka_unit_test(features_print_what_jinja_prints),
      cmocka_unit_test(a_templates_texts_are_those_of_transformers),
      cmocka_unit_test(what_is_not_known_is_refused_by_name),
      cmocka_unit_test(templates_are_chosen_as_transformers_does),
      cmocka_unit_test(filters_take_paths_and_what_is_defined),
      cmocka_unit_test(messages_carry_more_fields),
      cmocka_unit_test(host_text_stays_the_hosts),
      cmocka_unit_test(costs_are_bounded),
      cmocka_unit_test(the_stack_that_is_taken_is_bounded),
      cmocka_unit_test(long_conversations_are_rendered),
      cmocka_unit_test(random_templates_do_not_crash),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
