#include <algorithm>
#include <cctype>

#include "src/chat/filters.h"
#include "src/chat/operators.h"
#include "src/chat/tests.h"
#include "src/chat/text_operations.h"

namespace wi::chat {
namespace {

// An attribute's path, "a.b.0", or the value itself if there is none.
class Getter {
 public:
  Getter(Interpreter& run, const Value* path, bool ignores_case, Value otherwise = Value::none())
      : run_(run), ignores_case_(ignores_case), otherwise_(std::move(otherwise)) {
    if (!path || path->is(Kind::none)) return;
    if (!path->is(Kind::text)) {
      path_.push_back(*path);
      return;
    }
    const Text dot(".");
    for (const Text& part : split(path->text(), &dot, -1, run.budget())) {
      const std::string_view bytes = part.bytes();
      const bool is_number =
          !bytes.empty() && bytes.size() < 10 &&
          std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return std::isdigit(c); });
      path_.push_back(is_number ? Value::of(int64_t{std::stol(std::string(bytes))}) : Value::of(part));
    }
  }

  Value operator()(Value value) const {
    for (const Value& part : path_) {
      value = run_.item(value, part);
      if (value.is(Kind::undefined) && !otherwise_.is(Kind::none)) value = otherwise_;
    }
    if (ignores_case_ && value.is(Kind::text)) return run_.make(in_case(value.text(), Case::lower));
    return value;
  }

 private:
  Interpreter& run_;
  bool ignores_case_;
  Value otherwise_;
  std::vector<Value> path_;
};

const Value* at(const Parameters& given, size_t i) { return given.has(i) ? &given[i] : nullptr; }

// Stable, by keys made once; an order that Python has not throws.
std::vector<Value> sorted(Interpreter& run, std::vector<Value> items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> places(items.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    const int order = compare(keys[a], keys[b], "<", run.budget());
    check(order != 2, WI_E_UNSUPPORTED, "numbers that are NaN are sorted");
    return reverse ? order > 0 : order < 0;
  });
  std::vector<Value> result;
  result.reserve(places.size());
  for (size_t place : places) result.push_back(std::move(items[place]));
  return result;
}

template <class Items, class Key>
std::vector<Value> keys_of(const Items& items, const Key& key) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const auto& item : items) keys.push_back(key(item));
  return keys;
}

Value length(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "length", {});
  switch (value.kind()) {
    case Kind::undefined:
      return Value::of(int64_t{0});
    case Kind::text:
      return Value::of(static_cast<int64_t>(value.text_object().characters()));
    case Kind::dict:
      return Value::of(static_cast<int64_t>(value.dict().entries().size()));
    case Kind::loop:
      return Value::of(static_cast<int64_t>(run.length(value.loop())));
    default:
      check(value.is_elements() && !value.is(Kind::iterator), WI_E_ARGUMENT, "a ", value.type_name(),
            " has no length");
      return Value::of(static_cast<int64_t>(value.list().items.size()));
  }
}

Value default_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "default", {"default_value", "boolean"});
  if (value.is(Kind::undefined) || (given.truth(1) && !value.truth())) return given.get(0, Value::of(""));
  return value;
}

Value first(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "first", {});
  if (value.is(Kind::iterator)) {  // takes one, and leaves the rest
    List& list = run.generator(value);
    return list.taken < list.items.size() ? list.items[list.taken++]
                                          : Value::undefined("no first item, it was empty");
  }
  const std::vector<Value> items = run.elements(value);
  return items.empty() ? Value::undefined("no first item, the sequence was empty") : items.front();
}

Value last(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "last", {});
  check(!value.is(Kind::iterator), WI_E_ARGUMENT, "last: a generator cannot be walked backwards");
  const std::vector<Value> items = run.elements(value);
  return items.empty() ? Value::undefined("no last item, the sequence was empty") : items.back();
}

Value to_list(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "list", {});
  return run.make(run.elements(value));
}

Value items_filter(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "items", {});
  std::vector<Value> items;
  if (!value.is(Kind::undefined)) {
    check(value.is(Kind::dict), WI_E_ARGUMENT, "items: a ", value.type_name(), " is no mapping");
    for (const auto& [key, held] : value.dict().entries())
      items.push_back(run.make({key, held}, Kind::tuple));
  }
  return run.make(std::move(items), Kind::iterator);
}

