#include "src/chat/globals.h"

#include <array>
#include <clocale>
#include <ctime>
#include <vector>

#include "src/chat/print.h"

namespace wi::chat {
namespace {

Value range(Interpreter& run, const Value&, Arguments& arguments) {
  const Parameters given(arguments, "range", {"start", "stop", "step"}, 1);
  const bool only_stop = !given.has(1);
  const int64_t begin = only_stop ? 0 : given.integer(0, 0), end = given.integer(only_stop ? 0 : 1, 0);
  const int64_t step = given.integer(2, 1);
  check(step != 0, WI_E_ARGUMENT, "range()'s step is 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    check(items.size() < static_cast<size_t>(limits::kRange), WI_E_UNSUPPORTED, "range() has more than ",
          limits::kRange, " elements");
    items.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.make(std::move(items), Kind::range);
}

// dict(mapping or pairs, name=value …), into a new one or a namespace.
void fill(Interpreter& run, Arguments& arguments, const char* function, Dict& into) {
  check(arguments.positional.size() <= 1, WI_E_ARGUMENT, function, "() takes at most one argument by place");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    require_defined(from);
    if (from.is(Kind::dict)) {
      for (const auto& [key, value] : from.dict().entries()) into.set(key, value, run.budget());
    } else {
      for (const Value& pair : run.elements(from)) {
        const std::vector<Value> both = run.elements(pair);
        check(both.size() == 2, WI_E_ARGUMENT, function, "(): an element is no pair");
        into.set(both[0], both[1], run.budget());
      }
    }
  }
  for (auto& [name, value] : arguments.named) into.set(Value::of(name), std::move(value), run.budget());
  run.budget().values(4 * into.entries().size() + 4);
}

Value dict(Interpreter& run, const Value&, Arguments& arguments) {
  auto made = std::make_shared<Dict>();
  fill(run, arguments, "dict", *made);
  return Value::of(std::move(made));
}

Value make_namespace(Interpreter& run, const Value&, Arguments& arguments) {
  Value made = run.make_namespace();
  fill(run, arguments, "namespace", made.dict());
  for (const auto& [key, value] : made.dict().entries())
    check(key.is(Kind::text) && !key.text().bytes().starts_with('_'), WI_E_ARGUMENT,
          "a namespace's names are texts that do not begin with an underscore");
  return made;
}

Value raise_exception(Interpreter& run, const Value&, Arguments& arguments) {
  const Parameters given(arguments, "raise_exception", {"message"}, 1);
  fail(WI_E_ARGUMENT, "the template refuses this conversation: ", run.print(given[0]).bytes().substr(0, 300));
}

// Of a time without a zone Python prints nothing for %Z and %z; with a flag or a width it leaves them to the C
// library.
std::string without_zones(std::string_view format) {
  std::string text;
  for (size_t at = 0; at < format.size(); ++at) {
    const size_t end = format[at] == '%' ? format.find_first_not_of("-_0^#:EO123456789", at + 1) : at;
    const char asked = end < format.size() && end > at ? format[end] : '\0';
    check(asked != 'f', WI_E_UNSUPPORTED, "strftime_now(): %f is not supported");
    const bool is_zone = asked == 'Z' || asked == 'z';
    check((!is_zone && asked != '%') || end == at + 1, WI_E_UNSUPPORTED,
          "strftime_now(): ", format.substr(at, end + 1 - at), " is not supported");
    if (!is_zone) text += format.substr(at, asked ? end + 1 - at : 1);
    if (asked) at = end;
  }
  return text;
}

// In this process's time zone and in English, as Python's strftime is by default. Where any of the format is
// the host's the whole date is.
Value strftime_now(Interpreter& run, const Value&, Arguments& arguments) {
  const Parameters given(arguments, "strftime_now", {"format"}, 1);
  const std::string_view asked = given.text(0).bytes();
  check(asked.size() <= 1000 && asked.find('\0') == std::string::npos, WI_E_UNSUPPORTED,
        "strftime_now(): the format has more than 1000 bytes or a NUL");
  const std::string format = without_zones(asked);
  const auto seconds = static_cast<std::time_t>(run.now());
  std::tm now{};
  check(::localtime_r(&seconds, &now), WI_E_ARGUMENT, "wi_chat_params.now is ", run.now(),
        ", which is no date");
  static const locale_t english = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::vector<char> text(64 + 64 * format.size());
  const size_t length = ::strftime_l(text.data(), text.size(), format.c_str(), &now, english);
  Text date;
  date.append_for({text.data(), length}, given.text(0), 0, asked.size());
  return run.make(std::move(date));
}

template <const char* const& name>
Value unsupported(Interpreter&, const Value&, Arguments&) {
  fail(WI_E_UNSUPPORTED, name, "() is not supported");
}
const char* const kCycler = "cycler";
const char* const kJoiner = "joiner";
const char* const kLipsum = "lipsum";

std::pair<std::string, Value> function(const char* name, Builtin::Function call) {
  return {name, Value(Kind::callable, std::make_shared<Builtin>(call, Value()))};
}

}  // namespace

std::span<const std::pair<std::string, Value>> global_functions() {
  // Never destroyed: exit() may come while another thread renders a template.
  static const auto& all = *new std::array<std::pair<std::string, Value>, 8>{
      function("range", range),
      function("dict", dict),
      function("namespace", make_namespace),
      function("raise_exception", raise_exception),
      function("strftime_now", strftime_now),
      function("cycler", unsupported<kCycler>),
      function("joiner", unsupported<kJoiner>),
      function("lipsum", unsupported<kLipsum>),
  };
  return all;
}

}  // namespace wi::chat
