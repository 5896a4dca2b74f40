// The few pieces of Jinja that the chat families need: Python's strip(), string literals, and sums of
// literals and named values such as '[INST] ' + message['content']|trim + eos_token.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace wi {

// str.strip(): white space as Python counts it, at both ends.
std::string_view python_strip(std::string_view text);

// Contents of the string literal that starts at text[at] with a quote; nothing if it does not end.
std::optional<std::string> jinja_literal(std::string_view text, size_t at);

// The first {{ … }} of the template that has all words of `with` and none of `without`, without its braces.
std::optional<std::string_view> jinja_expression(std::string_view source,
                                                 std::span<const std::string_view> with,
                                                 std::span<const std::string_view> without);

// Value of a sum of literals and of the names in `values`, each perhaps followed by |trim or .strip();
// nothing for anything else.
std::optional<std::string> jinja_sum(std::string_view expression,
                                     std::span<const std::pair<std::string_view, std::string_view>> values);

}  // namespace wi
