// The host's JSON (tools, variables, fields of messages) as values, in the order it was written.
#pragma once

#include <string_view>

#include "src/chat/value.h"

namespace wi::chat {

// Throws WI_E_ARGUMENT, with the name and the byte, for what is no JSON or nests deeper than values may, and
// WI_E_UNSUPPORTED for integers of more than 64 bits.
Value parse_json_value(std::string_view json, const char* name);

}  // namespace wi::chat
