// A single pass over the pattern. What differs: \s (PCRE2 counts U+180E, Unicode no longer does), \d, \v, \h,
// \uXXXX, scripts and [:names:] by name; nested classes, class intersections, {n,m}+ and a later (?i) by structure.
#include "src/tokenizer/pattern_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "src/error.h"

namespace wi {
namespace {

// Unicode's White_Space and its complement, as the inside of a class.
constexpr const char* kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNonSpaces =
    R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (!done()) {
      switch (peek()) {
        case '\\':
          escape(false);
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '{':
          quantifier();
          break;
        default:
          copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool done() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }
  void replace(size_t count, std::string_view text) {
    out_.append(text);
    at_ += count;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(WI_E_UNSUPPORTED, "pre-tokenizer pattern: ", what, " at byte ", at_, " is not supported in ",
         pattern_);
  }

  void escape(bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
        return in_class ? replace(2, kSpaces) : replace(2, concat('[', kSpaces, ']'));
      case 'S':
        return in_class ? replace(2, kNonSpaces) : replace(2, concat("[^", kSpaces, ']'));
      case 'd':
        return replace(2, "\\p{Nd}");
      case 'D':
        return replace(2, "\\P{Nd}");
      case 'v':
        return replace(2, "\\x{B}");
      case 'p':
      case 'P':
        return property(in_class);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'x':
        return copy(2);  // what follows \x is spelled alike and copied as it stands
      case 'u':
        return code_point();
      case 'A':
      case 'z':
        if (in_class) refuse("this escape in a class");
        return copy(2);
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)))
      refuse(concat("escape \\", c ? std::string(1, c) : "NUL"));
    copy(2);
  }

  // General categories mean the same in both; a script's name alone is its Script there and, since PCRE2 10.40, its
  // Script_Extensions here.
  void property(bool in_class) {
    static constexpr std::array<std::string_view, 38> kCategories = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
        "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
        "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn", "Any"};
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {}");
    const size_t first = peek(3) == '^' ? 4 : 3;
    const std::string_view name = pattern_.substr(at_ + first, end - at_ - first);
    const bool is_cased = name == "Lu" || name == "Ll" || name == "Lt";
    if (in_class && is_cased && out_.starts_with("(?i)"))
      refuse("a property of case in a class without case");
    if (std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end())
      return copy(end + 1 - at_);
    if (name.empty() || name.find_first_of("=: &") != std::string_view::npos)
      refuse(concat("property ", pattern_.substr(at_, end + 1 - at_)));
    copy(first);
    out_ += "sc:";
    copy(name.size() + 1);
  }

  void code_point() {  // \u{H…} and \uHHHH
    if (peek(2) == '{') return replace(2, "\\x");
    std::string digits;
    for (size_t i = 2; i < 6 && std::isxdigit(static_cast<unsigned char>(peek(i))); ++i) digits += peek(i);
    if (digits.size() != 4) refuse("\\u without four hexadecimal digits");
    replace(6, concat("\\x{", digits, '}'));
  }

  void character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') copy(1);
    while (!done() && peek() != ']') {
      if (peek() == '\\') {
        escape(true);
      } else if (starts("[:")) {
        refuse("[: :], which has other members there");
      } else if (peek() == '[') {
        refuse("nested class");
      } else if (starts("&&")) {
        refuse("class intersection &&");
      } else {
        copy(1);
      }
    }
    if (!done()) copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    static constexpr std::array<std::string_view, 9> known = {
        "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)", "(?-i:"};
    if (starts("(?i)") && at_ > 0) refuse("(?i) behind the beginning, which ends elsewhere there");
    for (std::string_view opening : known)
      if (starts(opening)) return copy(opening.size());
    refuse(concat("group ", pattern_.substr(at_, 4)));
  }

  void quantifier() {
    size_t end = 1;
    while (std::isdigit(static_cast<unsigned char>(peek(end))) || peek(end) == ',') ++end;
    if (peek(end) != '}' || end == 1) return copy(1);  // a plain brace in both dialects
    // Oniguruma repeats what {…}+ and {n}? follow once more; PCRE2 takes them as possessive and lazy.
    if (peek(end + 1) == '+' || peek(end + 1) == '?') refuse("a quantifier after {}");
    if (peek(1) == ',') refuse("{,n}");
    copy(end + 1);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

std::string quoted_pattern(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) quoted += '\\';
    quoted += c;
  }
  return quoted;
}

}  // namespace wi
