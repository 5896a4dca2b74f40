// Tokens to a tree: the statements. What chat templates have no use for (extends, include, import, block and
// so on) is refused by name.
#pragma once

#include <string_view>

#include "src/chat/syntax.h"

namespace wi::chat {

// Throws WI_E_FORMAT for what is no template, WI_E_UNSUPPORTED for what this library does not know, each with
// the line.
Template parse_template(std::string_view source);

}  // namespace wi::chat
