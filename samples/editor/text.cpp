#include "text.h"

#include <stdexcept>

namespace editor {
namespace {

// Where the line behind the one at `from` begins; npos: there is none. Lines end with \n, \r\n or \r.
size_t next_line(std::string_view text, size_t from) {
  const size_t end = text.find_first_of("\r\n", from);
  if (end == std::string_view::npos) return end;
  return end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
}

size_t bytes_of_code_point(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

}  // namespace

size_t offset_of(std::string_view text, Position position) {
  size_t at = 0;
  for (; position.line > 0; --position.line) {
    at = next_line(text, at);
    if (at == std::string_view::npos) return text.size();
  }
  for (uint64_t left = position.character; at < text.size() && text[at] != '\n' && text[at] != '\r';) {
    const size_t bytes = bytes_of_code_point(static_cast<unsigned char>(text[at]));
    const uint64_t units = bytes == 4 ? 2 : 1;
    if (left < units) break;
    left -= units;
    at += bytes;
  }
  return at;
}

std::string replaced(std::string_view text, Position start, Position end, std::string_view by) {
  const size_t from = offset_of(text, start), to = offset_of(text, end);
  if (to < from) throw std::invalid_argument("a range ends before it starts");
  std::string result(text.substr(0, from));
  result += by;
  result += text.substr(to);
  return result;
}

}  // namespace editor
