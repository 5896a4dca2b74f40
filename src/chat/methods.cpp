#include "src/chat/methods.h"

#include <algorithm>

#include "src/chat/format.h"
#include "src/chat/print.h"
#include "src/chat/text_operations.h"
#include "src/chat/text_search.h"

namespace wi::chat {
namespace {

struct Method {
  std::string_view name;
  Builtin::Function function;
};

Value texts(Interpreter& run, std::vector<Text> parts, Kind kind = Kind::list) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(Value::of(std::move(part)));
  return run.make(std::move(items), kind);
}

const Text* separator_of(const Parameters& given, size_t i) {
  return given.given(i) ? &given.text(i) : nullptr;
}

template <Side side>
Value strip_method(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "strip", {"chars"});
  return run.make(strip(self.text(), separator_of(given, 0), side, run.budget()));
}

template <bool from_right>
Value split_method(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "split", {"sep", "maxsplit"});
  run.budget().bytes(self.text().size());
  return texts(run, (from_right ? split_from_right : split)(self.text(), separator_of(given, 0),
                                                            given.integer(1, -1), run.budget()));
}

Value splitlines(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "splitlines", {"keepends"});
  return texts(run, split_lines(self.text(), given.truth(0), run.budget()));
}

// A range of characters as bytes, as str.find(x, start, end) takes it; end < begin if it is empty by far.
std::pair<size_t, size_t> window(const TextObject& object, const Parameters& given, size_t first,
                                 Budget& budget) {
  if (!given.given(first) && !given.given(first + 1)) return {0, object.text.size()};
  budget.bytes(object.text.size());
  const auto length = static_cast<int64_t>(object.characters());
  const auto place = [&](size_t i, int64_t otherwise) {
    int64_t at = given.given(i) ? given.integer(i, 0) : otherwise;
    if (at < 0) at = std::max<int64_t>(0, at + length);
    return at;
  };
  const int64_t from = place(first, 0), to = std::min(place(first + 1, length), length);
  if (from > to) return {1, 0};
  const std::string_view bytes = object.text.bytes();
  const size_t begin = character_offset(bytes, 0, static_cast<size_t>(from));
  return {begin, character_offset(bytes, begin, static_cast<size_t>(to - from))};
}

template <bool at_end>
Value starts_or_ends(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, at_end ? "endswith" : "startswith", {"prefix", "start", "end"}, 1);
  const auto [begin, end] = window(self.text_object(), given, 1, run.budget());
  if (begin > end) return Value::of(false);
  const std::string_view part = self.text().bytes().substr(begin, end - begin);
  const auto fits = [&](const Value& wanted) {
    check(wanted.is(Kind::text), WI_E_ARGUMENT, "startswith() and endswith() need a text, not a ",
          wanted.type_name());
    run.budget().step();
    run.budget().bytes(std::min(part.size(), wanted.text().size()));
    return at_end ? part.ends_with(wanted.text().bytes()) : part.starts_with(wanted.text().bytes());
  };
  if (!given[0].is(Kind::tuple)) return Value::of(fits(given[0]));
  const std::vector<Value>& any = given[0].list().items;
  return Value::of(std::any_of(any.begin(), any.end(), fits));
}

template <bool last, bool must>
Value find_method(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "find", {"sub", "start", "end"}, 1);
  const auto [begin, end] = window(self.text_object(), given, 1, run.budget());
  const std::string_view part = given.text(0).bytes(), bytes = self.text().bytes();
  size_t found = std::string_view::npos;
  if (begin <= end) {
    const std::string_view inside = bytes.substr(begin, end - begin);
    run.budget().bytes(bytes.size() * (last ? 1 + part.size() / 16 : 1));
    found = last ? find_last_bytes(inside, part, inside.size()) : find_bytes(inside, part, 0);
  }
  check(!must || found != std::string_view::npos, WI_E_ARGUMENT, "index(): the text is not there");
  if (found == std::string_view::npos) return Value::of(int64_t{-1});
  return Value::of(static_cast<int64_t>(count_characters(bytes.substr(0, begin + found))));
}

