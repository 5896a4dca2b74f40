// A template as tokens: what is printed as it is, and the parts of {{ … }} and {% … %}. White space is
// treated as transformers asks Jinja to: a tag's line loses its indentation and its newline (lstrip_blocks,
// trim_blocks), and - or + inside the braces say otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wi::chat {

struct Token {
  enum class Kind : uint8_t {
    data,            // text between tags
    block_begin,     // {%
    block_end,       // %}
    variable_begin,  // {{
    variable_end,    // }}
    name,
    text,  // a string literal, without quotes and escapes
    integer,
    real,
    symbol,  // an operator or a bracket
    end
  };
  Kind kind = Kind::end;
  int line = 0;
  std::string value;
};

// Throws WI_E_FORMAT with the line for what is no template.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace wi::chat
