// The values of a GGUF file as text, for those who ask for metadata by key: strings as they are, everything
// else as JSON.
#include <charconv>
#include <cmath>
#include <cstring>

#include "src/files/gguf.h"
#include "src/files/json_file.h"

namespace wi {

std::string Gguf::value_text(const GgufField& field) const {
  if (field.type == GgufType::string) return std::string(text_at(field.offset));
  std::string out;
  size_t at = field.offset;
  if (field.type == GgufType::array) {
    append_array(field.element, field.count, &at, &out);
  } else {
    append_json(field.type, &at, &out);
  }
  return out;
}

// These two write what lies at *at and move it on; the parser has checked all of it.
void Gguf::append_array(GgufType element, uint64_t count, size_t* at, std::string* out) const {
  *out += '[';
  for (uint64_t i = 0; i < count; ++i) {
    if (i) *out += ',';
    append_json(element, at, out);
  }
  *out += ']';
}

void Gguf::append_json(GgufType type, size_t* at, std::string* out) const {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, bytes_.data() + *at, sizeof value);
    *at += sizeof value;
    return value;
  };
  const auto number = [&](auto value) {
    char text[64];
    *out += std::isfinite(static_cast<double>(value))
                ? std::string_view(
                      text, static_cast<size_t>(std::to_chars(text, text + sizeof text, value).ptr - text))
                : "null";
  };
  switch (type) {
    case GgufType::u8:
      return number(int{load(uint8_t{})});
    case GgufType::i8:
      return number(int{load(int8_t{})});
    case GgufType::u16:
      return number(load(uint16_t{}));
    case GgufType::i16:
      return number(load(int16_t{}));
    case GgufType::u32:
      return number(load(uint32_t{}));
    case GgufType::i32:
      return number(load(int32_t{}));
    case GgufType::u64:
      return number(load(uint64_t{}));
    case GgufType::i64:
      return number(load(int64_t{}));
    case GgufType::f32:
      return number(load(0.f));
    case GgufType::f64:
      return number(load(0.));
    case GgufType::boolean:
      *out += load(uint8_t{}) ? "true" : "false";
      return;
    case GgufType::string: {
      const std::string_view text = text_at(*at);
      *at += 8 + text.size();
      *out += json_of_text(text);
      return;
    }
    case GgufType::array: {
      const GgufType element = static_cast<GgufType>(load(uint32_t{}));
      const uint64_t count = load(uint64_t{});
      return append_array(element, count, at, out);
    }
  }
}

}  // namespace wi