Value count_text(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "count", {"sub", "start", "end"}, 1);
  const auto [begin, end] = window(self.text_object(), given, 1, run.budget());
  if (begin > end) return Value::of(int64_t{0});
  const std::string_view part = given.text(0).bytes(),
                         inside = self.text().bytes().substr(begin, end - begin);
  run.budget().bytes(inside.size());
  if (part.empty()) return Value::of(static_cast<int64_t>(count_characters(inside) + 1));
  int64_t count = 0;
  for (size_t at = 0; (at = find_bytes(inside, part, at)) != std::string_view::npos; at += part.size())
    ++count;
  return Value::of(count);
}

template <Text (*change)(const Text&)>
Value changed(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "a text's method", {});
  run.budget().bytes(self.text().size());
  return run.make(change(self.text()));
}
Text upper(const Text& text) { return in_case(text, Case::upper); }
Text lower(const Text& text) { return in_case(text, Case::lower); }

Value replace_method(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "replace", {"old", "new", "count"}, 2);
  return run.make(replace(self.text(), given.text(0), given.text(1), given.integer(2, -1), run.budget()));
}

Value join_method(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "join", {"iterable"}, 1);
  std::vector<Text> parts;
  for (const Value& part : run.elements(given[0])) {
    check(part.is(Kind::text), WI_E_ARGUMENT, "join(): an element is a ", part.type_name(), ", must be str");
    parts.push_back(part.text());
  }
  return run.make(join(self.text(), parts, run.budget()));
}

Value format_method(Interpreter& run, const Value& self, Arguments& arguments) {
  return run.make(format_braces(run, self.text(), arguments));
}

template <bool at_end>
Value without(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, at_end ? "removesuffix" : "removeprefix", {"part"}, 1);
  const std::string_view bytes = self.text().bytes(), part = given.text(0).bytes();
  run.budget().bytes(std::min(bytes.size(), part.size()));
  if (at_end ? !bytes.ends_with(part) : !bytes.starts_with(part)) return self;
  return run.make(at_end ? self.text().slice(0, bytes.size() - part.size())
                         : self.text().slice(part.size(), bytes.size()));
}

template <bool from_right>
Value partition(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "partition", {"sep"}, 1);
  const Text &text = self.text(), &separator = given.text(0);
  check(!separator.empty(), WI_E_ARGUMENT, "partition() by an empty separator");
  run.budget().bytes(text.size() * (from_right ? 1 + separator.size() / 16 : 1) + separator.size());
  const size_t found = from_right ? find_last_bytes(text.bytes(), separator.bytes(), text.size())
                                  : find_bytes(text.bytes(), separator.bytes(), 0);
  std::vector<Text> parts(3);
  if (found == std::string_view::npos) {
    parts[from_right ? 2 : 0] = text;
  } else {
    parts = {text.slice(0, found), separator, text.slice(found + separator.size(), text.size())};
  }
  return texts(run, std::move(parts), Kind::tuple);
}

// ljust, rjust, center: where the text goes.
template <char place>
Value just(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "a text's method", {"width", "fillchar"}, 1);
  const int64_t width = given.integer(0, 0), length = static_cast<int64_t>(self.text_object().characters());
  const Text fill = given.has(1) ? given.text(1) : Text(" ");
  check(!fill.empty() && character_length(fill.bytes(), 0) == fill.size(), WI_E_ARGUMENT,
        "the fill character must be exactly one character long");
  if (width <= length) return self;
  const int64_t missing = width - length;
  const int64_t left = place == 'l' ? 0 : place == 'r' ? missing : missing / 2 + (missing & width & 1);
  return run.make(padded(self.text(), left, missing - left, fill, run.budget()));
}

