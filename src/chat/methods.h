// The methods of Python's str, list, tuple and dict, and of Jinja's loop.
#pragma once

#include <string_view>

#include "src/chat/interpreter.h"

namespace wi::chat {

// A callable; undefined without an object if the type has no such method. Methods that Python has and this
// library has not are refused by name. What changes a list or a dict is undefined with a reason, as in the
// sandbox that transformers runs templates in.
Value method_of(const Value& self, std::string_view name);

}  // namespace wi::chat
