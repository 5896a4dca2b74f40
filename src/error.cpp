#include "src/error.h"

#include <cstring>

namespace wi {

void throw_error(wi_status code, std::string message, int64_t native) {
  throw Error(code, std::move(message), native);
}

void throw_errno(wi_status code, std::string message, int error_number) {
  char buffer[128];
  const char* reason = strerror_r(error_number, buffer, sizeof buffer);
  throw Error(code, std::move(message) + ": " + reason, error_number);
}

}  // namespace wi
