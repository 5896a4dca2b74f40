#include "src/chat/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/chat/unicode.h"

namespace wi::chat {
namespace {

void append_hex(std::string& out, char32_t code, int digits) {
  static constexpr char hex[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += hex[code >> shift & 15];
}

// Writes values one in another, and counts what it writes.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void put(std::string_view own) {
    budget_.bytes(own.size());
    out_.append(own);
  }
  void put(const Text& text) {
    budget_.texts(text);
    out_.append(text);
  }

  // Each character is itself, or what `escape` puts in its place: it leaves that string empty for itself.
  template <class Escape>
  void put_escaped(const Text& text, Escape escape) {
    const std::string_view bytes = text.bytes();
    budget_.bytes(bytes.size());
    std::string instead;
    size_t plain = 0;  // where what is not written yet begins
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = character_length(bytes, at);
      instead.clear();
      escape(code_point(bytes.substr(at, length)), instead);
      if (!instead.empty()) {
        budget_.bytes(instead.size());
        out_.append(text, plain, at);
        out_.append_for(instead, text, at, at + length);
        plain = at + length;
      }
      at += length;
    }
    out_.append(text, plain, bytes.size());
  }

  Text take() { return std::move(out_); }

 private:
  Budget& budget_;
  Text out_;
};

void write_repr(Writer& out, const Value& value);

void write_repr(Writer& out, const Text& text) {
  const std::string_view bytes = text.bytes();
  const char quote =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos ? '"' : '\'';
  out.put(std::string_view(&quote, 1));
  out.put_escaped(text, [&](char32_t code, std::string& instead) {
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      instead += '\\';
      instead += static_cast<char>(code);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      instead += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (!is_printable(code)) {
      instead += code < 0x100 ? "\\x" : code < 0x10000 ? "\\u" : "\\U";
      append_hex(instead, code, code < 0x100 ? 2 : code < 0x10000 ? 4 : 8);
    }
  });
  out.put(std::string_view(&quote, 1));
}

void write_repr_dict(Writer& out, const Dict& dict) {
  out.put("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.put(", ");
    first = false;
    write_repr(out, key);
    out.put(": ");
    write_repr(out, value);
  }
  out.put("}");
}

void write_repr_items(Writer& out, const List& list, std::string_view open, std::string_view close) {
  out.put(open);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.put(", ");
    write_repr(out, list.items[i]);
  }
  out.put(close);
}

void write_repr(Writer& out, const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return out.put("Undefined");
    case Kind::none:
      return out.put("None");
    case Kind::boolean:
      return out.put(value.boolean() ? "True" : "False");
    case Kind::integer:
      return out.put(std::to_string(value.integer()));
    case Kind::real:
      return out.put(real_text(value.real()));
    case Kind::text:
      check(!value.is_safe(), WI_E_UNSUPPORTED, "the repr of a text marked safe is not supported");
      return write_repr(out, value.text());
    case Kind::list:
      return write_repr_items(out, value.list(), "[", "]");
    case Kind::tuple:
      return write_repr_items(out, value.list(), "(", value.list().items.size() == 1 ? ",)" : ")");
    case Kind::dict:
      return write_repr_dict(out, value.dict());
    default:
      fail(WI_E_UNSUPPORTED, "a ", value.type_name(), " is printed, which shows Python's inside");
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget), out_(budget) {}

  void write(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
        return out_.put("null");
      case Kind::boolean:
        return out_.put(value.boolean() ? "true" : "false");
      case Kind::integer:
        return out_.put(std::to_string(value.integer()));
      case Kind::real:
        return out_.put(number(value.real()));
      case Kind::text:
        return quoted(value.text());
      case Kind::list:
      case Kind::tuple:
        return list(value.list());
      case Kind::dict:
        return dict(value.dict());
      case Kind::undefined:
        fail(WI_E_ARGUMENT, value.why(), ", and is to be written as JSON");
      default:
        fail(WI_E_ARGUMENT, "a ", value.type_name(), " cannot be written as JSON");
    }
  }
  Text take() { return out_.take(); }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return real_text(value);
  }

  void quoted(const Text& text) {
    out_.put("\"");
    out_.put_escaped(text, [&](char32_t code, std::string& instead) { escape(code, instead); });
    out_.put("\"");
  }

  void escape(char32_t code, std::string& instead) const {
    static constexpr std::string_view codes = "\"\\\n\r\t\b\f", names = "\"\\nrtbf";
    const size_t known = code < 0x80 ? codes.find(static_cast<char>(code)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      instead += '\\';
      instead += names[known];
    } else if (code < 0x20 || (style_.ensure_ascii && code > 0x7E && code < 0x10000)) {
      instead += "\\u";
      append_hex(instead, code, 4);
    } else if (style_.ensure_ascii && code >= 0x10000) {
      instead += "\\u";
      append_hex(instead, 0xD800 + ((code - 0x10000) >> 10), 4);
      instead += "\\u";
      append_hex(instead, 0xDC00 + ((code - 0x10000) & 0x3FF), 4);
    }
  }

  void new_line() {
    if (!style_.indented) return;
    out_.put("\n");
    for (int i = 0; i < level_; ++i) out_.put(style_.indent);
  }

  template <class Elements, class Write>
  void enclosed(const char* open, const char* close, const Elements& elements, Write write_one) {
    out_.put(open);
    ++level_;
    bool first = true;
    for (const auto& element : elements) {
      if (!first) out_.put(style_.item_separator);
      first = false;
      new_line();
      write_one(element);
    }
    --level_;
    if (!first) new_line();
    out_.put(close);
  }

  void list(const List& list) {
    enclosed("[", "]", list.items, [&](const Value& item) { write(item); });
  }

  void dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        const int order = compare(a->first, b->first, "<", budget_);
        check(order != 2, WI_E_UNSUPPORTED, "keys that are NaN are sorted");
        return order < 0;
      });
    enclosed("{", "}", entries, [&](const auto* entry) {
      quoted(key_text(entry->first));
      out_.put(style_.key_separator);
      write(entry->second);
    });
  }

  static Text key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::text:
        return key.text();
      case Kind::none:
        return Text("null");
      case Kind::boolean:
        return Text(key.boolean() ? "true" : "false");
      case Kind::integer:
        return Text(std::to_string(key.integer()));
      case Kind::real:
        return Text(number(key.real()));
      default:
        fail(WI_E_ARGUMENT, "a ", key.type_name(), " cannot be a key in JSON");
    }
  }

  const JsonStyle& style_;
  Budget& budget_;
  Writer out_;
  int level_ = 0;
};

}  // namespace

Text to_text(const Value& value, Budget& budget) {
  if (value.is(Kind::undefined)) return {};
  if (value.is(Kind::text)) {
    budget.texts(value.text());
    return value.text();
  }
  return to_repr(value, budget);
}

Text to_repr(const Value& value, Budget& budget) {
  Writer out(budget);
  write_repr(out, value);
  return out.take();
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter out(style, budget);
  out.write(value);
  return out.take();
}

// The shortest digits that give the number back; with an exponent below 1e-4 and from 1e16.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t mark = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + mark + 1;
  std::from_chars(*digits == '+' ? digits + 1 : digits, written.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto plain = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string result(buffer, plain.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

}  // namespace wi::chat
