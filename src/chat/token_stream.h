// The tokens of a template, one after the other, and the depth that the parser has reached in them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/chat/lexer.h"
#include "src/chat/limits.h"

namespace wi::chat {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_symbol(std::string_view symbol) const {
    return is(Token::Kind::symbol) && current().value == symbol;
  }
  bool is_name(std::string_view name) const { return is(Token::Kind::name) && current().value == name; }
  Token take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_symbol(std::string_view symbol) { return is_symbol(symbol) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_symbol(std::string_view symbol) {
    if (!skip_symbol(symbol)) unexpected(symbol);
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) unexpected(name);
  }
  Token expect(Token::Kind kind, const char* what) {
    if (!is(kind)) unexpected(what);
    return take();
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    const bool ends = is(Token::Kind::block_end) || is(Token::Kind::variable_end) || is(Token::Kind::end);
    fail(WI_E_FORMAT, "line ", line(), ": ",
         ends ? "an end" : concat("'", current().value.substr(0, 40), "'"), " where ", wanted,
         " was expected");
  }

  size_t position() const { return at_; }
  // Whether a token since that position is this name.
  bool mentions(size_t since, std::string_view name) const {
    return std::any_of(
        tokens_.begin() + static_cast<ptrdiff_t>(since), tokens_.begin() + static_cast<ptrdiff_t>(at_),
        [&](const Token& token) { return token.kind == Token::Kind::name && token.value == name; });
  }

  // Counts a level while it lives.
  class Level {
   public:
    explicit Level(TokenStream& stream) : stream_(stream) {
      check(++stream_.depth_ <= limits::kSyntaxDepth, WI_E_UNSUPPORTED, "line ", stream_.line(),
            ": the template nests deeper than ", limits::kSyntaxDepth);
    }
    ~Level() { --stream_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace wi::chat
