#include "src/event_text.h"

#include <algorithm>
#include <cstdint>

namespace wi {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The code point that bytes start with.
struct Unit {
  enum Kind { whole, incomplete, invalid } kind;
  size_t length;  // of an invalid one: the bytes to give up
  size_t seen;    // the bytes that say what it is: where one is broken off, the next one too
};
Unit first_unit(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Unit::whole, 1, 1};
  const size_t wanted = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (!wanted) return {Unit::invalid, 1, 1};
  for (size_t i = 1; i < wanted; ++i) {
    if (i == bytes.size()) return {Unit::incomplete, i, i};
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) return {Unit::invalid, i, i + 1};
  }
  return {Unit::whole, wanted, wanted};
}

// Calls each(unit, bytes, told) for the code points that end at `end` at most, with where the unit's bytes begin and
// what is told of it, and returns where the next one begins. last: nothing follows `bytes`, so that what is incomplete
// never will be.
template <class Each>
size_t each_told(std::string_view bytes, size_t end, bool last, const Each& each) {
  size_t done = 0;
  while (done < end) {
    const std::string_view rest = bytes.substr(done);
    const Unit unit = first_unit(rest);
    if ((unit.kind == Unit::incomplete && !last) || done + unit.length > end) break;
    each(unit, done, unit.kind == Unit::whole ? rest.substr(0, unit.length) : kReplacement);
    done += unit.length;
  }
  return done;
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

// A code point that a stop string begins in the middle of is not told either.
EventText::Told EventText::take(const StopStrings& stops, bool last) {
  const Cut cut = find(stops, last);
  const bool ends = cut.found || last;
  const size_t end = cut.found || !last ? cut.begin : next_.size();
  text_.clear();
  const size_t done =
      each_told(next_, end, last, [&](const Unit&, size_t, std::string_view told) { text_ += told; });
  next_.erase(0, ends ? next_.size() : done);
  return {text_, cut.found};
}

// Stop strings are looked for in the bytes, so that one may be any bytes, and in what is told of them, which may have a
// U+FFFD that the bytes do not have. The first one is that which is known first when bytes come one by one, of several
// the longest, so that the cuts between tokens do not matter.
EventText::Cut EventText::find(const StopStrings& stops, bool last) {
  const StopStrings::Match in_bytes = stops.find(next_);
  const Cut cut{in_bytes.found, in_bytes.begin};
  text_.clear();
  bool differs = false;
  const size_t all =
      each_told(next_, next_.size(), last, [&](const Unit& unit, size_t, std::string_view told) {
        text_ += told;
        differs |= unit.kind != Unit::whole;
      });
  if (!differs && all == next_.size()) return cut;  // what is incomplete may come to differ

  const StopStrings::Match in_text = stops.find(text_);
  size_t begin = next_.size(), known = 0, at = 0;  // of in_text, in the bytes; at: in what is told
  each_told(next_, next_.size(), last, [&](const Unit& unit, size_t first, std::string_view told) {
    const bool is_as_told = unit.kind == Unit::whole;
    if (in_text.begin >= at && in_text.begin < at + told.size())
      begin = first + (is_as_told ? in_text.begin - at : 0);
    if (in_text.end > at) known = first + unit.seen;
    at += told.size();
  });
  if (in_text.found && in_bytes.found) {
    const bool text_first = known < in_bytes.end || (known == in_bytes.end && begin < in_bytes.begin);
    return text_first ? Cut{true, begin} : cut;
  }
  if (in_text.found) return {true, begin};
  return in_bytes.found ? cut : Cut{false, std::min(begin, in_bytes.begin)};
}

}  // namespace wi
