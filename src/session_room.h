// What a session wishes of the fast tier, and what is said where it gets none: parts of making room
// (session_room.cpp) that KV stores and whatever makes sessions share.
#pragma once

#include "src/session.h"

namespace wi {

// What the owner of a sequence, and of one that it is made of (null: of none), wishes of its own accord: adds to a wish
// that has what is coming. segments: of both, in order.
void wish_of(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
             uint64_t budget_bytes, const Sequence* from, Residency::Segments segments,
             Residency::Wish& wish);

// Where there is no room since the slow tier refuses what is to leave, its reason is what is said.
template <class Work>
void or_refused(const std::exception_ptr& refused, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (refused && error.code() == WI_E_BUDGET) std::rethrow_exception(refused);
    throw;
  }
}

// If there was no room, a message about the budget says what would have to be in it: all that was to come, for what of
// that the work had is free again by now.
template <class Work>
void in_room(const Residency::Member* member, const bool& room, const std::exception_ptr& refused,
             Work&& work) {
  try {
    or_refused(refused, work);
  } catch (const Error& error) {
    if (room || refused || !member || error.code() != WI_E_BUDGET) throw;
    fail(WI_E_BUDGET, error.what(), "; all else has left, and ", member->needed_bytes(),
         " bytes must be in fast memory: indexes, recent tokens and segments in the making of all sessions");
  }
}

template <class Work>
void Session::or_refused(Work&& work) {
  wi::or_refused(refused_, work);
}
template <class Work>
void Session::in_room(Work&& work) {
  wi::in_room(resident_.get(), room_, refused_, work);
}

}  // namespace wi
