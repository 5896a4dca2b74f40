// Python's operations on str, with the account of where bytes came from kept. Filters and methods share them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/chat/limits.h"
#include "src/chat/text.h"
#include "src/chat/unicode.h"

namespace wi::chat {

enum class Side : uint8_t { left = 1, right = 2, both = 3 };
Text strip(const Text& text, const Text* characters, Side side, Budget& budget);  // null: white space

// most < 0: all. Null separator: runs of white space.
std::vector<Text> split(const Text& text, const Text* separator, int64_t most, Budget& budget);
std::vector<Text> split_from_right(const Text& text, const Text* separator, int64_t most, Budget& budget);
std::vector<Text> split_lines(const Text& text, bool keep_ends, Budget& budget);

Text replace(const Text& text, const Text& old, const Text& with, int64_t most, Budget& budget);
Text escaped(const Text& text, Budget& budget);  // & < > ' " for HTML
Text join(const Text& separator, const std::vector<Text>& parts, Budget& budget);
Text padded(const Text& text, int64_t left, int64_t right, const Text& with, Budget& budget);

Text in_case(const Text& text, Case wanted);  // upper, lower
Text capitalised(const Text& text);
Text title_case(const Text& text);  // str.title()
Text swapped_case(const Text& text);
bool is_all_in_case(const Text& text, Case wanted);  // str.isupper, str.islower
Text title_of_words(const Text& text);               // Jinja's filter, whose words end elsewhere

}  // namespace wi::chat
