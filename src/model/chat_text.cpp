#include "src/model/chat_text.h"

#include <algorithm>

#include "src/model/utf8.h"

namespace wi {
namespace {

bool is_python_space(std::string_view character) {
  if (character.size() == 1) {
    const auto c = static_cast<unsigned char>(character[0]);
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  }
  static constexpr std::string_view others[] = {
      "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
      "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
  return std::find(std::begin(others), std::end(others), character) != std::end(others);
}

// Start of the character that ends at text[end].
size_t character_start(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void skip_spaces(std::string_view& text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\n')) text.remove_prefix(1);
}

bool skip(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text, 0);
    if (length == 0 || !is_python_space(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (!text.empty()) {
    const size_t start = character_start(text, text.size());
    if (!is_python_space(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::optional<std::string> jinja_literal(std::string_view text, size_t at) {
  const char quote = text[at];
  std::string value;
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == quote) return value;
    if (text[i] != '\\' || i + 1 == text.size()) {
      value += text[i];
      continue;
    }
    const char escaped = text[++i];
    switch (escaped) {
      case 'n':
        value += '\n';
        break;
      case 't':
        value += '\t';
        break;
      case 'r':
        value += '\r';
        break;
      case '\\':
      case '\'':
      case '"':
        value += escaped;
        break;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> jinja_expression(std::string_view source,
                                                 std::span<const std::string_view> with,
                                                 std::span<const std::string_view> without) {
  for (size_t at = 0; (at = source.find("{{", at)) != std::string_view::npos; at += 2) {
    const size_t end = source.find("}}", at);
    if (end == std::string_view::npos) break;
    std::string_view inside = source.substr(at + 2, end - at - 2);
    const auto has = [&](std::string_view word) { return inside.find(word) != std::string_view::npos; };
    if (!std::all_of(with.begin(), with.end(), has) || std::any_of(without.begin(), without.end(), has))
      continue;
    if (inside.starts_with('-')) inside.remove_prefix(1);
    if (inside.ends_with('-')) inside.remove_suffix(1);
    return inside;
  }
  return std::nullopt;
}

std::optional<std::string> jinja_sum(std::string_view expression,
                                     std::span<const std::pair<std::string_view, std::string_view>> values) {
  std::string sum;
  for (;;) {
    skip_spaces(expression);
    std::string term;
    if (expression.starts_with('\'') || expression.starts_with('"')) {
      const auto literal = jinja_literal(expression, 0);
      if (!literal) return std::nullopt;
      term = *literal;
      size_t end = 1;
      while (expression[end] != expression[0]) end += expression[end] == '\\' ? 2 : 1;
      expression.remove_prefix(end + 1);
    } else {
      const auto value = std::find_if(values.begin(), values.end(),
                                      [&](const auto& named) { return skip(expression, named.first); });
      if (value == values.end()) return std::nullopt;
      term = value->second;
    }
    skip_spaces(expression);
    if (skip(expression, "|trim") || skip(expression, "| trim") || skip(expression, ".strip()"))
      term = python_strip(term);
    sum += term;
    skip_spaces(expression);
    if (expression.empty()) return sum;
    if (!skip(expression, "+")) return std::nullopt;
  }
}

}  // namespace wi
