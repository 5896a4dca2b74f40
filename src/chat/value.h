// The values of a template: Python's, as far as templates see them. Values are immutable and shared; only
// namespaces change. Lists say how deep they nest, so that nothing that walks them can run out of stack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/chat/text.h"
#include "src/text_hash.h"

namespace wi::chat {

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  tuple,
  range,
  view,      // dict.items() and the like: has a length, but no elements by number
  iterator,  // of map, select and so on: can be walked once
  dict,
  space,  // namespace()
  callable,
  loop
};

struct Object {
  virtual ~Object() = default;
  int nesting = 0;
  uint64_t weight = 1;  // what walking it costs: what is shared counts each time
};
struct TextObject;
struct List;
struct Dict;
struct Callable;
struct Loop;
class Budget;

class Value {
 public:
  Value() = default;  // undefined
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}
  static Value none() { return Value(Kind::none, nullptr); }
  static Value of(bool value) { return Value(Kind::boolean, value); }
  static Value of(int64_t value) { return Value(Kind::integer, value); }
  static Value of(double value);
  static Value of(Text text);
  static Value of(std::string_view own) { return of(Text(std::string(own))); }
  static Value of(const char* own) { return of(std::string_view(own)); }
  static Value of(std::vector<Value> items, Kind kind = Kind::list);
  static Value of(std::shared_ptr<Dict> dict);
  static Value undefined(std::string why);  // why it is not there, for whoever uses it

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::boolean || kind_ == Kind::integer || kind_ == Kind::real; }
  bool is_whole() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }
  bool is_elements() const { return kind_ >= Kind::list && kind_ <= Kind::iterator; }  // holds a List
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }                                                 // of is_whole
  double real() const { return kind_ == Kind::real ? real_ : static_cast<double>(integer_); }  // of is_number
  const Text& text() const;
  const TextObject& text_object() const;
  bool is_safe() const;  // of any value
  List& list() const;    // of is_elements
  Dict& dict() const;    // of dict and space
  Callable& callable() const;
  Loop& loop() const;
  std::string why() const;  // of undefined
  int nesting() const { return object_ ? object_->nesting : 0; }
  uint64_t weight() const { return object_ ? object_->weight : 1; }
  const Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }

  bool truth() const;
  bool same_as(const Value& other) const;  // Python's `is`
  const char* type_name() const;           // Python's

 private:
  Value(Kind kind, int64_t integer) : kind_(kind), integer_(integer) {}

  Kind kind_ = Kind::undefined;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

struct TextObject : Object {
  explicit TextObject(Text t) : text(std::move(t)) { weight = 1 + text.size() / 64; }
  size_t characters() const;  // counted once
  Text text;
  bool is_safe = false;  // the filter safe made it: what is added to it is escaped for HTML

 private:
  mutable size_t characters_ = SIZE_MAX;
};

struct List : Object {
  std::vector<Value> items;
  size_t taken = 0;       // of an iterator
  bool is_read = false;   // by a filter that Jinja runs as its result is walked through
  bool is_group = false;  // of groupby: a tuple whose elements are called grouper and list
};

// In order of insertion. Keys that Python holds equal (1, 1.0, True) are one.
struct Dict : Object {
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  // Those of a template, which may look up long keys often.
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key, Budget& budget) const;
  void set(const Value& key, Value value, Budget& budget);
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  void clear() { entries_.clear(), index_.clear(); }

 private:
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t, TextHash> index_;
};

class Scope;
struct Statement;

// The variable `loop` of a for block.
struct Loop : Object {
  std::vector<Value> items;      // as far as they are taken
  std::shared_ptr<List> source;  // of more; null: there are none
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> around;
  size_t index = 0;
  int64_t depth = 0;  // of for blocks around it
  std::vector<Value> changed_last;
  bool changed_called = false;
};

// The object holds the value: it nests deeper than that. Throws beyond the limit.
void nest(Object& object, const Value& inside);
Value undefined_name(std::string_view name);
void require_defined(const Value& value);  // throws what undefined values say

bool equal(const Value& a, const Value& b, Budget& budget);
// Python's order of numbers, texts and lists; throws for what has none. -1, 0, 1; 2 for numbers without order
// (NaN).
int compare(const Value& a, const Value& b, std::string_view operation, Budget& budget);

}  // namespace wi::chat
