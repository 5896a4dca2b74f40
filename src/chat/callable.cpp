#include "src/chat/callable.h"

#include <algorithm>

#include "src/chat/interpreter.h"
#include "src/error.h"

namespace wi::chat {

// What a method makes of a text that is marked safe is marked too.
Value Builtin::call(Interpreter& run, Arguments arguments) {
  Value result = function(run, self, arguments);
  if (!self.is_safe()) return result;
  if (result.is(Kind::text)) return run.make_safe(result.text());
  if (!result.is(Kind::list) && !result.is(Kind::tuple)) return result;
  std::vector<Value> items = result.list().items;
  for (Value& item : items) item = run.make_safe(item.text());
  return run.make(std::move(items), result.kind());
}

Parameters::Parameters(const Arguments& arguments, std::string_view function,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function), names_(names), values_(names.size()) {
  check(arguments.positional.size() <= names_.size(), WI_E_ARGUMENT, function, "() takes at most ",
        names_.size(), " arguments, ", arguments.positional.size(), " are given");
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [text, value] : arguments.named) {
    const std::string_view name = text.bytes();
    const size_t at = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    check(at < names_.size(), WI_E_ARGUMENT, function, "() has no argument '", name, "'");
    check(!values_[at], WI_E_ARGUMENT, function, "() gets '", name, "' twice");
    values_[at] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    check(values_[i], WI_E_ARGUMENT, function, "() lacks its argument '", names_[i], "'");
}

int64_t Parameters::integer(size_t i, int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  check(values_[i]->is_whole(), WI_E_ARGUMENT, function_, "(): ", names_[i], " is ", values_[i]->type_name(),
        ", must be int");
  return values_[i]->integer();
}

const Text& Parameters::text(size_t i) const {
  check(values_[i]->is(Kind::text), WI_E_ARGUMENT, function_, "(): ", names_[i], " is ",
        values_[i]->type_name(), ", must be str");
  return values_[i]->text();
}

}  // namespace wi::chat
