// The header as a C++ program meets it: alone, pedantically, and with layouts that an FFI can rely on.
#pragma GCC diagnostic error "-Wpedantic"
// The header first, alone, and once more, which must change nothing; cmocka.h after what it wants.
// clang-format off
#include "waveinfer.h"
#include "waveinfer.h"
#include <setjmp.h>
#include <stdarg.h>
extern "C" {
#include <cmocka.h>
}
// clang-format on

#include <type_traits>

namespace {

template <class T>
constexpr bool plain = std::is_standard_layout_v<T>&& std::is_trivial_v<T> && alignof(T) <= 8 &&
                       sizeof(T) <= 4096 && offsetof(T, struct_size) == 0;

static_assert(plain<wi_error> && plain<wi_runtime_params> && plain<wi_device_info> &&
              plain<wi_runtime_stats>);
static_assert(plain<wi_model_params> && plain<wi_model_info> && plain<wi_token_info> &&
              plain<wi_chat_message> && plain<wi_chat_params>);
static_assert(plain<wi_policy_params> && plain<wi_sampling_params> && plain<wi_session_params>);
static_assert(plain<wi_memory_plan> && plain<wi_event> && plain<wi_prefill_params>);
static_assert(plain<wi_session_stats> && plain<wi_kv_params> && plain<wi_reader> && plain<wi_writer>);
static_assert(std::is_same<wi_status, int32_t>::value);

void calls_work_from_cpp(void**) {
  assert_int_equal(wi_abi_version(), WI_ABI_VERSION);
  assert_string_equal(wi_status_name(WI_E_CANCELLED), "CANCELLED");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(calls_work_from_cpp)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
