// What came of a piece of work on a task, kept without memory: it is also what says that there was none.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "src/error.h"

namespace wi {

struct Outcome {
  wi_status status = WI_OK;
  int64_t native_code = 0;
  std::array<char, 512> message{};

  Outcome() = default;
  Outcome(wi_status failed, const char* why, int64_t native = 0) noexcept
      : status(failed), native_code(native) {
    std::snprintf(message.data(), message.size(), "%s", why);
  }
};

// What a call of the host's that did the same would fail with (capi.cpp's guard()).
template <class Work>
Outcome attempt(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
    return {};
  } catch (const Error& error) {
    return {error.code(), error.what(), error.native_code()};
  } catch (const std::bad_alloc&) {
    return {WI_E_MEMORY, "the system refused memory"};
  } catch (const std::exception& error) {
    return {WI_E_INTERNAL, error.what()};
  }
}

}  // namespace wi
