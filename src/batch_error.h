// Of a call on many sessions, or on one: what went wrong with one of them, and with which.
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

// There is no room yet, and some is on its way: of a call that leaves to the next to try again (residency.h).
class NoRoomYet final : public Error {
 public:
  explicit NoRoomYet(size_t place = 0)
      : Error(WI_E_BUDGET, "the room for what comes next is on its way"), place_(place) {}
  size_t place() const { return place_; }

 private:
  size_t place_;
};

}  // namespace wi
