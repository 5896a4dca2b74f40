#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/chat/filters.h"
#include "src/chat/format.h"
#include "src/chat/print.h"
#include "src/chat/text_operations.h"

namespace wi::chat {

Value apply_filter(Interpreter& run, std::string_view name, const Value& value, const Arguments& arguments) {
  Filter filter = find_text_filter(name);
  if (!filter) filter = find_list_filter(name);
  check(filter, WI_E_UNSUPPORTED, "the filter '", name.substr(0, 40), "' is not known here");
  Value result = filter(run, value, arguments);
  if (!value.is_safe() || !result.is(Kind::text)) return result;
  static constexpr std::string_view keeping[] = {"trim",   "upper",  "lower",  "capitalize",
                                                 "string", "indent", "reverse"};
  check(name != "format", WI_E_UNSUPPORTED, "the filter 'format' of a text marked safe is not supported");
  const bool keeps = std::find(std::begin(keeping), std::end(keeping), name) != std::end(keeping);
  return keeps ? run.make_safe(result.text()) : result;
}

namespace {

Value trim(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "trim", {"chars"});
  const Text text = run.print(value);
  return run.make(strip(text, given.given(0) ? &given.text(0) : nullptr, Side::both, run.budget()));
}

template <Text (*change)(const Text&)>
Value changed(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "a text's filter", {});
  return run.make(change(run.print(value)));
}
Text upper(const Text& text) { return in_case(text, Case::upper); }
Text lower(const Text& text) { return in_case(text, Case::lower); }
Text itself(const Text& text) { return text; }

Value replace_filter(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "replace", {"old", "new", "count"}, 2);
  return run.make(replace(run.print(value), run.print(given[0]), run.print(given[1]),
                          given.given(2) ? given.integer(2, -1) : -1, run.budget()));
}

Value join_filter(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "join", {"d", "attribute"});
  std::vector<Text> parts;
  for (const Value& part : run.elements(value))
    parts.push_back(run.print(given.given(1) ? at_path(run, part, given[1]) : part));
  return run.make(join(given.has(0) ? run.print(given[0]) : Text(), parts, run.budget()));
}

Value indent(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "indent", {"width", "first", "blank"});
  check(value.is(Kind::text), WI_E_ARGUMENT, "indent: a ", value.type_name(), " is no text");
  const bool by_text = given.has(0) && given[0].is(Kind::text);
  const Text step = by_text ? given.text(0) : padded(Text(), given.integer(0, 4), 0, Text(" "), run.budget());
  Text with_end = value.text();
  with_end.append("\n");
  Text out;
  const std::vector<Text> lines = split_lines(with_end, false, run.budget());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i == 0 ? given.truth(1) : given.truth(2) || !lines[i].empty()) out.append(step);
    run.budget().bytes(step.size() + 1);
    out.append(lines[i]);
  }
  return run.make(std::move(out));
}

Value escape(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "escape", {});
  return run.make_safe(value.is_safe() ? value.text() : escaped(run.print(value), run.budget()));
}

Value safe(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "safe", {});
  return run.make_safe(run.print(value));
}

Value format_filter(Interpreter& run, const Value& value, const Arguments& arguments) {
  check(arguments.positional.empty() || arguments.named.empty(), WI_E_ARGUMENT,
        "format takes values by place or by name, not both");
  if (arguments.named.empty())
    return run.make(format_percent(run, run.print(value), run.make(arguments.positional, Kind::tuple)));
  auto names = std::make_shared<Dict>();
  for (const auto& [name, named] : arguments.named) names->set(Value::of(name), named, run.budget());
  return run.make(format_percent(run, run.print(value), Value::of(std::move(names))));
}

Value wordcount(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "wordcount", {});
  const Text text = run.print(value);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_length(text.bytes(), at);
    const char32_t code = code_point(text.bytes().substr(at, length));
    check(code < 0x80, WI_E_UNSUPPORTED, "the filter 'wordcount' is supported for ASCII only");
    const bool letter =
        code == '_' || (code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z');
    words += letter && !inside;
    inside = letter;
    at += length;
  }
  return Value::of(words);
}

