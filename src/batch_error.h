// Of a call on many sessions: what went wrong with one of them, and with which.
#pragma once

#include <cstddef>

#include "src/error.h"

namespace wi {

class BatchError final : public Error {
 public:
  BatchError(size_t place, const Error& why)
      : Error(why.code(), concat("sessions[", place, "]: ", why.what()), why.native_code()),
        place_(place),
        why_(why) {}
  size_t place() const { return place_; }
  const Error& why() const { return why_; }

 private:
  size_t place_;
  Error why_;
};

}  // namespace wi