Value zfill(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "zfill", {"width"}, 1);
  const int64_t width = given.integer(0, 0), length = static_cast<int64_t>(self.text_object().characters());
  if (width <= length) return self;
  const Text& text = self.text();
  const bool has_sign = text.bytes().starts_with('-') || text.bytes().starts_with('+');
  Text filled = text.slice(0, has_sign);
  filled.append(padded(text.slice(has_sign, text.size()), width - length, 0, Text("0"), run.budget()));
  return run.make(std::move(filled));
}

// isdigit and the like hold if all characters do and there is one. ASCII only: what other alphabets count as
// digits or letters is a table that no chat template has asked for.
template <bool (*holds)(char)>
Value all_are(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "a text's method", {});
  run.budget().bytes(self.text().size());
  const std::string_view bytes = self.text().bytes();
  const bool ascii =
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  check(ascii, WI_E_UNSUPPORTED, "isdigit(), isalpha() and the like are supported for ASCII only");
  return Value::of(!bytes.empty() && std::all_of(bytes.begin(), bytes.end(), holds));
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
bool is_letter_or_digit(char c) { return is_digit(c) || is_letter(c); }

Value isspace(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "isspace", {});
  return Value::of(!self.text().empty() && strip(self.text(), nullptr, Side::left, run.budget()).empty());
}

// islower, isupper: a cased character, and none of the other case.
template <Case wanted>
Value is_in_case(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "a text's method", {});
  run.budget().bytes(2 * self.text().size());
  return Value::of(is_all_in_case(self.text(), wanted));
}

constexpr Method kTextMethods[] = {
    {"strip", strip_method<Side::both>},
    {"lstrip", strip_method<Side::left>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<false>},
    {"endswith", starts_or_ends<true>},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_text},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"title", changed<title_case>},
    {"capitalize", changed<capitalised>},
    {"swapcase", changed<swapped_case>},
    {"replace", replace_method},
    {"join", join_method},
    {"format", format_method},
    {"removeprefix", without<false>},
    {"removesuffix", without<true>},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"ljust", just<'l'>},
    {"rjust", just<'r'>},
    {"center", just<'c'>},
    {"zfill", zfill},
    {"isdigit", all_are<is_digit>},
    {"isdecimal", all_are<is_digit>},
    {"isnumeric", all_are<is_digit>},
    {"isalpha", all_are<is_letter>},
    {"isalnum", all_are<is_letter_or_digit>},
    {"isspace", isspace},
    {"islower", is_in_case<Case::lower>},
    {"isupper", is_in_case<Case::upper>},
};

Value list_index(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "index", {"value"}, 1);
  const std::vector<Value>& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], given[0], run.budget())) return Value::of(static_cast<int64_t>(i));
  fail(WI_E_ARGUMENT, "index(): the value is not in the ", self.type_name());
}

Value list_count(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "count", {"value"}, 1);
  const std::vector<Value>& items = self.list().items;
  return Value::of(static_cast<int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, given[0], run.budget()); })));
}

Value list_copy(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "copy", {});
  return run.make(self.list().items);
}

constexpr Method kListMethods[] = {{"index", list_index}, {"count", list_count}, {"copy", list_copy}};

Value get(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters given(arguments, "get", {"key", "default"}, 1);
  const Value* held = self.dict().find(given[0], run.budget());
  return held ? *held : given.get(1, Value::none());
}

template <bool keys, bool values>
Value view(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "a dict's method", {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries())
    items.push_back(keys && values ? run.make({key, value}, Kind::tuple) : keys ? key : value);
  return run.make(std::move(items), Kind::view);
}

Value dict_copy(Interpreter& run, const Value& self, Arguments& arguments) {
  const Parameters none(arguments, "copy", {});
  run.budget().values(2 * self.dict().entries().size());
  return Value::of(std::make_shared<Dict>(self.dict()));
}