Value tojson(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = given.truth(0);
  style.sort_keys = given.truth(3);
  if (given.given(1)) {
    style.indented = true;
    style.item_separator = Text(",");
    if (given[1].is(Kind::text)) run.budget().texts(given.text(1));
    style.indent = given[1].is(Kind::text) ? given.text(1)
                                           : padded(Text(), given.integer(1, 0), 0, Text(" "), run.budget());
  }
  if (given.given(2)) {
    const std::vector<Value> pair = run.elements(given[2]);
    check(pair.size() == 2 && pair[0].is(Kind::text) && pair[1].is(Kind::text), WI_E_ARGUMENT,
          "tojson: separators must be two texts");
    for (const Value& separator : pair) run.budget().texts(separator.text());
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  return run.make(to_json(value, style, run.budget()));
}

// Python's int() and float() of a text: white space around, digits of any script, _ between them.
std::string number_text(const Value& value, Budget& budget) {
  const Text stripped = strip(value.text(), nullptr, Side::both, budget);
  budget.bytes(stripped.size());
  std::string text;
  bool joins = false;  // a _ behind a digit stands before what comes next
  for (size_t at = 0; at < stripped.size();) {
    const std::string_view character = stripped.bytes().substr(at, character_length(stripped.bytes(), at));
    const int digit = decimal_digit(code_point(character));
    if (joins && digit < 0) text += '_';
    joins = character == "_" && !joins && !text.empty() && text.back() >= '0' && text.back() <= '9';
    if (digit >= 0)
      text += static_cast<char>('0' + digit);
    else if (!joins)
      text += character;
    at += character.size();
  }
  return joins ? text + '_' : text;
}

bool parse_real(const Value& value, double* result, Budget& budget) {
  std::string text = number_text(value, budget);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  if (text.empty() || text[0] == '-' || text[0] == '+' || text.find('(') != std::string::npos) return false;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), *result);
  if (read.ptr != text.data() + text.size()) return false;
  check(read.ec == std::errc(), WI_E_UNSUPPORTED, "a number in a text is out of range");
  if (negative) *result = -*result;
  return true;
}

bool to_whole(double real, int64_t* result) {
  if (std::isnan(real) || std::isinf(real)) return false;
  check(std::abs(real) < 9.2e18, WI_E_UNSUPPORTED, "a number has more than 64 bits");
  *result = static_cast<int64_t>(real);
  return true;
}

Value to_int(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "int", {"default", "base"});
  Value otherwise = given.get(0, Value::of(int64_t{0}));
  check(given.integer(1, 10) == 10, WI_E_UNSUPPORTED, "the filter 'int' is supported for base 10 only");
  int64_t whole = 0;
  double real = 0;
  require_defined(value);
  if (value.is_whole()) return Value::of(value.integer());
  if (value.is(Kind::real)) return to_whole(value.real(), &whole) ? Value::of(whole) : otherwise;
  if (!value.is(Kind::text)) return otherwise;
  const std::string text = number_text(value, run.budget());
  const bool plus = text.starts_with('+') && !text.starts_with("+-");
  const auto read = std::from_chars(text.data() + plus, text.data() + text.size(), whole);
  if (text.size() > plus && read.ptr == text.data() + text.size()) {
    check(read.ec == std::errc(), WI_E_UNSUPPORTED, "a number in a text has more than 64 bits");
    return Value::of(whole);
  }
  return parse_real(value, &real, run.budget()) && to_whole(real, &whole) ? Value::of(whole) : otherwise;
}

Value to_float(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "float", {"default"});
  double real = 0;
  require_defined(value);
  if (value.is_number()) return Value::of(value.real());
  if (value.is(Kind::text) && parse_real(value, &real, run.budget())) return Value::of(real);
  return given.get(0, Value::of(0.0));
}

Value round_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "round", {"precision", "method"});
  check(value.is_number(), WI_E_ARGUMENT, "round: a ", value.type_name(), " is no number");
  const int64_t places = given.integer(0, 0);
  check(places >= 0 && places <= 15, WI_E_UNSUPPORTED, "round: a precision of ", places, " is not supported");
  const std::string_view method = given.has(1) ? given.text(1).bytes() : "common";
  if (method == "common") {
    if (value.is_whole()) return Value::of(value.integer());
    if (!std::isfinite(value.real()) || std::abs(value.real()) > 1e15) return value;
    char buffer[64];  // correctly rounded decimals, halves to even, as Python's
    const auto written = std::to_chars(buffer, buffer + sizeof buffer, value.real(), std::chars_format::fixed,
                                       static_cast<int>(places));
    double rounded = 0;
    std::from_chars(buffer, written.ptr, rounded);
    return Value::of(rounded);
  }
  check(method == "ceil" || method == "floor", WI_E_ARGUMENT,
        "round: the method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(places)), scaled = value.real() * scale;
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value absolute(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "abs", {});
  require_defined(value);
  check(value.is_number(), WI_E_ARGUMENT, "abs: a ", value.type_name(), " is no number");
  if (value.is(Kind::real)) return Value::of(std::abs(value.real()));
  check(value.integer() != INT64_MIN, WI_E_UNSUPPORTED, "a number has more than 64 bits");
  return Value::of(value.integer() < 0 ? -value.integer() : value.integer());
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"trim", trim},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"title", changed<title_of_words>},
    {"capitalize", changed<capitalised>},
    {"string", changed<itself>},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"replace", replace_filter},
    {"join", join_filter},
    {"indent", indent},
    {"format", format_filter},
    {"wordcount", wordcount},
    {"tojson", tojson},
    {"int", to_int},
    {"float", to_float},
    {"round", round_filter},
    {"abs", absolute},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const auto& filter) { return filter.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace wi::chat
