// Values as text: Python's str() and repr(), and JSON as transformers' tojson writes it.
#pragma once

#include <string>

#include "src/chat/limits.h"
#include "src/chat/value.h"

namespace wi::chat {

Text to_text(const Value& value, Budget& budget);  // str()
Text to_repr(const Value& value, Budget& budget);  // repr()

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool indented = false;
  Text indent;  // of one level
  Text item_separator{", "}, key_separator{": "};
};
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

std::string real_text(double value);  // repr() of a float

}  // namespace wi::chat
