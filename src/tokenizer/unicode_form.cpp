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
  Former(UnicodeForm form, std::string& out)
      : composes_(form == UnicodeForm::nfc || form == UnicodeForm::nfkc),
        compatible_(form == UnicodeForm::nfkc || form == UnicodeForm::nfkd),
        out_(out) {}

  // Characters below this are in the form, and join nothing before them.
  unsigned first_lead() const { return composes_ && !compatible_ ? 0xCC : 0x80; }  // U+0300 or U+0080

  void add(int32_t c) {
    if (is_inert(c)) {
      finish();
      append(c);
      return;
    }
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
    size_t count = 1;
    parts[0] = c;
    if (utf8proc_get_property(c)->decomp_seqindex != UINT16_MAX || is_hangul_syllable(c))
      count = static_cast<size_t>(utf8proc_decompose_char(c, parts.data(), parts.size(), options(), nullptr));
    if (begins_cluster(parts[0])) finish();
    cluster_.insert(cluster_.end(), parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count));
  }

  void finish() {
    if (cluster_.empty()) return;
    order();
    size_t count = cluster_.size();
    if (composes_ && count > 1)
      count = static_cast<size_t>(
          utf8proc_normalize_utf32(cluster_.data(), static_cast<utf8proc_ssize_t>(count),
                                   static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE)));
    for (size_t i = 0; i < count; ++i) append(cluster_[i]);
    cluster_.clear();
  }

 private:
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
      const auto end = std::find_if(begin, cluster_.end(), [](int32_t c) { return combining_class(c) == 0; });
      if (end - begin > 1)
        std::stable_sort(begin, end,
                         [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
      begin = end == cluster_.end() ? end : end + 1;
    }
  }

  void append(int32_t c) {
    std::array<utf8proc_uint8_t, 4> bytes;
    out_.append(reinterpret_cast<const char*>(bytes.data()),
                static_cast<size_t>(utf8proc_encode_char(c, bytes.data())));
  }

  const bool composes_, compatible_;
  std::string& out_;
  std::vector<utf8proc_int32_t> cluster_;  // decomposed
};

}  // namespace

std::string to_form(std::string_view text, UnicodeForm form, Poll& poll) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  Former former(form, out);
  const auto plain = [&](size_t i) { return static_cast<unsigned char>(text[i]) < former.first_lead(); };
  for (size_t at = 0; at < text.size();) {
    // A plain run is copied but for its last character, which what follows may join.
    const size_t limit = std::min<size_t>(text.size(), at + kBlock);
    size_t last = at;
    for (size_t end = at, length; end < limit && plain(end) && (length = utf8_length(text, end)) > 0;)
      last = end, end += length;
    if (last > at) {
      former.finish();
      out.append(text.substr(at, last - at));
      poll(last - at);
      at = last;
    }
    const size_t length = utf8_length(text, at);
    poll(std::max<size_t>(length, 1) * 8);  // a character costs more than a copied byte
    if (length == 0) {
      former.finish();
      out += text[at++];
      continue;
    }
    utf8proc_int32_t c;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                     static_cast<utf8proc_ssize_t>(length), &c);
    former.add(c);
    at += length;
  }
  former.finish();
  return out;
}

}  // namespace wi
