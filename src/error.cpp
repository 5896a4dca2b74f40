#include "src/error.h"

#include <cstring>

#include "src/c_locale.h"

namespace wi {

void throw_error(wi_status code, std::string message, int64_t native) {
  throw Error(code, std::move(message), native);
}

void throw_errno(wi_status code, std::string message, int error_number) {
  throw Error(code, std::move(message) + ": " + error_text(error_number), error_number);
}

std::string error_text(int error_number) {
  const CLocale locale;
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

}  // namespace wi
