#include "src/chat/text.h"

#include <algorithm>

namespace wi::chat {
namespace {

// The first range that ends behind `at`.
auto range_behind(const std::vector<TextRange>& ranges, size_t at) {
  return std::partition_point(ranges.begin(), ranges.end(),
                              [&](const TextRange& range) { return range.end <= at; });
}

void add_range(std::vector<TextRange>& ranges, size_t begin, size_t end) {
  if (begin == end) return;
  if (!ranges.empty() && ranges.back().end == begin)
    ranges.back().end = end;
  else
    ranges.push_back({begin, end});
}

}  // namespace

Text Text::of_host(std::string_view bytes) {
  Text text;
  text.append_host(bytes);
  return text;
}

void Text::append(const Text& from, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  for (auto range = range_behind(from.host_, begin); range != from.host_.end() && range->begin < end; ++range)
    add_range(host_, base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  bytes_ += std::string_view(from.bytes_).substr(begin, end - begin);
}

void Text::append_host(std::string_view bytes) {
  add_range(host_, bytes_.size(), bytes_.size() + bytes.size());
  bytes_ += bytes;
}

void Text::append_for(std::string_view bytes, const Text& from, size_t begin, size_t end) {
  if (from.has_host(begin, end))
    append_host(bytes);
  else
    append(bytes);
}

void Text::append_for(const Text& text, const Text& from, size_t begin, size_t end) {
  if (from.has_host(begin, end))
    append_host(text.bytes());
  else
    append(text);
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

bool Text::has_host(size_t begin, size_t end) const {
  const auto range = range_behind(host_, begin);
  return range != host_.end() && range->begin < end;
}

}  // namespace wi::chat
