// Jinja's filters: value | name(arguments). Those of texts and numbers are in filters_text.cpp, those of
// lists and dicts in filters_lists.cpp.
#pragma once

#include <string_view>

#include "src/chat/interpreter.h"

namespace wi::chat {

Value apply_filter(Interpreter& run, std::string_view name, const Value& value, const Arguments& arguments);

// What an attribute's path leads to, "a.b.0".
Value at_path(Interpreter& run, const Value& value, const Value& path);

using Filter = Value (*)(Interpreter& run, const Value& value, const Arguments& arguments);
Filter find_text_filter(std::string_view name);  // null: there is none
Filter find_list_filter(std::string_view name);

}  // namespace wi::chat
