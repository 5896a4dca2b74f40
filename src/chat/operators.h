// Python's operators on template values.
#pragma once

#include <string_view>

#include "src/chat/interpreter.h"

namespace wi::chat {

Value operate(Interpreter& run, std::string_view symbol, const Value& left, const Value& right);  // + - * …
Value sign(char symbol, const Value& value);
bool holds_between(Interpreter& run, std::string_view symbol, const Value& left,
                   const Value& right);                                  // == != < …
bool contains(Interpreter& run, const Value& whole, const Value& part);  // part in whole

}  // namespace wi::chat
