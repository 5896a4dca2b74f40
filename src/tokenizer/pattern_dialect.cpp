// A single pass over the pattern. What differs: \s (PCRE2 counts U+180E, Unicode no longer does), \d, \v, \h,
// \uXXXX, scripts and [:names:] by name; nested classes, class intersections, {n,m}+ and a later (?i) by structure.
// Without case Oniguruma also takes several characters for one (ss for \u00df), in texts and in classes.
#include "src/tokenizer/pattern_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "src/error.h"
#include "src/utf8.h"

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
        case ')':
          if (!outer_.empty()) {
            caseless_ = outer_.back();
            outer_.pop_back();
          }
          copy(1);
          break;
        case '|':
        case '.':
        case '^':
        case '$':
          before_ = 0;
          copy(1);
          break;
        default:
          character(false);
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
    if (c == 'x' || c == 'u') return code_point(in_class);
    before_ = 0;
    if (in_class && caseless_ && (c == 'S' || c == 'D')) refuse("a class of letters without case");
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
        return copy(2);
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
    const bool has_no_case = name == "Nd" || name == "No" || name == "Sm" || name == "Sc" || name == "Sk" ||
                             name.starts_with('P') || name.starts_with('Z') || name.starts_with('C');
    if (in_class && caseless_ && (peek(1) == 'P' || first == 4 || !has_no_case))
      refuse("a property of letters in a class without case");
    if (std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end())
      return copy(end + 1 - at_);
    if (name.empty() || name.find_first_of("=: &") != std::string_view::npos)
      refuse(concat("property ", pattern_.substr(at_, end + 1 - at_)));
    copy(first);
    out_ += "sc:";
    copy(name.size() + 1);
  }

  // \x{H…}, \xHH, \uHHHH. Beyond those Oniguruma takes bytes, or fewer digits than PCRE2.
  void code_point(bool in_class) {
    const bool in_braces = starts("\\x{");
    const size_t first = in_braces ? 3 : 2, wanted = peek(1) == 'u' ? 4 : in_braces ? 6 : 2;
    size_t end = first;
    while (end < first + wanted && std::isxdigit(static_cast<unsigned char>(peek(end)))) ++end;
    const std::string digits(pattern_.substr(at_ + first, end - first));
    if (peek(1) == 'u' && digits.size() != 4) refuse("\\u without four hexadecimal digits");
    if (in_braces ? digits.empty() || peek(end) != '}' : digits.size() != wanted)
      refuse("\\x without two hexadecimal digits or braces");
    const auto code = static_cast<char32_t>(std::stoul(digits, nullptr, 16));
    if (peek(1) == 'x' && !in_braces && code >= 0x80) refuse("\\x of a byte of a character");
    const size_t length = end + in_braces;
    literal(code, length, in_class);
    if (peek(1) == 'u') return replace(length, concat("\\x{", digits, '}'));
    copy(length);
  }

  void character(bool in_class) {
    const size_t length = std::max<size_t>(1, utf8_length(pattern_, at_));
    char32_t code = static_cast<unsigned char>(peek());
    if (length > 1) code &= 0xFFu >> (length + 1);
    for (size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(peek(i)) & 0x3F);
    literal(code, length, in_class);
    copy(length);
  }

  // A character of the pattern that stands for itself. Where case does not count, those outside ASCII are taken
  // only from where there is none, and none that several make: ff, fi, fl, ss, st.
  void literal(char32_t code, size_t length, bool in_class) {
    const bool is_letter = (code | 32) >= 'a' && (code | 32) <= 'z';
    const auto lower = static_cast<char>(is_letter ? code | 32 : 0);
    const char before = std::exchange(before_, in_class ? '\0' : is_quantifier(code) ? before_ : lower);
    if (!caseless_) return;
    if (code >= 0x80) {
      const bool has_no_case = (code >= 0x2000 && code < 0x2070) || (code >= 0x2E80 && code < 0xA640);
      const bool in_range = in_class && ((peek(length) == '-' && peek(length + 1) != ']') ||
                                         (out_.ends_with('-') && !out_.ends_with("\\-")));
      if (!has_no_case || in_range) refuse("a letter outside ASCII without case");
    }
    static constexpr std::array<std::string_view, 5> kFolds = {"ff", "fi", "fl", "ss", "st"};
    const char pair[] = {before, lower};
    if (std::find(kFolds.begin(), kFolds.end(), std::string_view(pair, 2)) != kFolds.end())
      refuse("what one character is without case");
  }
  static bool is_quantifier(char32_t code) { return code == '?' || code == '*' || code == '+'; }

  void character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') copy(1);
    before_ = 0;
    for (bool first = true; !done() && peek() != ']'; first = false) {
      const auto is_class = [&](size_t at) {
        return peek(at) == '\\' && std::string_view("sSdDpP").find(peek(at + 1)) != std::string_view::npos;
      };
      if (is_class(0)) {
        escape(true);
        if (peek() == '-' && peek(1) != ']') refuse("a range from a class");
      } else if (peek() == '\\') {
        escape(true);
      } else if (!first && peek() == '-' && is_class(1)) {
        refuse("a range to a class");
      } else if (starts("[:")) {
        refuse("[: :], which has other members there");
      } else if (peek() == '[') {
        refuse("nested class");
      } else if (starts("&&")) {
        refuse("class intersection &&");
      } else {
        character(true);
      }
    }
    if (!done()) copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (starts("(?i)") && at_ == 0) {
      caseless_ = true;
      return copy(4);
    }
    outer_.push_back(caseless_);
    if (peek(1) != '?') return copy(1);
    static constexpr std::array<std::string_view, 8> known = {"(?:",  "(?=",  "(?!",  "(?>",
                                                              "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (starts("(?i)")) refuse("(?i) behind the beginning, which ends elsewhere there");
    for (std::string_view opening : known)
      if (starts(opening)) {
        if (opening.ends_with("i:")) caseless_ = opening == "(?i:";
        return copy(opening.size());
      }
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
  bool caseless_ = false;
  std::vector<bool> outer_;  // caseless_ around each group that is open
  char before_ = '\0';       // the letter of ASCII, in lower case, that stands before; in groups too
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
