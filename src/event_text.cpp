#include "src/event_text.h"

#include <cstdint>

namespace wi {
namespace {

enum class Unit { whole, incomplete, invalid };

// The code point that bytes start with, and its length (of an invalid one: the bytes to give up).
Unit first_unit(std::string_view bytes, size_t& length) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  length = 1;
  if (lead < 0x80) return Unit::whole;
  const size_t wanted = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (!wanted) return Unit::invalid;
  for (size_t i = 1; i < wanted; ++i) {
    if (i == bytes.size()) return Unit::incomplete;
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) {
      length = i;
      return Unit::invalid;
    }
  }
  length = wanted;
  return Unit::whole;
}

}  // namespace

std::string_view EventText::next(std::string_view bytes) {
  pending_ += bytes;
  take(false);
  return text_;
}

std::string_view EventText::finish() {
  take(true);
  return text_;
}

void EventText::take(bool all) {
  text_.clear();
  size_t done = 0, length = 0;
  while (done < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(done);
    const Unit unit = first_unit(rest, length);
    if (unit == Unit::incomplete && !all) break;
    if (unit == Unit::whole) {
      text_ += rest.substr(0, length);
    } else {
      text_ += "\xEF\xBF\xBD";
      if (unit == Unit::incomplete) length = rest.size();
    }
    done += length;
  }
  pending_.erase(0, done);
}

}  // namespace wi
