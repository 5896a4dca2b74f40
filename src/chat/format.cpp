#include "src/chat/format.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "src/chat/print.h"
#include "src/chat/text_operations.h"

namespace wi::chat {
namespace {

// [[fill]align][sign][#][0][width][,][.precision][type], and what % calls flags.
struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', type = '\0', group = '\0';
  bool alternate = false, zeros = false;
  int64_t width = 0, precision = -1;
};

constexpr int64_t kWidest = 100000;

int64_t read_number(std::string_view text, size_t* at) {
  int64_t value = 0;
  while (*at < text.size() && std::isdigit(static_cast<unsigned char>(text[*at])) && value <= kWidest)
    value = value * 10 + (text[(*at)++] - '0');
  check(value <= kWidest, WI_E_UNSUPPORTED, "a format is wider than ", kWidest);
  return value;
}

// A number's digits before what is no digit of it, marked in groups from the right, and with zeros before them
// up to the width.
std::string with_groups(const Spec& spec, std::string_view digits, int64_t width) {
  const bool by_four = std::string_view("xXob").find(spec.type) != std::string_view::npos;
  const size_t group = by_four ? 4 : 3;
  size_t whole = 0;
  while (whole < digits.size() && (by_four || std::isdigit(static_cast<unsigned char>(digits[whole]))))
    ++whole;
  const auto wanted =
      static_cast<size_t>(std::max<int64_t>(0, width - static_cast<int64_t>(digits.size() - whole)));
  std::string reversed;
  for (size_t i = 0; i < whole || reversed.size() < wanted; ++i) {
    if (i > 0 && i % group == 0) reversed += spec.group;
    reversed += i < whole ? digits[whole - 1 - i] : '0';
  }
  std::reverse(reversed.begin(), reversed.end());
  return reversed.append(digits.substr(whole));
}

std::string real_digits(const Spec& spec, double value) {
  if (std::isinf(value) || std::isnan(value)) return std::isnan(value) ? "nan" : "inf";
  check(std::abs(value) < 1e100 && spec.precision < 300 && !spec.alternate, WI_E_UNSUPPORTED,
        "a number of more than 100 digits, or with #, is formatted");
  const char type = static_cast<char>(spec.type | 32);
  const auto style = type == 'e'   ? std::chars_format::scientific
                     : type == 'g' ? std::chars_format::general
                                   : std::chars_format::fixed;
  const bool percent = spec.type == '%';
  char buffer[512];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, percent ? value * 100 : value, style,
                                     spec.precision < 0 ? 6 : static_cast<int>(spec.precision));
  std::string digits(buffer, written.ptr);
  if (spec.type >= 'A' && spec.type <= 'Z')
    std::transform(digits.begin(), digits.end(), digits.begin(), [](char c) { return c == 'e' ? 'E' : c; });
  return digits + (percent ? "%" : "");
}

