// What a message about the budget says of a session's memory; src/session_room.cpp makes room.
#pragma once

#include "src/session.h"

namespace wi {

// Where there is no room since the slow tier refuses what is to leave, its reason is what is said.
template <class Work>
void Session::or_refused(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (refused_ && error.code() == WI_E_BUDGET) std::rethrow_exception(refused_);
    throw;
  }
}

// If there was no room, a message about the budget says what is in it.
template <class Work>
void Session::in_room(Work&& work) {
  try {
    or_refused(work);
  } catch (const Error& error) {
    if (room_ || refused_ || error.code() != WI_E_BUDGET) throw;
    fail(WI_E_BUDGET, error.what(), "; all else has left, and ",
         runtime_->residency.mandatory_bytes(*runtime_->buffer),
         " bytes must be in fast memory: indexes, recent tokens and segments in the making of all sessions");
  }
}

}  // namespace wi
