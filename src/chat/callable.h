// What a template can call, and the arguments it calls it with.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/chat/value.h"

namespace wi::chat {

class Interpreter;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Text, Value>> named;  // a name that stood behind ** may be the host's
};

struct Callable : Object {
  virtual Value call(Interpreter& run, Arguments arguments) = 0;
};

// A method, or a function of the template's globals.
struct Builtin : Callable {
  using Function = Value (*)(Interpreter& run, const Value& self, Arguments& arguments);
  Builtin(Function f, Value s) : function(f), self(std::move(s)) { nesting = self.nesting() + 1; }
  Value call(Interpreter& run, Arguments arguments) override;
  Function function;
  Value self;
};

// Arguments put to the names of a function's parameters, as Python does; throws for one too many, for an
// unknown name, and if one of the first `required` is missing.
class Parameters {
 public:
  Parameters(const Arguments& arguments, std::string_view function,
             std::initializer_list<std::string_view> names, size_t required = 0);
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value get(size_t i, const Value& otherwise) const { return values_[i] ? *values_[i] : otherwise; }
  bool truth(size_t i) const { return values_[i] && values_[i]->truth(); }
  bool given(size_t i) const { return values_[i] && !values_[i]->is(Kind::none); }  // and not None
  int64_t integer(size_t i, int64_t otherwise) const;
  const Text& text(size_t i) const;

 private:
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace wi::chat
