// The bundled library's own detection of instruction sets against libhwy's.
#include "hwy/targets.h"

#include <dlfcn.h>

#include "tests/test.h"

namespace {

constexpr int64_t kCompiled = HWY_SSSE3 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;

void instruction_sets_are_those_that_highway_finds(void**) {
  void* library = dlopen(WI_HIGHWAY, RTLD_NOW | RTLD_LOCAL);
  assert_non_null(library);
  const auto highways = reinterpret_cast<int64_t (*)()>(dlsym(library, "_ZN3hwy16SupportedTargetsEv"));
  assert_non_null(highways);
  assert_ptr_not_equal(highways, &hwy::SupportedTargets);
  assert_int_equal(hwy::SupportedTargets() & kCompiled, highways() & kCompiled);
}

void the_choice_is_one_for_the_whole_library(void**) {
  assert_ptr_equal(&hwy::GetChosenTarget(), &hwy::GetChosenTarget());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(instruction_sets_are_those_that_highway_finds),
      cmocka_unit_test(the_choice_is_one_for_the_whole_library),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
