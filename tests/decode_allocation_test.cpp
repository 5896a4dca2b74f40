// Decode allocates nothing after warm-up: not from the heap, whatever the policy, the batch and the sampling.
// What remains is the cache itself, which grows by one block of the library's own pool every 64 tokens.
#include <cmath>
#include <vector>

#include "src/session.h"
#include "tests/support/allocations.h"
#include "tests/support/fewer.h"
#include "tests/support/random_model.h"
#include "tests/test.h"

using namespace wi;

namespace {

// Steps that open no new block and seal nothing: position 64 k + 4 + 2 up to a block's end.
constexpr int kWarmUp = 8, kSteps = 40;
constexpr size_t kPrompt = 4 + 64 * test::few_or(9, 20) + 2;

int64_t allocations_of_a_run(const std::shared_ptr<const Model>& model, const char* policy, size_t batch_size,
                             float target_mass, const SamplingParams& sampling) {
  RuntimeParams runtime_params;
  runtime_params.threads = 2;
  auto runtime = Runtime::create(runtime_params);
  SessionParams params;
  params.sampling = sampling;
  params.policy = find_policy(runtime->backend, policy);
  params.policy_params.segment_tokens = 512;
  params.policy_params.decode_segment_tokens = 128;
  params.policy_params.target_mass = target_mass;
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<Session*> batch;
  for (size_t i = 0; i < batch_size; ++i) {
    sessions.push_back(Session::create(runtime, model, params));
    std::vector<int32_t> ids(kPrompt);
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>((t * 7 + i) % 100);
    sessions.back()->prefill(ids, {}, nullptr);
    batch.push_back(sessions.back().get());
  }
  std::vector<Event> events(batch_size);
  for (int step = 0; step < kWarmUp; ++step) Session::decode_batch(batch, nullptr, events.data());
  const int64_t before = test::allocations;
  for (int step = 0; step < kSteps; ++step) Session::decode_batch(batch, nullptr, events.data());
  return test::allocations - before;
}

void decode_allocates_nothing_after_warm_up(void**) {
  if (!test::kCounting) {
    std::printf("skipped: the sanitizer has malloc\n");
    skip();
  }
  const auto model = test::random_model(test::shape_named("tiny"), DType::q8_0, test::seed());
  for (const char* policy : {"full", "wave", "streaming", "blocks"}) {
    for (size_t batch : {size_t{1}, size_t{3}}) {
      for (float target_mass : {0.0f, 0.9f}) {
        const int64_t counted = allocations_of_a_run(model, policy, batch, target_mass, {});
        std::printf("%s, batch %zu: %lld allocations in %d steps\n", policy, batch,
                    static_cast<long long>(counted), kSteps);
        assert_int_equal(counted, 0);
      }
    }
  }
}

// With text, all that sampling can do, and a stop string that holds text back.
void telling_about_tokens_allocates_nothing_after_warm_up(void**) {
  if (!test::kCounting) {
    std::printf("skipped: the sanitizer has malloc\n");
    skip();
  }
  SamplingParams sampling;
  sampling.temperature = 1.5f;
  sampling.top_k = 400;
  sampling.top_p = 0.9f;
  sampling.repetition_penalty = 1.3f;
  sampling.repetition_window = 500;
  sampling.top_logprobs = 64;
  sampling.logit_bias = {{5, 1}, {6, -INFINITY}};
  sampling.logits_callback = [](void*, float* logits, uint64_t) {
    logits[7] = -INFINITY;
    return 0;
  };
  sampling.stops = StopStrings({"the end", " a", std::string(100, ' ')});
  const auto model = Model::open(WI_SOURCE_DIR "/samples/model/needle-f16.gguf");
  assert_int_equal(allocations_of_a_run(model, "wave", 3, 0, sampling), 0);
  sampling.logits_callback = nullptr;  // then workers draw beside each other
  assert_int_equal(allocations_of_a_run(model, "wave", 3, 0, sampling), 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(decode_allocates_nothing_after_warm_up),
                              cmocka_unit_test(telling_about_tokens_allocates_nothing_after_warm_up)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