std::string whole_digits(const Spec& spec, uint64_t value) {
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  std::string digits;
  do {
    const auto digit = static_cast<int>(value % static_cast<uint64_t>(base));
    digits += static_cast<char>(digit < 10 ? '0' + digit : (spec.type == 'X' ? 'A' : 'a') + digit - 10);
    value /= static_cast<uint64_t>(base);
  } while (value > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// Digits with sign and prefix, filled up to the width.
Text number_text(const Spec& spec, bool negative, std::string prefix, std::string digits, Budget& budget) {
  if (negative)
    prefix.insert(0, "-");
  else if (spec.sign != '-')
    prefix.insert(0, 1, spec.sign);
  if (spec.group) {
    const bool zeros = spec.align == '=' && spec.fill == "0";
    digits = with_groups(spec, digits, zeros ? spec.width - static_cast<int64_t>(prefix.size()) : 0);
  }
  const auto length = static_cast<int64_t>(prefix.size() + digits.size());
  const int64_t missing = std::max<int64_t>(0, spec.width - length);
  if (spec.align == '=' || (spec.zeros && spec.align == '\0')) {
    Text text(prefix);
    text.append(padded(Text(digits), missing, 0, Text(spec.zeros ? "0" : spec.fill), budget));
    return text;
  }
  const int64_t left = spec.align == '<' ? 0 : spec.align == '^' ? missing / 2 : missing;
  return padded(Text(prefix + digits), left, missing - left, Text(spec.fill), budget);
}

Text whole_text(const Spec& spec, int64_t value, Budget& budget) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const bool has_prefix =
      spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b');
  return number_text(spec, value < 0, has_prefix ? std::string("0") + spec.type : "",
                     whole_digits(spec, size), budget);
}

Text real_text_of(const Spec& spec, double value, Budget& budget) {
  return number_text(spec, std::signbit(value) && !std::isnan(value), "", real_digits(spec, std::abs(value)),
                     budget);
}

Text aligned(const Spec& spec, Text text, char usual, Budget& budget) {
  if (spec.precision >= 0)
    text = text.slice(0, character_offset(text.bytes(), 0, static_cast<size_t>(spec.precision)));
  const int64_t missing =
      std::max<int64_t>(0, spec.width - static_cast<int64_t>(count_characters(text.bytes())));
  const char align = spec.align ? spec.align : usual;
  const int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  return padded(text, left, missing - left, Text(spec.fill), budget);
}

bool is_real_type(char type) { return std::string_view("eEfFgG%").find(type) != std::string_view::npos; }

const Value& number_of(const Value& value, char type) {
  require_defined(value);
  check(value.is_number(), WI_E_ARGUMENT, "format '", type, "' needs a number, not a ", value.type_name());
  return value;
}

// One value behind %, or "{:…}".
Text percent_value(Interpreter& run, Spec spec, const Value& value) {
  const char type = spec.type;
  if (type == 's') return aligned(spec, to_text(value, run.budget()), '>', run.budget());
  if (type == 'r') return aligned(spec, to_repr(value, run.budget()), '>', run.budget());
  if (type == 'd' || type == 'i' || type == 'u') {
    const Value& number = number_of(value, type);
    check(number.is_whole() || std::abs(number.real()) < 9e18, WI_E_UNSUPPORTED,
          "a number has more than 64 bits");
    check(spec.precision < 0, WI_E_UNSUPPORTED, "the format %.", spec.precision, type, " is not supported");
    spec.type = 'd';
    return whole_text(spec, number.is_whole() ? number.integer() : static_cast<int64_t>(number.real()),
                      run.budget());
  }
  if (type == 'x' || type == 'X' || type == 'o') {
    check(number_of(value, type).is_whole(), WI_E_ARGUMENT, "format '", type, "' needs an integer");
    check(spec.precision < 0, WI_E_UNSUPPORTED, "the format %.", spec.precision, type, " is not supported");
    return whole_text(spec, value.integer(), run.budget());
  }
  if (type != '%' && is_real_type(type))
    return real_text_of(spec, number_of(value, type).real(), run.budget());
  fail(WI_E_UNSUPPORTED, "the format '%", type, "' is not supported");
}

std::optional<Spec> brace_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>=^").find(text[i]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : character_length(text, 0);
  const bool has_fill = first > 0 && is_align(first);
  if (has_fill) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  const auto take = [&](std::string_view options) {
    return at < text.size() && options.find(text[at]) != std::string_view::npos ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (!has_fill && take("0") != '\0') {
    spec.zeros = true;
    spec.fill = "0";
    if (spec.align == '\0') spec.align = '=';
  }
  spec.width = read_number(text, &at);
  spec.group = take(",_");
  if (take(".") != '\0') spec.precision = read_number(text, &at);
  spec.type = take("sdfFeEgGxXob%");
  if (at != text.size()) return std::nullopt;
  return spec;
}

Text brace_value(Interpreter& run, std::string_view text, const Value& value) {
  if (text.empty()) return to_text(value, run.budget());
  const std::optional<Spec> spec = brace_spec(text);
  check(spec.has_value(), WI_E_UNSUPPORTED, "the format '{:", text.substr(0, 40), "}' is not supported");
  const char type = spec->type;
  if (value.is(Kind::text) && (type == 's' || type == '\0')) {
    check(!spec->zeros && spec->sign == '-' && spec->align != '=' && !spec->group, WI_E_UNSUPPORTED,
          "the format '{:", text.substr(0, 40), "}' of a text is not supported");
    return aligned(*spec, value.text(), '<', run.budget());
  }
  const Value& number = number_of(value, type ? type : 'd');
  if (is_real_type(type) && type) return real_text_of(*spec, number.real(), run.budget());
  check(spec->group != ',' || std::string_view("xXob").find(type) == std::string_view::npos, WI_E_ARGUMENT,
        "a format cannot have ',' with '", type, "'");
  check(number.is(Kind::integer) && type != 's' && spec->precision < 0, WI_E_UNSUPPORTED,
        "the format '{:", text.substr(0, 40), "}' of a ", value.type_name(), " is not supported");
  return whole_text(*spec, number.integer(), run.budget());
}

// How a format's places name their values: in turn or by number, but not both.
struct Numbering {
  size_t next = 0;
  bool by_number = false;
};

// name, name.attribute, name[key] …, of which the name may be a number or nothing.
Value brace_field(Interpreter& run, std::string_view field, const Arguments& arguments,
                  Numbering* numbering) {
  const size_t name_end = std::min(field.find_first_of(".["), field.size());
  const std::string name(field.substr(0, name_end));
  Value value;
  if (name.empty() ||
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); })) {
    size_t at = 0;
    check(name.empty() ? !numbering->by_number : numbering->next == 0, WI_E_ARGUMENT,
          "a format has places with a number and places without");
    numbering->by_number = !name.empty();
    const size_t index = name.empty() ? numbering->next++ : static_cast<size_t>(read_number(name, &at));
    check(index < arguments.positional.size(), WI_E_ARGUMENT, "format() has no argument ", index);
    value = arguments.positional[index];
  } else {
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first.bytes() == name; });
    check(named != arguments.named.end(), WI_E_ARGUMENT, "format() has no argument '", name, "'");
    value = named->second;
  }
  for (size_t at = name_end; at < field.size();) {
    const bool is_item = field[at] == '[';
    const size_t end =
        std::min(is_item ? field.find(']', at) : field.find_first_of(".[", at + 1), field.size());
    const std::string_view part = field.substr(at + 1, end - at - 1);
    const bool is_index =
        is_item && !part.empty() &&
        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    size_t digit = 0;
    value = is_index  ? run.item(value, Value::of(read_number(part, &digit)))
            : is_item ? run.item(value, Value::of(part))
                      : run.attribute(value, part);
    at = end + is_item;
  }
  return value;
}

}  // namespace

