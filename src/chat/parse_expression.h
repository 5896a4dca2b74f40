// Tokens to a tree: the expressions, with Jinja's precedence (which is not quite Python's: ~ binds tighter
// than +, filters and tests tighter than any operator).
#pragma once

#include "src/chat/syntax.h"
#include "src/chat/token_stream.h"

namespace wi::chat {

ExpressionPtr parse_expression(TokenStream& tokens, bool with_choice = true);
// One expression, or several with commas between them as a tuple. `until`: a name that ends it too.
ExpressionPtr parse_tuple(TokenStream& tokens, bool with_choice = true, bool may_be_empty = false,
                          std::string_view until = {});
// | filter | filter …, or "filter | filter …" if starts_with_name; the first one's value is null.
ExpressionPtr parse_filters(TokenStream& tokens, bool starts_with_name);

}  // namespace wi::chat
