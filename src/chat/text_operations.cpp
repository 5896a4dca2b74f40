#include "src/chat/text_operations.h"

#include <algorithm>

#include "src/chat/text_search.h"

namespace wi::chat {
namespace {

std::string_view character_at(std::string_view bytes, size_t at) {
  return bytes.substr(at, character_length(bytes, at));
}

bool is_space_at(std::string_view bytes, size_t at) { return is_space(code_point(character_at(bytes, at))); }

// Calls each(code, begin, end) for every character.
template <class Each>
void for_characters(const Text& text, Each each) {
  const std::string_view bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const std::string_view character = character_at(bytes, at);
    each(code_point(character), at, at + character.size());
    at += character.size();
  }
}

void append_cased(Text& out, const Text& from, size_t begin, size_t end, char32_t code, Case wanted) {
  std::string cased;
  append_in_case(cased, code, wanted);
  if (cased == from.bytes().substr(begin, end - begin))
    out.append(from, begin, end);
  else
    out.append_for(cased, from, begin, end);
}

// Σ at the end of a word is ς: a cased character before, none behind, where some do not count.
bool is_final_sigma(std::string_view bytes, size_t begin, size_t end) {
  bool before = false;
  for (size_t at = begin; at > 0;) {
    const size_t start = character_start(bytes, at);
    const char32_t code = code_point(bytes.substr(start, at - start));
    at = start;
    if (!is_cased(code) && is_case_ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  for (size_t at = end; at < bytes.size();) {
    const char32_t code = code_point(character_at(bytes, at));
    at += character_length(bytes, at);
    if (!is_cased(code) && is_case_ignorable(code)) continue;
    return !is_cased(code);
  }
  return true;
}

void append_lower(Text& out, const Text& from, size_t begin, size_t end, char32_t code) {
  if (code == 0x3A3 && is_final_sigma(from.bytes(), begin, end))
    out.append_for("\u03c2", from, begin, end);
  else
    append_cased(out, from, begin, end, code, Case::lower);
}

}  // namespace

Text strip(const Text& text, const Text* characters, Side side, Budget& budget) {
  const std::string_view bytes = text.bytes();
  const auto goes = [&](std::string_view character) {
    budget.bytes(1);
    if (!characters) return is_space(code_point(character));
    for (size_t at = 0; at < characters->size(); at += character_length(characters->bytes(), at)) {
      budget.bytes(1);
      if (character_at(characters->bytes(), at) == character) return true;
    }
    return false;
  };
  size_t begin = 0, end = bytes.size();
  if (static_cast<int>(side) & 1)
    while (begin < end && goes(character_at(bytes, begin))) begin += character_length(bytes, begin);
  if (static_cast<int>(side) & 2)
    while (end > begin) {
      const size_t start = character_start(bytes, end);
      if (!goes(bytes.substr(start, end - start))) break;
      end = start;
    }
  return text.slice(begin, end);
}

std::vector<Text> split(const Text& text, const Text* separator, int64_t most, Budget& budget) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> parts;
  const auto add = [&](size_t begin, size_t end) {
    budget.bytes(end - begin + sizeof(Text));
    parts.push_back(text.slice(begin, end));
  };
  size_t at = 0;
  if (separator) {
    check(!separator->empty(), WI_E_ARGUMENT, "split() by an empty separator");
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t next = find_bytes(bytes, separator->bytes(), at);
      if (next == std::string_view::npos) break;
      add(at, next);
      at = next + separator->size();
    }
    add(at, bytes.size());
    return parts;
  }
  for (;;) {
    while (at < bytes.size() && is_space_at(bytes, at)) at += character_length(bytes, at);
    if (at == bytes.size()) return parts;
    size_t end = at;
    const bool is_last = most >= 0 && static_cast<int64_t>(parts.size()) == most;
    if (is_last) {
      add(at, bytes.size());
      return parts;
    }
    while (end < bytes.size() && !is_space_at(bytes, end)) end += character_length(bytes, end);
    add(at, end);
    at = end;
  }
}

