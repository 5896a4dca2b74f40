// Searching in bytes, in time linear in the text whatever a template asks for.
#pragma once

#include <cstring>
#include <string_view>

namespace wi::chat {

inline size_t find_bytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

// The last one that ends at or before `end`. Backwards: from the end, so short distances are cheap.
inline size_t find_last_bytes(std::string_view text, std::string_view part, size_t end) {
  if (part.size() > end) return std::string_view::npos;
  return text.rfind(part, end - part.size());
}

}  // namespace wi::chat
