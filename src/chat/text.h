// Text that knows where it came from: UTF-8, and which of its bytes the host supplied (messages, tools,
// variables) and which are the template's own. Every operation on strings keeps that account, so that at the
// end only the template's own bytes can make a control token. Positions are bytes unless they say otherwise.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/text_range.h"

namespace wi::chat {

class Text {
 public:
  Text() = default;
  explicit Text(std::string own) : bytes_(std::move(own)) {}  // the template's
  static Text of_host(std::string_view bytes);

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Ascending, not empty, not touching.
  const std::vector<TextRange>& host() const { return host_; }

  void append(std::string_view own) { bytes_ += own; }
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& from, size_t begin, size_t end);
  void append_host(std::string_view bytes);
  // What stands in place of from's bytes [begin, end): the host's if any of them is.
  void append_for(std::string_view bytes, const Text& from, size_t begin, size_t end);
  void append_for(const Text& text, const Text& from, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

 private:
  bool has_host(size_t begin, size_t end) const;

  std::string bytes_;
  std::vector<TextRange> host_;
};

}  // namespace wi::chat
