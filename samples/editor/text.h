// Positions and edits of the Language Server Protocol: lines from 0, and in a line UTF-16 code units from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace editor {

struct Position {
  uint64_t line = 0, character = 0;
};

// The byte of UTF-8 text that it stands before. Beyond the end of its line it is the line's end, beyond the last line
// the text's, and within a code point its beginning.
size_t offset_of(std::string_view text, Position position);

// The text with what is between two positions replaced; throws if the second one is before the first.
std::string replaced(std::string_view text, Position start, Position end, std::string_view by);

}  // namespace editor
