// What every CMocka test includes: the framework's own headers in the order it wants them, a seed that
// is printed, and the check that a call throws wi::Error with given words in its message.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

// CMocka 1.1 is a C header; its fail() macro would take the place of wi::fail.
extern "C" {
#include <cmocka.h>
}
#undef fail

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/error.h"
#include "support/in_time.h"

namespace wi::test {

// WI_TEST_SEED=n repeats a run; the seed is printed so that a failure can be repeated.
inline uint64_t seed() {
  static const uint64_t value = [] {
    const char* text = std::getenv("WI_TEST_SEED");
    uint64_t chosen = text ? std::strtoull(text, nullptr, 10) : 20260214;
    std::printf("seed %llu (WI_TEST_SEED)\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return value;
}

template <class Call>
void expect_error(wi_status code, const char* words, Call&& call, const char* file, int line) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != code || !std::strstr(error.what(), words)) {
      std::printf("%s:%d: wanted status %d with \"%s\", got %d: %s\n", file, line, code, words, error.code(),
                  error.what());
      _fail(file, line);
    }
    return;
  }
  std::printf("%s:%d: wanted status %d with \"%s\", got no error\n", file, line, code, words);
  _fail(file, line);
}
#define assert_error(code, words, ...) \
  ::wi::test::expect_error(            \
      code, words, [&] { __VA_ARGS__; }, __FILE__, __LINE__)

}  // namespace wi::test
