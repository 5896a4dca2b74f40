// Jinja's tests: value is name(arguments).
#pragma once

#include <string_view>

#include "src/chat/interpreter.h"

namespace wi::chat {

bool apply_test(Interpreter& run, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace wi::chat
