// For tests that see only what a host sees: the header and the shared library.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

// CMocka 1.1 is a C header; its fail() macro would take the place of std::ios::fail.
extern "C" {
#include <cmocka.h>
}
#undef fail

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "in_time.h"
#include "waveinfer.h"

namespace wi::test {

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

template <class Call>
void expect_status(wi_status wanted, const std::string& words, Call&& call, const char* file, int line) {
  auto error = sized<wi_error>();
  const wi_status got = call(&error);
  const bool named = wanted == WI_OK || (error.code == wanted && std::strstr(error.message, words.c_str()));
  if (got == wanted && named) return;
  std::printf("%s:%d: wanted %s with \"%s\", got %s: %s\n", file, line, wi_status_name(wanted), words.c_str(),
              wi_status_name(got), error.message);
  _fail(file, line);
}
// The call names its last argument `error`: assert_fails(WI_E_ARGUMENT, "path is NULL", wi_x(a, b, error))
#define assert_fails(code, words, ...) \
  ::wi::test::expect_status(           \
      code, words, [&](wi_error* error) -> wi_status { return __VA_ARGS__; }, __FILE__, __LINE__)
#define assert_works(...) assert_fails(WI_OK, "", __VA_ARGS__)

using Runtime = std::unique_ptr<wi_runtime, decltype(&wi_runtime_release)>;
using Model = std::unique_ptr<wi_model, decltype(&wi_model_release)>;
using Session = std::unique_ptr<wi_session, decltype(&wi_session_release)>;
using Cancel = std::unique_ptr<wi_cancel, decltype(&wi_cancel_release)>;
using Kv = std::unique_ptr<wi_kv, decltype(&wi_kv_release)>;

inline Runtime create_runtime(const wi_runtime_params* params = nullptr) {
  wi_runtime* runtime = nullptr;
  assert_works(wi_runtime_create(params, &runtime, error));
  return {runtime, wi_runtime_release};
}
inline Model open_sample_model(wi_runtime* runtime) {
  wi_model* model = nullptr;
  assert_works(wi_model_open(runtime, WI_SOURCE_DIR "/samples/model/needle-f16.gguf", nullptr, nullptr,
                             &model, error));
  return {model, wi_model_release};
}
inline Session create_session(wi_model* model, const wi_session_params* params = nullptr) {
  wi_session* session = nullptr;
  assert_works(wi_session_create(model, params, &session, error));
  return {session, wi_session_release};
}
inline Session fork(wi_session* session) {
  wi_session* copy = nullptr;
  assert_works(wi_session_fork(session, &copy, error));
  return {copy, wi_session_release};
}
inline Cancel create_cancel() {
  wi_cancel* cancel = nullptr;
  assert_works(wi_cancel_create(&cancel, error));
  return {cancel, wi_cancel_release};
}

}  // namespace wi::test
