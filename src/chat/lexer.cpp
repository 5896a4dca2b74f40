#include "src/chat/lexer.h"

#include <algorithm>
#include <cctype>

#include "src/chat/unicode.h"
#include "src/error.h"

namespace wi::chat {
namespace {

std::string with_plain_newlines(std::string_view source);
std::string unescaped(std::string_view literal, int line);

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t open = next_tag();
      if (open == std::string_view::npos) {
        add_data(rest());
        break;
      }
      const char kind = source_[open + 1];
      const bool is_raw = kind == '%' && raw_end(open) != 0;
      const char sign = sign_at(open + 2);
      add_data(before_tag(rest().substr(0, open - at_), sign, kind == '{'));
      at_ = open;
      if (is_raw)
        raw_block();
      else if (kind == '#')
        comment();
      else
        tag(kind == '%');
    }
    tokens_.push_back({Token::Kind::end, line_, ""});
    return std::move(tokens_);
  }

 private:
  using View = std::string_view;
  View rest() const { return View(source_).substr(at_); }
  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  size_t next_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos && at + 1 < source_.size();
         at = source_.find('{', at + 1))
      if (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#') return at;
    return View::npos;
  }

  // What stays of the text before a tag.
  View before_tag(View text, char sign, bool is_variable) const {
    if (sign == '-') return text.substr(0, text.size() - spaces_at_end(text));
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == View::npos ? 0 : newline + 1;
    if (line == 0 && !line_starts_) return text;
    return spaces_at_end(text) >= text.size() - line ? text.substr(0, line) : text;
  }

  static size_t spaces_at_end(View text) {
    size_t end = text.size();
    while (end > 0) {
      const size_t start = character_start(text, end);
      if (!is_space(code_point(text.substr(start, end - start)))) break;
      end = start;
    }
    return text.size() - end;
  }

  void skip(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    if (bytes) line_starts_ = source_[at_ - 1] == '\n';
  }

  void skip_spaces() {
    while (at_ < source_.size()) {
      const size_t length = character_length(source_, at_);
      if (!is_space(code_point(View(source_).substr(at_, length)))) break;
      skip(length);
    }
  }

  void add_data(View text) {
    if (!text.empty()) tokens_.push_back({Token::Kind::data, line_, std::string(text)});
    const size_t tag = next_tag();
    skip((tag == View::npos ? source_.size() : tag) - at_);
  }

  void add(Token::Kind kind, std::string value) { tokens_.push_back({kind, line_, std::move(value)}); }

  // If the tag at `open` is {% raw %}: where it ends; else 0. White space behind it is kept but for -%}.
  size_t raw_end(size_t open) const { return word_tag_end(open, "raw"); }

  size_t word_tag_end(size_t open, View word) const {
    size_t at = open + 2;
    if (sign_at(at)) ++at;
    const auto spaces = [&] {
      while (at < source_.size()) {
        const size_t length = character_length(source_, at);
        if (!is_space(code_point(View(source_).substr(at, length)))) break;
        at += length;
      }
    };
    spaces();
    if (View(source_).substr(at, word.size()) != word) return 0;
    at += word.size();
    spaces();
    if (sign_at(at) == '-' || (word == "endraw" && sign_at(at))) ++at;
    return View(source_).substr(at, 2) == "%}" ? at + 2 : 0;
  }

  // Behind the closing braces: -%} takes all white space, %} of a block or a comment one newline.
  void after_tag(char sign, bool trims_newline) {
    if (sign == '-')
      skip_spaces();
    else if (sign != '+' && trims_newline && at_ < source_.size() && source_[at_] == '\n')
      skip(1);
  }

  void raw_block() {
    const int line = line_;
    const size_t opened = raw_end(at_);
    const char sign = sign_at(opened - 3);
    skip(opened - at_);
    after_tag(sign, false);
    const size_t begin = at_;
    for (size_t close = source_.find("{%", begin); close != std::string::npos;
         close = source_.find("{%", close + 1)) {
      const size_t end = word_tag_end(close, "endraw");
      if (end == 0) continue;
      const View text = before_tag(View(source_).substr(begin, close - begin), sign_at(close + 2), false);
      if (!text.empty()) add(Token::Kind::data, std::string(text));
      skip(end - at_);
      after_tag(sign_at(end - 3), true);
      return;
    }
    fail(WI_E_FORMAT, "line ", line, ": {% raw %} has no {% endraw %}");
  }

  void comment() {
    const size_t inside = at_ + 2 + (sign_at(at_ + 2) != '\0');
    const size_t close = source_.find("#}", inside);
    check(close != std::string::npos, WI_E_FORMAT, "line ", line_, ": a comment has no end");
    const char sign = close > inside ? sign_at(close - 1) : '\0';
    skip(close + 2 - at_);
    after_tag(sign, true);
  }

  void tag(bool is_block) {
    const int line = line_;
    add(is_block ? Token::Kind::block_begin : Token::Kind::variable_begin, "");
    skip(2 + (sign_at(at_ + 2) != '\0'));
    std::string open;  // brackets that are not closed
    const View close = is_block ? "%}" : "}}";
    for (;;) {
      skip_spaces();
      check(at_ < source_.size(), WI_E_FORMAT, "line ", line, ": a tag has no end");
      const char sign = sign_at(at_);
      const bool signed_end = sign && (is_block || sign == '-') && rest().substr(1, 2) == close;
      if (open.empty() && (signed_end || rest().starts_with(close))) {
        add(is_block ? Token::Kind::block_end : Token::Kind::variable_end, "");
        skip(signed_end ? 3 : 2);
        after_tag(signed_end ? sign : '\0', is_block);
        return;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[at_];
    if (std::isdigit(static_cast<unsigned char>(c))) return number();
    if (c == '_' || std::isalpha(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
      size_t length = 1;
      while (at_ + length < source_.size() && is_name_byte(source_[at_ + length])) ++length;
      add(Token::Kind::name, source_.substr(at_, length));
      return skip(length);
    }
    if (c == '\'' || c == '"') return literal(c);
    static constexpr View two[] = {"==", "!=", ">=", "<=", "//", "**"};
    for (View symbol : two)
      if (rest().starts_with(symbol)) {
        add(Token::Kind::symbol, std::string(symbol));
        return skip(2);
      }
    check(View("+-/*%~[](){}<>=.:|,;").find(c) != View::npos, WI_E_FORMAT, "line ", line_,
          ": unexpected character '", rest().substr(0, character_length(source_, at_)), "'");
    static constexpr View opening = "([{", closing = ")]}";
    if (opening.find(c) != View::npos) open += closing[opening.find(c)];
    if (closing.find(c) != View::npos) {
      check(!open.empty() && open.back() == c, WI_E_FORMAT, "line ", line_, ": unexpected '", c, "'");
      open.pop_back();
    }
    add(Token::Kind::symbol, std::string(1, c));
    skip(1);
  }

  static bool is_name_byte(char c) {
    return c == '_' || std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80;
  }

  // 12, 1_000, 0x1f, 0o17, 0b1, 1.5, 1e9, 1.5e-3; underscores are left out of the value.
  void number() {
    const auto digit = [&](size_t at, bool hex) {
      const auto c = static_cast<unsigned char>(at < source_.size() ? source_[at] : '\0');
      return hex ? std::isxdigit(c) != 0 : std::isdigit(c) != 0;
    };
    const auto run = [&](size_t at, bool hex) {
      while (digit(at, hex) || (at < source_.size() && source_[at] == '_' && digit(at + 1, hex))) ++at;
      return at;
    };
    const char mark = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 32) : '\0';
    const bool prefixed = source_[at_] == '0' && (mark == 'x' || mark == 'o' || mark == 'b');
    size_t end = run(prefixed ? at_ + 2 : at_, mark == 'x');
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // the 0 of a.0.1
    if (!prefixed && !after_dot && end < source_.size() && source_[end] == '.' && digit(end + 1, false)) {
      end = run(end + 1, false);
      real = true;
    }
    if (!prefixed && !after_dot && end < source_.size() && (source_[end] | 32) == 'e') {
      const size_t exponent = end + 1 + (sign_at(end + 1) != '\0');
      if (digit(exponent, false)) {
        end = run(exponent, false);
        real = true;
      }
    }
    std::string value = source_.substr(at_, end - at_);
    value.erase(std::remove(value.begin(), value.end(), '_'), value.end());
    check(real || prefixed || value[0] != '0' || value.find_first_not_of('0') == std::string::npos,
          WI_E_FORMAT, "line ", line_, ": the number ", value.substr(0, 40), " begins with 0");
    add(real ? Token::Kind::real : Token::Kind::integer, std::move(value));
    skip(end - at_);
  }

  void literal(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    check(end < source_.size(), WI_E_FORMAT, "line ", line_, ": a string has no end");
    add(Token::Kind::text, unescaped(View(source_).substr(at_ + 1, end - at_ - 1), line_));
    skip(end + 1 - at_);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  return Lexer(with_plain_newlines(source)).run();
}

namespace {

// \r\n and \r become \n, and one newline at the very end is dropped, as Jinja does.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Python's escapes. An unknown one keeps its backslash. Jinja has written all but ASCII as escapes before.
std::string unescaped(std::string_view literal, int line) {
  const auto append_escape = [](std::string& out, char32_t code) {
    const int digits = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
    out += digits == 2 ? 'x' : digits == 4 ? 'u' : 'U';
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[code >> shift & 15];
  };
  std::string text;
  size_t at = 0;
  const auto digits = [&](size_t count, int base, bool exact) {
    char32_t code = 0;
    size_t used = 0;
    for (; used < count && at < literal.size(); ++used, ++at) {
      const char c = literal[at];
      const int digit = c >= '0' && c <= '9'                 ? c - '0'
                        : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                             : 99;
      if (digit >= base) break;
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    const bool fits = (!exact || used == count) && code <= 0x10FFFF && !(code >= 0xD800 && code < 0xE000);
    check(fits, WI_E_FORMAT, "line ", line, ": a string has a broken escape");
    append_utf8(text, code);
  };
  static constexpr std::string_view names = "ntr\\'\"abfv", codes = "\n\t\r\\'\"\a\b\f\v";
  while (at < literal.size()) {
    if (literal[at] != '\\' || at + 1 == literal.size()) {
      text += literal[at++];
      continue;
    }
    const char escape = literal[at + 1];
    at += 2;
    if (const size_t known = names.find(escape); known != std::string_view::npos) {
      text += codes[known];
    } else if (escape == '\n') {
      continue;
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      digits(escape == 'x' ? 2 : escape == 'u' ? 4 : 8, 16, true);
    } else if (escape >= '0' && escape <= '7') {
      --at;
      digits(3, 8, false);
    } else {
      check(escape != 'N', WI_E_UNSUPPORTED, "line ", line, ": \\N{} in a string is not supported");
      text += '\\';
      if (static_cast<unsigned char>(escape) < 0x80) {
        text += escape;
      } else {
        const size_t length = character_length(literal, at - 1);
        append_escape(text, code_point(literal.substr(at - 1, length)));
        at += length - 1;
      }
    }
  }
  return text;
}

}  // namespace
}  // namespace wi::chat
