// Walks a template's tree: statements print, expressions give values. One interpreter renders once. Filters,
// tests and methods (filters.h, tests.h, methods.h) come back to it to look up attributes, to call, and to
// count what they cost.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/callable.h"
#include "src/chat/limits.h"
#include "src/chat/syntax.h"
#include "src/chat/value.h"

namespace wi::chat {

// Names and their values; what is not found here is looked for in the parent.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}
  const Value* find(std::string_view name, Budget& budget) const;
  void set(const std::string& name, Value value, Budget& budget);
  void clear() { values_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> values_;
  std::shared_ptr<Scope> parent_;
};

class Interpreter {
 public:
  Interpreter(Budget& budget, int64_t now) : budget_(budget), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The template must outlive the interpreter. Errors name the line.
  Text render(const Template& program, const std::vector<std::pair<std::string, Value>>& variables);

  Budget& budget() { return budget_; }
  int64_t now() const { return now_; }  // seconds since the epoch

  // Values whose bytes and elements are counted.
  Value make(Text text);
  Value make_safe(Text text);  // as the filter safe marks it
  Value make(std::vector<Value> items, Kind kind = Kind::list);
  Value make_namespace();

  // of.name and of[key]: undefined if there is none.
  Value attribute(const Value& of, std::string_view name);
  Value item(const Value& of, const Value& key);
  Value call(const Value& callee, Arguments arguments);
  std::vector<Value> elements(const Value& of);  // throws for what cannot be walked
  Text print(const Value& value);                // str()
  List& generator(const Value& iterator);        // throws if a filter reads it already
  size_t length(Loop& loop);                     // of which all is taken then

 private:
  enum class Flow { normal, leave, next };
  class Level;
  struct MacroObject;
  friend struct MacroObject;

  Flow execute(const Block& block, Text& out);
  Flow execute(const Statement& statement, Text& out);
  Flow loop(const Statement& statement, Text& out);
  bool advance(Loop& loop);
  Value loop_attribute(const Value& self, std::string_view name);
  Value run_macro(const MacroObject& macro, Arguments arguments);
  Value make_macro(const Statement& statement);
  std::shared_ptr<Scope> scope_with(const std::vector<std::string>& unset) const;
  Value captured(const Statement& statement);
  void assign(const Target& target, const Value& value);

  Value evaluate(const Expression& expression);
  Value evaluate_part(const Expression& expression, size_t i);
  Value dict(const Expression& expression);
  Value comparison(const Expression& expression);
  Value slice(const Expression& expression);
  Arguments arguments(const Expression& expression);
  Value filtered(const Expression& filters, Value value);

  Budget& budget_;
  const int64_t now_;
  int line_ = 0, depth_ = 0;
  int64_t loop_depth_ = 0;
  std::shared_ptr<Scope> scope_;
  // What can hold itself, and is emptied at the end.
  std::vector<std::shared_ptr<Dict>> namespaces_;
  std::vector<std::shared_ptr<MacroObject>> macros_;
};

}  // namespace wi::chat