constexpr Method kDictMethods[] = {{"get", get},
                                   {"items", view<true, true>},
                                   {"keys", view<true, false>},
                                   {"values", view<false, true>},
                                   {"copy", dict_copy}};

Value cycle(Interpreter&, const Value& self, Arguments& arguments) {
  check(!arguments.positional.empty(), WI_E_ARGUMENT, "cycle() has nothing to cycle through");
  return arguments.positional[self.loop().index % arguments.positional.size()];
}

Value changed_since(Interpreter& run, const Value& self, Arguments& arguments) {
  Loop& loop = self.loop();
  for (const Value& value : arguments.positional)  // what is kept must not hold the loop itself
    check(!value.object() || value.is(Kind::text), WI_E_UNSUPPORTED, "loop.changed() of a ",
          value.type_name(), " is not supported");
  const auto same = [&](const Value& a, const Value& b) { return equal(a, b, run.budget()); };
  if (loop.changed_called && std::equal(loop.changed_last.begin(), loop.changed_last.end(),
                                        arguments.positional.begin(), arguments.positional.end(), same))
    return Value::of(false);
  loop.changed_called = true;
  loop.changed_last = arguments.positional;
  return Value::of(true);
}

constexpr Method kLoopMethods[] = {{"cycle", cycle}, {"changed", changed_since}};

// What Python has beside these.
constexpr std::string_view kUnsupported[] = {
    "casefold",    "encode",    "expandtabs", "format_map", "isascii",  "isidentifier", "isprintable",
    "istitle",     "maketrans", "translate",  "fromkeys",   "real",     "imag",         "numerator",
    "denominator", "conjugate", "bit_length", "bit_count",  "to_bytes", "from_bytes",   "as_integer_ratio",
    "is_integer",  "hex",       "fromhex",    "isdisjoint", "mapping"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <class Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
Value find_in(const Method (&methods)[N], const Value& self, std::string_view name) {
  const auto* found = std::find_if(std::begin(methods), std::end(methods),
                                   [&](const Method& method) { return method.name == name; });
  if (found == std::end(methods)) return {};
  return Value(Kind::callable, std::make_shared<Builtin>(found->function, self));
}

bool is_changing(Kind kind, std::string_view name) {
  return kind == Kind::list ? is_one_of(name, kListChanges)
                            : kind == Kind::dict && is_one_of(name, kDictChanges);
}

}  // namespace

Value method_of(const Value& self, std::string_view name) {
  Value found;
  switch (self.kind()) {
    case Kind::text:
      found = find_in(kTextMethods, self, name);
      break;
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
      if (name != "copy" || self.is(Kind::list)) found = find_in(kListMethods, self, name);
      break;
    case Kind::dict:
      found = find_in(kDictMethods, self, name);
      break;
    case Kind::loop:
      found = find_in(kLoopMethods, self, name);
      break;
    case Kind::callable:
      fail(WI_E_UNSUPPORTED, "'", name, "' of a function is not supported");
    default:
      break;
  }
  static constexpr std::string_view escaping[] = {"replace", "join", "format", "ljust", "rjust", "center"};
  check(!self.is_safe() || !is_one_of(name, escaping), WI_E_UNSUPPORTED, "the method '", name,
        "' of a text marked safe is not supported");
  if (!found.is(Kind::undefined)) return found;
  if (name.starts_with('_') && !self.is(Kind::dict))
    return Value::undefined(
        concat("'", name, "' begins with an underscore, which templates may not look at"));
  if (is_changing(self.kind(), name))
    return Value::undefined(concat("the template changes a ", self.type_name(), " (", name,
                                   "), which the sandbox of chat templates forbids"));
  const bool has_methods = self.is(Kind::text) || self.is_number() || self.is(Kind::view);
  check(!has_methods || !is_one_of(name, kUnsupported), WI_E_UNSUPPORTED, "the method '", name, "' of ",
        self.type_name(), " is not supported");
  return {};
}

}  // namespace wi::chat
