#include "src/chat/value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/chat/callable.h"
#include "src/chat/limits.h"
#include "src/chat/unicode.h"

namespace wi::chat {
namespace {

struct Missing : Object {
  explicit Missing(std::string w) : why(std::move(w)) {}
  std::string why;
};

uint64_t heavier(uint64_t weight, const Value& inside) {
  uint64_t sum = 0;
  return __builtin_add_overflow(weight, inside.weight(), &sum) ? UINT64_MAX : sum;
}

std::string key_of(const Value& value);
// What it takes to copy and to hash a key.
void charge_key(const Value& key, Budget& budget) {
  budget.bytes(key.is(Kind::text) ? key.text().size() : 64 * std::min<uint64_t>(key.weight(), 1 << 30));
}
bool same(const Value& a, const Value& b);
int order(const Value& a, const Value& b, std::string_view operation);

}  // namespace

Value Value::of(double value) {
  Value made(Kind::real, int64_t{0});
  made.real_ = value;
  return made;
}

Value Value::of(Text text) { return Value(Kind::text, std::make_shared<TextObject>(std::move(text))); }

Value Value::of(std::vector<Value> items, Kind kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    nest(*list, item);
    list->weight = heavier(list->weight, item);
  }
  list->items = std::move(items);
  return Value(kind, std::move(list));
}

Value Value::of(std::shared_ptr<Dict> dict) { return Value(Kind::dict, std::move(dict)); }

Value Value::undefined(std::string why) {
  return Value(Kind::undefined, std::make_shared<Missing>(std::move(why)));
}

const Text& Value::text() const { return text_object().text; }
const TextObject& Value::text_object() const { return static_cast<const TextObject&>(*object_); }
bool Value::is_safe() const { return kind_ == Kind::text && text_object().is_safe; }
List& Value::list() const { return static_cast<List&>(*object_); }
Dict& Value::dict() const { return static_cast<Dict&>(*object_); }
Callable& Value::callable() const { return static_cast<Callable&>(*object_); }
Loop& Value::loop() const { return static_cast<Loop&>(*object_); }
std::string Value::why() const {
  return object_ ? static_cast<const Missing&>(*object_).why : std::string("a value is undefined");
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return integer_ != 0;
    case Kind::real:
      return real_ != 0;
    case Kind::text:
      return !text().empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return !list().items.empty();
    case Kind::dict:
      return !dict().entries().empty();
    default:
      return true;
  }
}

bool Value::same_as(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (kind_ == Kind::none) return true;
  if (is_whole()) return integer_ == other.integer_;
  if (kind_ == Kind::real) return real_ == other.real_;
  return object_ == other.object_;
}

const char* Value::type_name() const {
  static constexpr const char* names[] = {"undefined", "None", "bool",      "int",      "float",
                                          "str",       "list", "tuple",     "range",    "dict_items",
                                          "generator", "dict", "Namespace", "function", "LoopContext"};
  return names[static_cast<size_t>(kind_)];
}

size_t TextObject::characters() const {
  if (characters_ == SIZE_MAX) characters_ = count_characters(text.bytes());
  return characters_;
}

const Value* Dict::find(const Value& key) const {
  const auto found = index_.find(key_of(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index_.find('s' + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  nest(*this, key);
  nest(*this, value);
  weight = heavier(heavier(weight, key), value);
  const auto [place, fresh] = index_.emplace(key_of(key), entries_.size());
  if (fresh)
    entries_.emplace_back(key, std::move(value));
  else
    entries_[place->second].second = std::move(value);
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  charge_key(key, budget);
  return find(key);
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  budget.bytes(key.size());
  return find(key);
}

void Dict::set(const Value& key, Value value, Budget& budget) {
  charge_key(key, budget);
  set(key, std::move(value));
}

void nest(Object& object, const Value& inside) {
  object.nesting = std::max(object.nesting, inside.nesting() + 1);
  check(object.nesting <= limits::kNesting, WI_E_UNSUPPORTED, "values nest deeper than ", limits::kNesting);
}

Value undefined_name(std::string_view name) { return Value::undefined(concat("'", name, "' is undefined")); }

void require_defined(const Value& value) {
  if (value.is(Kind::undefined)) fail(WI_E_ARGUMENT, value.why());
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step(std::min(a.weight(), b.weight()));
  return same(a, b);
}

int compare(const Value& a, const Value& b, std::string_view operation, Budget& budget) {
  budget.step(std::min(a.weight(), b.weight()));
  return order(a, b, operation);
}

namespace {

bool same(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      return a.text().bytes() == b.text().bytes();
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
      return a.object() == b.object() || std::equal(a.list().items.begin(), a.list().items.end(),
                                                    b.list().items.begin(), b.list().items.end(), same);
    case Kind::dict: {
      if (a.object() == b.object()) return true;
      const auto& entries = a.dict().entries();
      return entries.size() == b.dict().entries().size() &&
             std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
               const Value* other = b.dict().find(entry.first);
               return other && same(entry.second, *other);
             });
    }
    default:
      return a.object() == b.object();
  }
}

int order(const Value& a, const Value& b, std::string_view operation) {
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.is_whole() && b.is_whole()) return sign(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return sign(a.real(), b.real());
  if (a.is(Kind::text) && b.is(Kind::text)) return sign(a.text().bytes().compare(b.text().bytes()), 0);
  if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!same(x[i], y[i])) return order(x[i], y[i], operation);
    return sign(x.size(), y.size());
  }
  for (const Value* value : {&a, &b}) require_defined(*value);
  fail(WI_E_ARGUMENT, "'", operation, "' is not defined between ", a.type_name(), " and ", b.type_name());
}

// One text for all keys that Python holds equal.
std::string key_of(const Value& value) {
  const auto number = [](char mark, uint64_t raw) {
    std::string key(1 + sizeof(uint64_t), mark);
    std::memcpy(key.data() + 1, &raw, sizeof(uint64_t));
    return key;
  };
  switch (value.kind()) {
    case Kind::text:
      return concat('s', value.text().bytes());
    case Kind::none:
      return "n";
    case Kind::boolean:
    case Kind::integer:
      return number('i', static_cast<uint64_t>(value.integer()));
    case Kind::real:
      if (value.real() == std::floor(value.real()) && std::abs(value.real()) < 9e18)
        return number('i', static_cast<uint64_t>(static_cast<int64_t>(value.real())));
      return number('r', std::bit_cast<uint64_t>(value.real()));
    case Kind::tuple: {
      check(value.weight() <= 1000, WI_E_UNSUPPORTED, "a key is a tuple of more than 1000 values");
      std::string key = "t";
      for (const Value& item : value.list().items) {
        const std::string part = key_of(item);
        key += number('l', part.size()) + part;
      }
      return key;
    }
    case Kind::undefined:  // all of them are one
      return "u";
    case Kind::range:
      fail(WI_E_UNSUPPORTED, "a range as a key is not supported");
    case Kind::list:
    case Kind::view:
    case Kind::dict:
      fail(WI_E_ARGUMENT, "a ", value.type_name(), " cannot be a key");
    default:
      return number('o', reinterpret_cast<uintptr_t>(value.object()));
  }
}

}  // namespace
}  // namespace wi::chat
