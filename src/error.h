// wi::Error, the one exception inside the library: a status for the ABI and a message that names the
// argument (or the file's field and byte offset) and its value. capi.cpp's guard() is the only catch.
#pragma once

#include <exception>
#include <sstream>
#include <string>
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
[[noreturn]] void throw_errno(wi_status code, std::string message, int error_number);  // appends strerror

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
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
