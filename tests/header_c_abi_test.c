/* The header as a C99 program meets it: alone, pedantically, with nothing but the shared library behind it.
 */
#pragma GCC diagnostic error "-Wpedantic"
/* The header first, alone; cmocka.h last, after what it wants. */
/* clang-format off */
#include "waveinfer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
/* clang-format on */

static void version_is_the_headers(void** state) {
  (void)state;
  assert_int_equal(wi_abi_version(), WI_ABI_VERSION);
  assert_string_equal(wi_version(), WI_VERSION);
}

static void every_status_has_a_name(void** state) {
  wi_status status;
  (void)state;
  assert_string_equal(wi_status_name(WI_OK), "OK");
  assert_string_equal(wi_status_name(WI_E_BUDGET), "BUDGET");
  assert_string_equal(wi_status_name(WI_E_INTERNAL), "INTERNAL");
  for (status = WI_OK; status <= WI_E_INTERNAL; status++) {
    assert_string_not_equal(wi_status_name(status), "UNKNOWN");
  }
  assert_string_equal(wi_status_name(WI_E_INTERNAL + 1), "UNKNOWN");
  assert_string_equal(wi_status_name(-1), "UNKNOWN");
}

static void retain_and_release_accept_null(void** state) {
  (void)state;
  wi_runtime_release(NULL);
  wi_model_release(NULL);
  wi_session_release(NULL);
  wi_cancel_release(NULL);
  wi_kv_release(NULL);
  assert_null(wi_runtime_retain(NULL));
  assert_null(wi_model_retain(NULL));
  assert_null(wi_session_retain(NULL));
  assert_null(wi_cancel_retain(NULL));
  assert_null(wi_kv_retain(NULL));
  wi_cancel_trigger(NULL);
  wi_cancel_reset(NULL);
}

static void retain_returns_its_argument(void** state) {
  wi_cancel* cancel = NULL;
  wi_runtime* runtime = NULL;
  (void)state;
  assert_int_equal(wi_cancel_create(&cancel, NULL), WI_OK);
  assert_ptr_equal(wi_cancel_retain(cancel), cancel);
  wi_cancel_release(cancel);
  wi_cancel_trigger(cancel); /* still alive */
  wi_cancel_release(cancel);

  assert_int_equal(wi_runtime_create(NULL, &runtime, NULL), WI_OK);
  assert_ptr_equal(wi_runtime_retain(runtime), runtime);
  wi_runtime_release(runtime);
  wi_runtime_release(runtime);
}

static void an_error_is_filled(void** state) {
  wi_error error = {sizeof(wi_error), 0, 0, ""};
  (void)state;
  assert_int_equal(wi_model_open(NULL, "x", NULL, NULL, NULL, &error), WI_E_ARGUMENT);
  assert_int_equal(error.code, WI_E_ARGUMENT);
  assert_int_equal(error.struct_size, sizeof(wi_error));
  assert_non_null(strstr(error.message, "runtime is NULL"));
}

static void a_runtime_describes_its_device(void** state) {
  wi_runtime* runtime = NULL;
  wi_device_info info;
  wi_runtime_stats stats;
  (void)state;
  memset(&info, 0, sizeof info);
  memset(&stats, 0, sizeof stats);
  info.struct_size = sizeof info;
  stats.struct_size = sizeof stats;
  assert_int_equal(wi_runtime_create(NULL, &runtime, NULL), WI_OK);
  assert_int_equal(wi_runtime_device_info(runtime, &info, NULL), WI_OK);
  assert_int_equal(wi_runtime_get_stats(runtime, &stats, NULL), WI_OK);
  wi_runtime_release(runtime);
  assert_string_equal(info.name, "cpu");
  assert_true(info.threads >= 1 && info.cores >= 1 && info.numa_nodes >= 1 && info.memory_bytes > 0);
  assert_true(strlen(info.simd) > 0);
  assert_true(stats.kv_budget_bytes > 0 && stats.kv_budget_bytes <= info.memory_bytes);
  assert_int_equal(stats.sessions, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(version_is_the_headers),
      cmocka_unit_test(every_status_has_a_name),
      cmocka_unit_test(retain_and_release_accept_null),
      cmocka_unit_test(retain_returns_its_argument),
      cmocka_unit_test(an_error_is_filled),
      cmocka_unit_test(a_runtime_describes_its_device),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
