// wi::Error, the one exception inside the library: a status for the ABI and a message that names the
// argument (or the file's field and byte offset) and its value. capi.cpp's guard() is the only catch.
#pragma once

#include <charconv>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "waveinfer.h"

namespace wi {

class Error : public std::exception {
 public:
  Error(wi_status code, std::string message, int64_t native = 0)
      : code_(code), native_(native), message_(std::move(message)) {}
  wi_status code() const { return code_; }
  int64_t native_code() const { return native_; }  // errno or a driver's code; 0 if none
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  wi_status code_;
  int64_t native_;
  std::string message_;
};

[[noreturn]] void throw_error(wi_status code, std::string message, int64_t native = 0);
[[noreturn]] void throw_errno(wi_status code, std::string message, int error_number);  // appends error_text()
std::string error_text(int error_number);                                              // an errno in words

// Numbers as in the "C" locale, whatever the host's is: a stream would write 123456789 as "123.456.789"
// there.
template <class Part>
void append(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else {
    char digits[32];
    char* const end = digits + sizeof digits;
    if constexpr (std::is_floating_point_v<Part>)
      text.append(digits, std::to_chars(digits, end, part, std::chars_format::general, 6).ptr);  // as %g
    else
      text.append(digits, std::to_chars(digits, end, part).ptr);
  }
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

template <class... Parts>
[[noreturn]] void fail(wi_status code, const Parts&... parts) {
  throw_error(code, concat(parts...));
}

// check(n > 0, WI_E_ARGUMENT, "tokens is ", n, ", must be positive")
template <class... Parts>
void check(bool holds, wi_status code, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail(code, parts...);
}

}  // namespace wi
