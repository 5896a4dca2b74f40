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

// Room for what tokens are as a rule, so that none allocates.
EventText::EventText() {
  for (std::string* text : {&pending_, &next_, &text_}) text->reserve(512);
}

EventText::Told EventText::next(std::string_view bytes, const StopStrings& stops) {
  next_ = pending_;
  next_ += bytes;
  return take(stops, false);
}

EventText::Told EventText::finish(const StopStrings& stops) {
  next_ = pending_;
  return take(stops, true);
}

// Stop strings are looked for in the bytes, so that one may be any bytes.
EventText::Told EventText::take(const StopStrings& stops, bool last) {
  const StopStrings::Match match = stops.find(next_);
  text_.clear();
  if (match.found || last) {
    const size_t end = match.found ? match.begin : next_.size();
    tell(std::string_view(next_).substr(0, end), end, true);
    next_.clear();
  } else {
    next_.erase(0, tell(next_, match.begin, false));
  }
  return {text_, match.found};
}

// Appends the code points that end at `end` at most, and returns the bytes they took. last: nothing follows
// `bytes`, so that what is incomplete never will be.
size_t EventText::tell(std::string_view bytes, size_t end, bool last) {
  size_t done = 0, length = 0;
  while (done < end) {
    const std::string_view rest = bytes.substr(done);
    const Unit unit = first_unit(rest, length);
    if (unit == Unit::incomplete) {
      if (!last) break;
      length = rest.size();
    }
    if (done + length > end) break;
    text_ += unit == Unit::whole ? rest.substr(0, length) : "\xEF\xBF\xBD";
    done += length;
  }
  return done;
}

}  // namespace wi