std::vector<Text> split_from_right(const Text& text, const Text* separator, int64_t most, Budget& budget) {
  if (most < 0) return split(text, separator, most, budget);
  const std::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t end = bytes.size();
  const auto add = [&](size_t begin) {
    budget.bytes(end - begin + sizeof(Text));
    parts.push_back(text.slice(begin, end));
  };
  if (separator) {
    check(!separator->empty(), WI_E_ARGUMENT, "rsplit() by an empty separator");
    budget.bytes(bytes.size() * (1 + separator->size() / 16));
    while (static_cast<int64_t>(parts.size()) < most) {
      const size_t last = find_last_bytes(bytes, separator->bytes(), end);
      if (last == std::string_view::npos) break;
      add(last + separator->size());
      end = last;
    }
    add(0);
  } else {
    const auto space_before = [&](size_t at) {
      const size_t start = character_start(bytes, at);
      return is_space_at(bytes, start) ? at - start : 0;
    };
    for (;;) {
      while (end > 0 && space_before(end)) end -= space_before(end);
      if (end == 0) break;
      if (static_cast<int64_t>(parts.size()) == most) {
        add(0);
        break;
      }
      size_t begin = end;
      while (begin > 0 && !space_before(begin)) begin = character_start(bytes, begin);
      add(begin);
      end = begin;
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends, Budget& budget) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> lines;
  for (size_t begin = 0; begin < bytes.size();) {
    size_t end = begin;
    while (end < bytes.size() && !is_line_break(code_point(character_at(bytes, end))))
      end += character_length(bytes, end);
    size_t next = end;
    if (end < bytes.size()) next += bytes.substr(end, 2) == "\r\n" ? 2 : character_length(bytes, end);
    budget.bytes(next - begin + sizeof(Text));
    lines.push_back(text.slice(begin, keep_ends ? next : end));
    begin = next;
  }
  return lines;
}

Text replace(const Text& text, const Text& old, const Text& with, int64_t most, Budget& budget) {
  const std::string_view bytes = text.bytes();
  budget.bytes(bytes.size());
  Text out;
  size_t at = 0;
  const auto put_with = [&] {
    budget.bytes(1);
    budget.texts(with);
    out.append(with);
  };
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    if (old.empty()) {  // before every character, and at the end
      put_with();
      if (at == bytes.size()) return out;
      const size_t length = character_length(bytes, at);
      out.append(text, at, at + length);
      at += length;
      continue;
    }
    const size_t next = find_bytes(bytes, old.bytes(), at);
    if (next == std::string_view::npos) break;
    out.append(text, at, next);
    put_with();
    at = next + old.size();
  }
  out.append(text, at, bytes.size());
  return out;
}

Text escaped(const Text& text, Budget& budget) {
  static constexpr std::string_view marks = "&><'\"";
  static constexpr std::string_view instead[] = {"&amp;", "&gt;", "&lt;", "&#39;", "&#34;"};
  const std::string_view bytes = text.bytes();
  budget.bytes(5 * bytes.size());
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t mark = std::min(bytes.find_first_of(marks, at), bytes.size());
    out.append(text, at, mark);
    at = mark + 1;
    if (mark == bytes.size()) break;
    budget.bytes(6);
    out.append_for(instead[marks.find(bytes[mark])], text, mark, at);
  }
  return out;
}

Text join(const Text& separator, const std::vector<Text>& parts, Budget& budget) {
  Text out;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const Text* text : {&separator, &parts[i]}) budget.texts(*text);
    if (i > 0) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

Text padded(const Text& text, int64_t left, int64_t right, const Text& with, Budget& budget) {
  left = std::max<int64_t>(0, left);
  right = std::max<int64_t>(0, right);
  for (const int64_t count : {left, right}) budget.texts(with, static_cast<uint64_t>(count));
  Text out;
  for (int64_t i = 0; i < left; ++i) out.append(with);
  out.append(text);
  for (int64_t i = 0; i < right; ++i) out.append(with);
  return out;
}

Text in_case(const Text& text, Case wanted) {
  Text out;
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    if (wanted == Case::lower)
      append_lower(out, text, begin, end, code);
    else
      append_cased(out, text, begin, end, code, wanted);
  });
  return out;
}

Text capitalised(const Text& text) {
  Text out;
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    if (begin == 0)
      append_cased(out, text, begin, end, code, Case::title);
    else
      append_lower(out, text, begin, end, code);
  });
  return out;
}

Text title_case(const Text& text) {
  Text out;
  bool in_word = false;
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    if (in_word)
      append_lower(out, text, begin, end, code);
    else
      append_cased(out, text, begin, end, code, Case::title);
    in_word = is_cased(code);
  });
  return out;
}

Text swapped_case(const Text& text) {
  Text out;
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    std::string lower, upper;
    append_in_case(lower, code, Case::lower);
    append_in_case(upper, code, Case::upper);
    const std::string_view own = text.bytes().substr(begin, end - begin);
    if (lower == own)
      append_cased(out, text, begin, end, code, Case::upper);
    else if (upper == own)
      append_lower(out, text, begin, end, code);
    else  // of title case
      out.append(text, begin, end);
  });
  return out;
}

bool is_all_in_case(const Text& text, Case wanted) {
  bool any = false, all = true;
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    if (!is_cased(code)) return;
    std::string upper, lower;
    append_in_case(upper, code, Case::upper);
    append_in_case(lower, code, Case::lower);
    const std::string_view own = text.bytes().substr(begin, end - begin);
    any = any || (wanted == Case::upper ? lower != own : upper != own || lower == own);
    all = all && (wanted == Case::upper ? upper == own && lower != own : lower == own);
  });
  return any && all;
}

Text title_of_words(const Text& text) {
  Text out;
  size_t rest = 0;  // where what is to be lower case begins, which knows of nothing around it
  bool in_word = false;
  const auto put_rest = [&](size_t end) {
    if (end > rest) out.append(in_case(text.slice(rest, end), Case::lower));
  };
  for_characters(text, [&](char32_t code, size_t begin, size_t end) {
    const bool divides =
        code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || is_space(code);
    if (!in_word || divides) {
      put_rest(begin);
      append_cased(out, text, begin, end, code, Case::upper);
      rest = end;
    }
    in_word = !divides;
  });
  put_rest(text.size());
  return out;
}

}  // namespace wi::chat
