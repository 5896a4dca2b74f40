// The functions that every template can call: range, dict, namespace, and transformers' raise_exception and
// strftime_now.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "src/chat/interpreter.h"

namespace wi::chat {

std::span<const std::pair<std::string, Value>> global_functions();

}  // namespace wi::chat
