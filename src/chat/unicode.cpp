#include "src/chat/unicode.h"

#include <algorithm>
#include <iterator>

#include "src/chat/unicode_tables.h"
#include "src/utf8.h"

namespace wi::chat {
namespace {

template <size_t N>
bool in_ranges(const tables::CodeRange (&ranges)[N], char32_t code) {
  const auto* range = std::partition_point(std::begin(ranges), std::end(ranges),
                                           [&](const tables::CodeRange& r) { return r.last < code; });
  return range != std::end(ranges) && range->first <= code;
}

template <size_t N, size_t M>
void append_mapped(std::string& out, char32_t code, const tables::CaseRange (&simple)[N],
                   const tables::FullCase (&full)[M]) {
  const auto* range = std::partition_point(std::begin(simple), std::end(simple),
                                           [&](const tables::CaseRange& r) { return r.last < code; });
  if (range != std::end(simple) && range->first <= code &&
      (code - range->first) % static_cast<char32_t>(range->stride) == 0)
    return append_utf8(out, static_cast<char32_t>(static_cast<int>(code) + range->delta));
  const auto* several = std::partition_point(std::begin(full), std::end(full),
                                             [&](const tables::FullCase& f) { return f.from < code; });
  if (several == std::end(full) || several->from != code) return append_utf8(out, code);
  for (char32_t to : several->to)
    if (to) append_utf8(out, to);
}

bool is_ascii_letter(char32_t code) { return (code | 32) >= 'a' && (code | 32) <= 'z'; }

}  // namespace

size_t character_length(std::string_view text, size_t at) {
  return std::max<size_t>(1, utf8_length(text, at));
}

size_t character_start(std::string_view text, size_t end) {
  for (size_t length = std::min<size_t>(4, end); length > 1; --length)
    if (utf8_length(text.substr(0, end), end - length) == length) return end - length;
  return end - 1;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_length(text, at)) ++count;
  return count;
}

size_t character_offset(std::string_view text, size_t from, size_t characters) {
  for (; characters > 0 && from < text.size(); --characters) from += character_length(text, from);
  return from;
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(character[i])); };
  switch (character.size()) {
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    default:
      return byte(0) < 0x80 ? byte(0) : 0xDC00 + byte(0);
  }
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code >= 0xDC80 && code < 0xDD00) return put(code - 0xDC00);  // a lone byte, as it was
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

bool is_space(char32_t code) {
  if (code < 0x80) return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_line_break(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code < 0x7F;
  return !(code >= 0xD800 && code < 0xE000) && !in_ranges(tables::kUnprintable, code);
}

int decimal_digit(char32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9' ? static_cast<int>(code - '0') : -1;
  const auto* above = std::upper_bound(std::begin(tables::kZeros), std::end(tables::kZeros), code);
  if (above == std::begin(tables::kZeros) || code - above[-1] > 9) return -1;
  return static_cast<int>(code - above[-1]);
}

bool is_cased(char32_t code) { return code < 0x80 ? is_ascii_letter(code) : in_ranges(tables::kCased, code); }

bool is_case_ignorable(char32_t code) {
  if (code < 0x80) return code == '\'' || code == '.' || code == ':' || code == '^' || code == '`';
  return in_ranges(tables::kCaseIgnorable, code);
}

void append_in_case(std::string& out, char32_t code, Case wanted) {
  if (code < 0x80)
    out += static_cast<char>(
        is_ascii_letter(code) ? (wanted == Case::lower ? code | 32 : code & ~char32_t{32}) : code);
  else if (wanted == Case::upper)
    append_mapped(out, code, tables::kUpper, tables::kUpperFull);
  else if (wanted == Case::lower)
    append_mapped(out, code, tables::kLower, tables::kLowerFull);
  else
    append_mapped(out, code, tables::kTitle, tables::kTitleFull);
}

}  // namespace wi::chat
