// Python's two ways to put values into a text: "%s of %d" % (a, b) and "{} of {}".format(a, b).
#pragma once

#include "src/chat/interpreter.h"

namespace wi::chat {

Text format_percent(Interpreter& run, const Text& format, const Value& values);
Text format_braces(Interpreter& run, const Text& format, const Arguments& arguments);

}  // namespace wi::chat
