// What the CUDA backend asks of the runtime: that the context which the host has chosen is left alone.
#include <cuda_runtime.h>

#include "tests/support/device_world.h"

using namespace wi;
using namespace wi::test;

namespace {

int reset(void**) {
  cuda_emulation::reset(seed());
  return 0;
}

// A host that uses the driver has a context of its own current, for the same device: it finds it so after each call,
// and nothing of ours is made in it.
void a_hosts_own_context_stays_current_and_is_not_used(void**) {
  cuda_emulation::enter_host_context();
  {
    World world(cuda_backend());
    const auto session = world.session();
    session->prefill(prompt(40), {}, nullptr);
    assert_true(cuda_emulation::in_host_context());
    answer(*session, 2);
  }
  assert_true(cuda_emulation::in_host_context());
  assert_int_equal(cuda_emulation::calls_in_host_context(), 0);
  cuda_emulation::leave_host_context();
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_hosts_own_context_stays_current_and_is_not_used, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