Value reverse(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters none(arguments, "reverse", {});
  std::vector<Value> items = run.elements(value);
  std::reverse(items.begin(), items.end());
  if (!value.is(Kind::text))
    return run.make(std::move(items), value.is(Kind::iterator) ? Kind::list : Kind::iterator);
  Text text;
  for (const Value& item : items) text.append(item.text());
  return run.make(std::move(text));
}

}  // namespace

Value at_path(Interpreter& run, const Value& value, const Value& path) {
  return Getter(run, &path, false)(value);
}

namespace {

Value sort(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = run.elements(value);
  std::vector<Getter> getters;
  if (given.given(2) && given[2].is(Kind::text)) {
    const Text comma(",");
    for (const Text& path : split(given[2].text(), &comma, -1, run.budget())) {
      const Value name = Value::of(path);
      getters.emplace_back(run, &name, !given.truth(1));
    }
  } else {
    getters.emplace_back(run, at(given, 2), !given.truth(1));
  }
  const std::vector<Value> keys = keys_of(items, [&](const Value& item) {
    return run.make(keys_of(getters, [&](const Getter& get) { return get(item); }));
  });
  return run.make(sorted(run, std::move(items), keys, given.truth(0)));
}

Value dictsort(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  require_defined(value);
  check(value.is(Kind::dict), WI_E_ARGUMENT, "dictsort: a ", value.type_name(), " is no mapping");
  const std::string_view by = given.has(1) ? given.text(1).bytes() : "key";
  check(by == "key" || by == "value", WI_E_ARGUMENT, "dictsort: by must be key or value");
  const Getter get(run, nullptr, !given.truth(0));
  std::vector<Value> items, keys;
  for (const auto& [key, held] : value.dict().entries()) {
    items.push_back(run.make({key, held}, Kind::tuple));
    keys.push_back(get(by == "key" ? key : held));
  }
  return run.make(sorted(run, std::move(items), keys, given.truth(2)));
}

template <bool most>
Value extreme(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, most ? "max" : "min", {"case_sensitive", "attribute"});
  const Getter get(run, at(given, 1), !given.truth(0));
  const std::vector<Value> items = run.elements(value);
  if (items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  size_t best = 0;
  const std::vector<Value> keys = keys_of(items, get);
  for (size_t i = 1; i < items.size(); ++i)
    if (compare(keys[i], keys[best], most ? ">" : "<", run.budget()) == (most ? 1 : -1)) best = i;
  return items[best];
}

Value sum(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "sum", {"attribute", "start"});
  const Getter get(run, at(given, 0), false);
  Value total = given.get(1, Value::of(int64_t{0}));
  check(!total.is(Kind::text), WI_E_ARGUMENT, "sum: texts are joined, not added");
  for (const Value& item : run.elements(value)) total = operate(run, "+", total, get(item));
  return total;
}

// For a filter that Jinja runs as its result is walked through.
std::vector<Value> elements_later(Interpreter& run, const Value& value) {
  std::vector<Value> items = run.elements(value);
  if (value.is(Kind::iterator)) value.list().is_read = true;
  return items;
}

// What is empty, None or undefined gives nothing, also where it cannot be walked through.
std::vector<Value> elements_if_true(Interpreter& run, const Value& value) {
  return value.truth() ? elements_later(run, value) : std::vector<Value>();
}

Value unique(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "unique", {"case_sensitive", "attribute"});
  const Getter get(run, at(given, 1), !given.truth(0));
  Dict seen;
  std::vector<Value> items;
  for (Value& item : elements_later(run, value)) {
    const Value key = get(item);
    if (seen.find(key, run.budget())) continue;
    seen.set(key, Value::none(), run.budget());
    items.push_back(std::move(item));
  }
  return run.make(std::move(items), Kind::iterator);
}