Text format_percent(Interpreter& run, const Text& format, const Value& values) {
  const std::string_view text = format.bytes();
  // What can be asked for an element may stay unused, also without names.
  const bool is_tuple = values.is(Kind::tuple), is_dict = values.is(Kind::dict),
             may_stay =
                 is_dict || values.is(Kind::list) || values.is(Kind::range) || values.is(Kind::undefined);
  size_t used = 0;
  const auto next = [&]() -> Value {
    const size_t count = is_tuple ? values.list().items.size() : 1;
    check(used < count, WI_E_ARGUMENT, "a format has more places than there are values");
    return is_tuple ? values.list().items[used++] : (++used, values);
  };
  Text out;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = std::min(text.find('%', at), text.size());
    out.append(format, at, mark);
    at = mark + 1;
    if (at >= text.size()) {
      check(mark == text.size(), WI_E_ARGUMENT, "a format ends in %");
      break;
    }
    Spec spec;
    std::optional<Value> named;
    if (text[at] == '(') {
      const size_t close = text.find(')', at);
      check(is_dict && close != std::string_view::npos, WI_E_ARGUMENT,
            "a format names a value, but there is no mapping");
      named = run.item(values, Value::of(text.substr(at + 1, close - at - 1)));
      require_defined(*named);
      at = close + 1;
    }
    for (; at < text.size() && std::string_view("#0- +").find(text[at]) != std::string_view::npos; ++at) {
      if (text[at] == '#') spec.alternate = true;
      if (text[at] == '0') spec.zeros = true;
      if (text[at] == '-') spec.align = '<';
      if (text[at] == '+' || (text[at] == ' ' && spec.sign == '-')) spec.sign = text[at];
    }
    spec.width = read_number(text, &at);
    if (at < text.size() && text[at] == '.') spec.precision = read_number(text, &++at);
    check(at < text.size(), WI_E_ARGUMENT, "a format ends within %");
    spec.type = text[at++];
    out.append_for(spec.type == '%' ? Text("%") : percent_value(run, spec, named ? *named : next()), format,
                   mark, at);
    run.budget().bytes(out.size() / 16 + 1);
  }
  check(used > 0 || may_stay || (is_tuple && values.list().items.empty()), WI_E_ARGUMENT,
        "not all values were used by a format");
  check(!is_tuple || used == values.list().items.size(), WI_E_ARGUMENT,
        "not all values were used by a format");
  return out;
}

Text format_braces(Interpreter& run, const Text& format, const Arguments& arguments) {
  const std::string_view text = format.bytes();
  Text out;
  Numbering numbering;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = std::min(text.find_first_of("{}", at), text.size());
    out.append(format, at, mark);
    at = mark;
    if (at == text.size()) break;
    if (text.substr(at, 2) == "{{" || text.substr(at, 2) == "}}") {
      out.append(format, at, at + 1);
      at += 2;
      continue;
    }
    const size_t close = text.find('}', at);
    check(text[at] == '{' && close != std::string_view::npos, WI_E_ARGUMENT, "a format has a single brace");
    std::string_view field = text.substr(at + 1, close - at - 1), spec;
    check(field.find('{') == std::string_view::npos, WI_E_UNSUPPORTED,
          "a format within a format is not supported");
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t bang = field.find('!'); bang != std::string_view::npos && bang + 2 == field.size()) {
      conversion = field.back();
      field = field.substr(0, bang);
    }
    check(conversion == '\0' || conversion == 's' || conversion == 'r', WI_E_UNSUPPORTED, "the format '!",
          conversion, "' is not supported");
    Value value = brace_field(run, field, arguments, &numbering);
    if (conversion)
      value = Value::of(conversion == 'r' ? to_repr(value, run.budget()) : to_text(value, run.budget()));
    out.append_for(brace_value(run, spec, value), format, at, close + 1);
    run.budget().bytes(out.size() / 16 + 1);
    at = close + 1;
  }
  return out;
}

}  // namespace wi::chat
