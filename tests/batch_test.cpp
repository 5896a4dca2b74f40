// A session's logits do not depend on its company: the same bits alone and in batches of 2, 17 and 64, for
// weights of every way that products take.
#include <vector>

#include "src/pipeline/attention.h"
#include "src/session.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"

using namespace wi;

namespace {

constexpr size_t kSessions = test::slow_or(18, 64);

// KV in f32 holds every bit that a step computed.
SessionParams session_params(const std::shared_ptr<Runtime>& runtime, const char* policy,
                             DType kv = DType::f32) {
  SessionParams params;
  params.policy = find_policy(runtime->backend, policy);
  params.policy_params.segment_tokens = 256;  // so that a few hundred tokens have an index
  params.policy_params.decode_segment_tokens = 64;
  params.kv = kv;
  return params;
}

std::vector<float> logits_of(Session& session) {
  const std::span<const float> view = session.logits(nullptr);
  return {view.begin(), view.end()};
}

// After some steps in company the keys and values of every layer but the first hold all that those steps
// computed. So the logits of the next step, which each session does alone, tell any bit that differed.
void compare(DType type, Precision precision) {
  RuntimeParams runtime_params;
  runtime_params.threads = 2;
  runtime_params.kv_budget_bytes = uint64_t{1} << 30;
  auto runtime = test::create_runtime(runtime_params);
  test::ModelShape shape;
  shape.name = "batch";
  shape.layers = test::slow_or(2, 3);
  shape.hidden = shape.ffn = 256;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  const auto model = test::random_model(shape, type, test::seed(), precision);

  constexpr int kSteps = 3;
  std::mt19937_64 random(test::seed());
  std::vector<std::shared_ptr<Session>> prepared;
  std::vector<std::vector<int32_t>> tokens(kSessions);
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < kSessions; ++i) {
    constexpr const char* kPolicies[] = {"wave", "full", "wave", "blocks",
                                         "wave", "full", "wave", "streaming"};
    constexpr DType kKv[] = {DType::f32, DType::f32, DType::f16, DType::f32, DType::bf16};
    SessionParams params = session_params(runtime, kPolicies[(i + i / 8) % 8], kKv[i % 5]);
    params.policy_params.budget = 0.02f * static_cast<float>(1 + i / 8);
    params.policy_params.target_mass = i % 16 ? 0.6f : 0;
    auto session = Session::create(runtime, model, params);
    std::vector<int32_t> prompt(i % 8 ? 20 + i : 400);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 100);
    session->prefill(prompt, {}, nullptr);
    prepared.push_back(session);
    auto alone = session->fork();
    for (int step = 0; step < kSteps; ++step) tokens[i].push_back(alone->decode(nullptr).token);
    logits.push_back(logits_of(*alone));
  }
  for (size_t company : test::some_of({size_t{1}, size_t{2}, size_t{17}, kSessions})) {
    std::vector<std::shared_ptr<Session>> forks;
    std::vector<Session*> batch;
    for (size_t i = 0; i < company; ++i) {
      forks.push_back(prepared[i]->fork());
      batch.push_back(forks.back().get());
    }
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Event> events(company);
      Session::decode_batch(batch, nullptr, events.data());
      for (size_t i = 0; i < company; ++i)
        assert_int_equal(events[i].token, tokens[i][static_cast<size_t>(step)]);
    }
    for (size_t i = 0; i < company; ++i)
      if (!test::same_bits(logits_of(*forks[i]), logits[i]))
        fail_because("%s: session %d of %d has other logits than alone", format_of(type).name,
                     static_cast<int>(i), static_cast<int>(company));
  }
}

void logits_are_the_same_bits_in_any_company(void**) {
  for (DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k})
    compare(type, Precision::fast);
}

void nor_do_they_depend_on_it_at_other_precisions(void**) {
  compare(DType::q8_0, Precision::f32);
  compare(DType::f16, Precision::high);
  for (DType type : {DType::q8_0, DType::q4_0, DType::q4_k, DType::f16}) compare(type, Precision::int8);
}

// What a query's zones may take is a number of its lookup, not a reason for a pass of its own.
void sessions_with_other_parameters_share_a_pass(void**) {
  auto runtime = test::create_runtime({});
  const auto model = test::random_model(test::shape_named("tiny"), DType::f32, test::seed());
  const SessionParams params = session_params(runtime, "wave");
  auto session = Session::create(runtime, model, params);
  session->prefill(std::vector<int32_t>(400, 7), {}, nullptr);
  Sequence sequence = session->sequence();
  PolicyParams few = params.policy_params, many = few;
  few.budget = 0.05f, many.budget = 0.5f, many.estimation = 0;
  const Row rows[] = {{&sequence, 399, params.policy, &few}, {&sequence, 399, params.policy, &many}};
  const auto heads = static_cast<size_t>(model->config.query_heads);
  std::vector<float> numbers(2 * heads * static_cast<size_t>(model->config.head_dim));
  Attention attention;
  attention.begin(rows, model->config.group(), nullptr);
  attention.open(0, numbers.data(), numbers.data(), nullptr);
  assert_true(attention.next_pass());
  const LookupArgs args = attention.args();
  assert_int_equal(args.count, 2 * model->config.kv_heads);
  const Zones& first = args.lookups[0].zones;
  const Zones& second = args.lookups[model->config.kv_heads].zones;
  assert_int_equal(first.budget, share_of(0.05f, sequence.indexed_tokens()));
  assert_int_equal(second.budget, share_of(0.5f, sequence.indexed_tokens()));
  assert_true(first.budget > 0 && first.estimated > 0 && second.estimated == 0);
  assert_false(attention.next_pass());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(logits_are_the_same_bits_in_any_company),
      cmocka_unit_test(nor_do_they_depend_on_it_at_other_precisions),
      cmocka_unit_test(sessions_with_other_parameters_share_a_pass),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
