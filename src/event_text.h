// Turns the bytes of tokens into text that never splits a code point: what is incomplete waits for the next
// token, what can never become UTF-8 is U+FFFD.
#pragma once

#include <string>
#include <string_view>

namespace wi {

class EventText {
 public:
  // Both views are valid until the next call.
  std::string_view next(std::string_view bytes);
  std::string_view finish();  // nothing more will come
  void clear() { pending_.clear(); }
  const std::string& pending() const { return pending_; }
  void restore(std::string pending) { pending_ = std::move(pending); }

 private:
  void take(bool all);
  std::string pending_, text_;
};

}  // namespace wi
