// Text is taken a cluster at a time: a character that joins nothing before it, and what may join or be
// ordered after it. Clusters are short but in hostile text, and ordering them is a stable sort, so that any
// text takes near linear time (utf8proc's own ordering is quadratic in a run of marks).
#include "src/tokenizer/unicode_form.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utf8proc.h>
#include <vector>

#include "src/utf8.h"

namespace wi {
namespace {

constexpr size_t kBlock = 4096;  // bytes between two looks at the cancel flag

struct Range {
  int32_t first, last;
};
constexpr Range kInert[] = {
#include "src/tokenizer/unicode_inert.inc"
};

bool is_inert(int32_t c) {
  if (c < kInert[0].first) return false;
  const Range* after = std::upper_bound(std::begin(kInert), std::end(kInert), c,
                                        [](int32_t code, const Range& range) { return code < range.first; });
  return after != std::begin(kInert) && c <= after[-1].last;
}

bool is_hangul_syllable(int32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }

class Former {
 public:
  Former(UnicodeForm form, std::string& out, PlainTrace* trace)
      : composes_(form == UnicodeForm::nfc || form == UnicodeForm::nfkc),
        compatible_(form == UnicodeForm::nfkc || form == UnicodeForm::nfkd),
        out_(out),
        trace_(trace) {}

  // Characters below this are in the form, and join nothing before them.
  unsigned first_lead() const { return composes_ && !compatible_ ? 0xCC : 0x80; }  // U+0300 or U+0080

  void add(int32_t c, bool plain) {
    if (is_inert(c)) {
      finish();
      append({c, plain});
      return;
    }
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
    size_t count = 1;
    parts[0] = c;
    if (utf8proc_get_property(c)->decomp_seqindex != UINT16_MAX || is_hangul_syllable(c))
      count = static_cast<size_t>(utf8proc_decompose_char(c, parts.data(), parts.size(), options(), nullptr));
    if (begins_cluster(parts[0])) finish();
    for (size_t i = 0; i < count; ++i) cluster_.push_back({parts[i], plain});
  }

  void finish() {
    if (cluster_.empty()) return;
    order();
    if (composes_ && cluster_.size() > 1) compose();
    for (const Character& character : cluster_) append(character);
    cluster_.clear();
  }

 private:
  struct Character {
    int32_t code;
    bool plain;
  };

  utf8proc_option_t options() const {
    return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                          (compatible_ ? UTF8PROC_COMPAT : 0));
  }

  // What a composition has in second place is a mark, or a vowel or final of Hangul. U+11A7 is none, but
  // utf8proc 2.8 takes it for a final and drops it behind a syllable.
  static bool begins_cluster(int32_t c) {
    if (c == 0x11A7) return true;
    if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF)) return false;
    const utf8proc_property_t* property = utf8proc_get_property(c);
    return property->combining_class == 0 && property->category != UTF8PROC_CATEGORY_MN &&
           property->category != UTF8PROC_CATEGORY_MC && property->category != UTF8PROC_CATEGORY_ME;
  }

  static int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

  void order() {
    for (auto begin = cluster_.begin(); begin != cluster_.end();) {
      const auto end = std::find_if(begin, cluster_.end(),
                                    [](const Character& c) { return combining_class(c.code) == 0; });
      if (end - begin > 1)
        std::stable_sort(begin, end, [](const Character& a, const Character& b) {
          return combining_class(a.code) < combining_class(b.code);
        });
      begin = end == cluster_.end() ? end : end + 1;
    }
  }

  // A mark joins the last starter unless one of its class, or a higher one, stands between. Of two characters
  // at a time, so that it is known what each was made from.
  void compose() {
    size_t count = 0, starter = SIZE_MAX;
    int highest = -1;  // class of what stays behind the starter
    for (const Character next : cluster_) {
      const int its_class = combining_class(next.code);
      if (starter != SIZE_MAX && its_class > highest && join(next.code, &cluster_[starter].code)) {
        cluster_[starter].plain |= next.plain;
        continue;
      }
      highest = its_class == 0 ? -1 : std::max(highest, its_class);
      if (its_class == 0) starter = count;
      cluster_[count++] = next;
    }
    cluster_.resize(count);
  }

  static bool join(int32_t mark, int32_t* starter) {
    std::array<utf8proc_int32_t, 2> both = {*starter, mark};
    constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (utf8proc_normalize_utf32(both.data(), both.size(), options) != 1) return false;
    *starter = both[0];
    return true;
  }

  void append(Character character) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const size_t begin = out_.size();
    out_.append(reinterpret_cast<const char*>(bytes.data()),
                static_cast<size_t>(utf8proc_encode_char(character.code, bytes.data())));
    if (trace_) trace_->made(begin, out_.size(), character.plain);
  }

  const bool composes_, compatible_;
  std::string& out_;
  PlainTrace* const trace_;
  std::vector<Character> cluster_;  // decomposed
};

}  // namespace

std::string to_form(std::string_view text, UnicodeForm form, Poll& poll, PlainTrace* trace) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  Former former(form, out, trace);
  const auto simple = [&](size_t i) { return static_cast<unsigned char>(text[i]) < former.first_lead(); };
  const auto keep = [&](size_t begin, size_t end) {
    former.finish();
    if (trace) trace->kept(begin, end, out.size());
    out.append(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    // A simple run is copied but for its last character, which what follows may join.
    const size_t limit = std::min<size_t>(text.size(), at + kBlock);
    size_t last = at;
    for (size_t end = at, length; end < limit && simple(end) && (length = utf8_length(text, end)) > 0;)
      last = end, end += length;
    if (last > at) {
      keep(at, last);
      poll(last - at);
      at = last;
    }
    const size_t length = utf8_length(text, at);
    poll(std::max<size_t>(length, 1) * 8);  // a character costs more than a copied byte
    if (length == 0) {
      keep(at, at + 1);
      ++at;
      continue;
    }
    utf8proc_int32_t c;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                     static_cast<utf8proc_ssize_t>(length), &c);
    former.add(c, trace && trace->touches(at, at + length));
    at += length;
  }
  former.finish();
  return out;
}

}  // namespace wi
