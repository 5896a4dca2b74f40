// What the CUDA backend asks of the runtime, by the emulation's count of calls: few copies for much that is sealed, and
// the context that the host has chosen left alone.
#include <cuda_runtime.h>
#include <vector>

#include "tests/support/device_world.h"

using namespace wi;
using namespace wi::test;

namespace {

int reset(void**) {
  cuda_emulation::reset(seed());
  return 0;
}

// However many blocks of tokens keys and values lie in.
void sealing_takes_as_many_copies_for_many_tokens_as_for_few(void**) {
  World world(cuda_backend(), {"wave", DType::f16, DType::f16, 2});
  world.session_params.policy_params.local_window = 4096;
  const auto session = world.session();
  session->prefill(prompt(1100), {}, nullptr);
  const Sequence& sequence = session->sequence();
  assert_int_equal(sequence.segments().size(), 0);
  const size_t row = sequence.shape().head_bytes();
  std::vector<std::byte> keys(1000 * row), values(keys.size()), key(row), value(row);
  uint64_t calls[2];
  for (const int64_t count : {200, 1000}) {
    const uint64_t before = cuda_emulation::api_calls();
    sequence.copy_tokens(1, 1, kSinkTokens + 3, count, keys.data(), values.data());
    calls[count > 200] = cuda_emulation::api_calls() - before;
  }
  assert_int_equal(calls[0], calls[1]);
  for (int64_t token = 0; token < 1000; ++token) {
    sequence.copy_tokens(1, 1, kSinkTokens + 3 + token, 1, key.data(), value.data());
    assert_memory_equal(key.data(), keys.data() + static_cast<size_t>(token) * row, row);
    assert_memory_equal(value.data(), values.data() + static_cast<size_t>(token) * row, row);
  }
  assert_string_equal(cuda_emulation::report().c_str(), "");
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
      cmocka_unit_test_setup(sealing_takes_as_many_copies_for_many_tokens_as_for_few, reset),
      cmocka_unit_test_setup(a_hosts_own_context_stays_current_and_is_not_used, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
