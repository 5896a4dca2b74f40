// A chunk that was cancelled anywhere, in the last operation of the last layer too, ends in an exception: what a
// cancelled loop skipped is nothing to go on with.
#include <vector>

#include "kernels/cpu/cpu.h"
#include "src/prefill.h"
#include "src/session.h"
#include "src/workspace.h"
#include "tests/support/kernel_test.h"
#include "tests/support/random_model.h"

using namespace wi;

namespace {

std::atomic<bool> cancelled{false};
int appends_left = 0;

// Sets the flag just before its last call's loop, so that the loop skips tokens.
void append_cancelled_at_last(const Stream& stream, const AppendArgs& args) {
  if (--appends_left == 0) cancelled = true;
  cpu::append(stream, args);
}

void a_chunk_cancelled_in_its_last_append_is_not_finished(void**) {
  RuntimeParams params;
  params.threads = 2;
  auto runtime = Runtime::create(params);
  test::ModelShape shape;
  shape.name = "cancel";
  shape.layers = 2;
  shape.hidden = shape.ffn = 64;
  shape.query_heads = 2;
  shape.kv_heads = 2;
  shape.head_dim = 32;
  const auto model = test::random_model(shape, DType::f32, test::seed());
  Backend backend = runtime->backend;
  backend.append = append_cancelled_at_last;
  const std::vector<int32_t> tokens(2048, 1);
  for (const PrefillLogits wanted : {PrefillLogits::none, PrefillLogits::last}) {
    Sequence sequence(runtime->pool, kv_shape_of(*model, DType::f16), 0);
    sequence.reserve(static_cast<int64_t>(tokens.size()));
    Workspace work;
    std::vector<float> logits(static_cast<size_t>(model->config.vocab));
    cancelled = false;
    appends_left = shape.layers;
    wi_status status = WI_OK;
    try {
      runtime->workers.run(&cancelled, [&](const Stream& stream) {
        prefill_chunk({backend, stream, *model, work}, sequence, tokens, wanted, logits.data());
      });
    } catch (const Error& error) {
      status = error.code();
    }
    assert_int_equal(appends_left, 0);
    assert_int_equal(status, WI_E_CANCELLED);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_chunk_cancelled_in_its_last_append_is_not_finished)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