Value map(Interpreter& run, const Value& value, const Arguments& arguments) {
  std::vector<Value> items;
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const Parameters given(arguments, "map", {"attribute", "default"}, 1);
    const Getter get(run, &given[0], false, given.get(1, Value::none()));
    for (const Value& item : elements_if_true(run, value)) items.push_back(get(item));
  } else {
    check(!arguments.positional.empty() && arguments.positional[0].is(Kind::text), WI_E_ARGUMENT,
          "map needs the name of a filter");
    const std::string_view name = arguments.positional[0].text().bytes();
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : elements_if_true(run, value)) {
      run.budget().step();
      items.push_back(apply_filter(run, name, item, rest));
    }
  }
  return run.make(std::move(items), Kind::iterator);
}

template <bool keeps, bool by_attribute>
Value select(Interpreter& run, const Value& value, const Arguments& arguments) {
  Arguments rest = arguments;
  const auto take = [&] {
    Value taken = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return taken;
  };
  check(!by_attribute || !rest.positional.empty(), WI_E_ARGUMENT,
        "selectattr needs the name of an attribute");
  const Value path = by_attribute ? take() : Value::none();
  const Getter get(run, &path, false);
  const Value name = rest.positional.empty() ? Value::of("") : take();
  check(name.is(Kind::text), WI_E_ARGUMENT, "select needs the name of a test");
  const std::string_view test = name.text().bytes();
  std::vector<Value> items;
  for (Value& item : elements_if_true(run, value)) {
    run.budget().step();
    const Value looked_at = get(item);
    if ((test.empty() ? looked_at.truth() : apply_test(run, test, looked_at, rest)) == keeps)
      items.push_back(std::move(item));
  }
  return run.make(std::move(items), Kind::iterator);
}

Value batch(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t count = given.integer(0, 0);
  check(count > 0 && count <= limits::kRange, WI_E_ARGUMENT, "batch: linecount is ", count);
  std::vector<Value> lines, line;
  for (Value& item : elements_later(run, value)) {
    if (static_cast<int64_t>(line.size()) == count) lines.push_back(run.make(std::exchange(line, {})));
    line.push_back(std::move(item));
  }
  if (!line.empty()) {
    if (given.given(1)) line.resize(static_cast<size_t>(count), given[1]);
    lines.push_back(run.make(std::move(line)));
  }
  return run.make(std::move(lines), Kind::iterator);
}

Value slices(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "slice", {"slices", "fill_with"}, 1);
  const int64_t count = given.integer(0, 0);
  check(count > 0 && count <= limits::kRange, WI_E_ARGUMENT, "slice: slices is ", count);
  const std::vector<Value> items = elements_later(run, value);
  const auto size = static_cast<int64_t>(items.size());
  std::vector<Value> columns;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = begin + size / count + (i < size % count);
    std::vector<Value> column(items.begin() + begin, items.begin() + end);
    if (given.given(1) && i >= size % count) column.push_back(given[1]);
    columns.push_back(run.make(std::move(column)));
    begin = end;
  }
  return run.make(std::move(columns), Kind::iterator);
}

Value groupby(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Value otherwise = given.get(1, Value::none());
  const Getter key(run, &given[0], !given.truth(2), otherwise), name(run, &given[0], false, otherwise);
  std::vector<Value> items = run.elements(value);
  const std::vector<Value> keys = keys_of(items, key);
  items = sorted(run, std::move(items), keys, false);
  std::vector<Value> groups, members;
  for (size_t i = 0; i < items.size(); ++i) {
    members.push_back(items[i]);
    if (i + 1 < items.size() && equal(key(items[i]), key(items[i + 1]), run.budget())) continue;
    const Value grouper = name(members.front());
    const Value group = run.make({grouper, run.make(std::exchange(members, {}))}, Kind::tuple);
    group.list().is_group = true;
    groups.push_back(group);
  }
  return run.make(std::move(groups));
}

Value attr(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, "attr", {"name"}, 1);
  check(!value.is(Kind::dict), WI_E_UNSUPPORTED, "the filter 'attr' of a dict is not supported");
  return run.attribute(value, given.text(0).bytes());
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"length", length},
    {"count", length},
    {"default", default_filter},
    {"d", default_filter},
    {"first", first},
    {"last", last},
    {"list", to_list},
    {"items", items_filter},
    {"reverse", reverse},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
    {"batch", batch},
    {"slice", slices},
    {"groupby", groupby},
    {"attr", attr},
};

}  // namespace

Filter find_list_filter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const auto& filter) { return filter.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace wi::chat
