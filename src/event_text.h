// Turns the bytes of tokens into an answer's text: it never splits a code point and never shows a stop
// string. What is incomplete and what may yet become a stop string waits for the next token; what can never
// become UTF-8 is U+FFFD.
#pragma once

#include <string>
#include <string_view>

#include "src/sampling/stop_strings.h"

namespace wi {

class EventText {
 public:
  EventText();
  // What a token adds to the text that may be told, valid until the next call; stopped: a stop string is
  // complete, and the text is what came before it. What waits only changes with commit(), so that a call may
  // fail in between.
  struct Told {
    std::string_view text;
    bool stopped = false;
  };
  Told next(std::string_view bytes, const StopStrings& stops);
  Told finish(const StopStrings& stops);  // nothing more will come
  void commit() noexcept { pending_.swap(next_); }

  void clear() { pending_.clear(); }
  const std::string& pending() const { return pending_; }  // bytes that wait
  void restore(std::string_view pending) { pending_ = pending; }

 private:
  // Where the answer ends, found, or what waits begins: in the bytes.
  struct Cut {
    bool found;
    size_t begin;
  };
  Told take(const StopStrings& stops, bool last);
  Cut find(const StopStrings& stops, bool last);
  std::string pending_, next_, text_;
};

}  // namespace wi
