// Choosing tokens in sessions: what a step's statistics say, that accept is decode with a token of the
// host's, that a call that fails changes nothing in any session of a batch, and what becomes of keys that a
// KV type cannot hold.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "src/kv_store.h"
#include "src/session.h"
#include "tests/support/fewer.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

// Refuses this thread's n-th allocation from now on, once.
namespace {
thread_local int64_t refuse_at = -1;
bool refused() { return refuse_at >= 0 && refuse_at-- == 0; }
}  // namespace
void* operator new(size_t bytes) {
  void* memory = refused() ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return refused() ? nullptr : std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

using namespace wi;

namespace {

std::shared_ptr<Runtime> runtime() {
  RuntimeParams params;
  params.threads = 2;
  return test::create_runtime(params);
}

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared =
      test::random_model(test::shape_named("tiny"), DType::f32, 7);
  return shared;
}

SamplingParams warm(uint64_t seed = 5) {
  SamplingParams sampling;
  sampling.temperature = 1;
  sampling.seed = seed;
  return sampling;
}

// Small segments, so that a few hundred tokens already have an index.
SessionParams session_params(const std::shared_ptr<Runtime>& runtime, const char* policy,
                             DType kv = DType::f32) {
  SessionParams params;
  params.policy = find_policy(runtime->backend, policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.kv = kv;
  params.prefix_reuse = false;
  params.sampling = warm();
  return params;
}

std::vector<int32_t> prompt(size_t count, uint64_t salt = 0) {
  std::vector<int32_t> ids(count);
  uint64_t state = test::seed() + salt;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % 100);
  }
  return ids;
}

std::vector<float> logits_of(Session& session) {
  const std::span<const float> view = session.logits(nullptr);
  return {view.begin(), view.end()};
}

uint64_t stages_ns(const wi_session_stats& stats) {
  return stats.weights_ns + stats.select_ns + stats.retrieve_ns + stats.attend_ns + stats.estimate_ns +
         stats.index_ns;
}

void a_steps_stages_add_up_to_its_time(void**) {
  auto rt = runtime();
  test::ModelShape shape = test::shape_named("tiny");
  shape.layers = 4;
  shape.hidden = shape.ffn = test::few_or(128, 512);
  shape.query_heads = 8;
  shape.head_dim = 64;
  shape.vocab = 2000;
  const auto wide = test::random_model(shape, DType::f32, 3);
  for (const char* policy : {"full", "wave"}) {
    auto session = Session::create(rt, wide, session_params(rt, policy));
    session->prefill(prompt(test::few_or(400, 900)), {}, nullptr);
    assert_int_equal(session->stats().decode_ns, 0);
    for (int i = 0; i < 5; ++i) session->decode(nullptr);
    const wi_session_stats before = session->stats();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < test::few_or(20, 100); ++i) session->decode(nullptr);
    const double passed =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    const wi_session_stats after = session->stats();
    const auto decode = static_cast<double>(after.decode_ns - before.decode_ns);
    const auto stages = static_cast<double>(stages_ns(after) - stages_ns(before));
    std::printf("%s: steps %.1f ms, decode_ns %.1f, its stages %.1f\n", policy, passed / 1e6, decode / 1e6,
                stages / 1e6);
    // What is left out is handing a step to the workers and back: microseconds, but a busy machine adds to
    // them.
    assert_true(decode > 0 && decode <= passed && stages > 0 && stages <= decode);
    assert_in_time(decode > 0.5 * passed && stages > 0.5 * decode);
  }
}

void a_batch_counts_its_steps_and_their_time_for_each_session(void**) {
  auto rt = runtime();
  auto a = Session::create(rt, model(), session_params(rt, "wave"));
  auto b = Session::create(rt, model(), session_params(rt, "full"));
  a->prefill(prompt(600), {}, nullptr);
  b->prefill(prompt(100), {}, nullptr);
  Session* const both[] = {a.get(), b.get()};
  Event events[2];
  for (int i = 0; i < 11; ++i) Session::decode_batch(both, nullptr, events);
  for (Session* session : both) {
    const wi_session_stats stats = session->stats();
    assert_int_equal(stats.decode_steps, 10);
    assert_true(stats.decode_ns > 0 && stages_ns(stats) <= stats.decode_ns + stats.prefill_ns);
  }
}

void accept_is_decode_with_a_token_of_the_hosts(void**) {
  auto rt = runtime();
  for (const char* policy : {"full", "wave", "streaming", "blocks"}) {
    auto params = session_params(rt, policy);
    params.sampling.top_logprobs = 5;
    auto origin = Session::create(rt, model(), params);
    auto ids = prompt(900);
    std::copy_n(ids.begin() + 300, 40, ids.end() - 40);  // repeats, for the policy to follow
    origin->prefill(ids, {}, nullptr);
    auto decoded = origin->fork(), accepted = origin->fork();
    for (int i = 0; i < 150; ++i) {  // past two seals
      const Event wanted = decoded->decode(nullptr);
      const std::vector<float> logits = logits_of(*accepted);
      const Event got = accepted->accept(wanted.token, nullptr);
      assert_int_equal(got.token, wanted.token);
      assert_int_equal(got.kind, wanted.kind);
      assert_true(got.logprob == wanted.logprob);
      assert_int_equal(got.top.size(), 5);
      assert_memory_equal(got.top.data(), wanted.top.data(), 5 * sizeof(wi_token_logprob));
    }
    assert_true(decoded->tokens() == accepted->tokens());
    assert_true(logits_of(*decoded) == logits_of(*accepted));
    const wi_session_stats one = decoded->stats(), two = accepted->stats();
    assert_int_equal(one.decode_steps, two.decode_steps);
    assert_int_equal(one.segments, two.segments);
    assert_true(one.kv_bytes_read == two.kv_bytes_read && one.kv_bytes_read > 0);
    assert_true(one.index_bytes_read == two.index_bytes_read);
    assert_true(one.retrieved_tokens == two.retrieved_tokens);
    assert_true(one.estimated_clusters == two.estimated_clusters);
    assert_true(two.decode_ns > 0 && two.weights_ns > 0 && two.prefill_tokens == one.prefill_tokens);
  }
}

void accept_leaves_the_random_numbers_alone(void**) {
  auto rt = runtime();
  auto session = Session::create(rt, model(), session_params(rt, "full"));
  assert_error(WI_E_STATE, "session is empty", session->accept(1, nullptr));
  session->prefill(prompt(50), {}, nullptr);
  for (int32_t token : {3, 3, 99, 0}) session->accept(token, nullptr);
  const std::vector<float> logits = logits_of(*session);
  SamplerScratch scratch;
  for (int i = 0; i < 4; ++i) {
    auto fork = session->fork();
    assert_int_equal(fork->decode(nullptr).token, Sampler(warm()).sample(logits, scratch).token);
  }
  // Bias and callback are for sampling.
  SamplingParams forbids = warm();
  forbids.logit_bias = {{7, -INFINITY}};
  session->set_sampling(forbids);
  assert_int_equal(session->accept(7, nullptr).token, 7);
}

// Every allocation of a call refused once: with a full chunk of tokens, so that the token itself needs one.
void a_refused_allocation_loses_no_token_and_no_random_number(void**) {
  auto params = session_params(runtime(), "full");
  params.sampling.repetition_penalty = 1.2f;
  params.sampling.top_k = 20;
  params.sampling.logit_bias = {{5, 1}};
  params.sampling.top_logprobs = 3;
  const auto ids = prompt(TokenLog::kChunk);
  auto warm_rt = runtime();
  auto origin = Session::create(warm_rt, model(), params);
  origin->prefill(ids, {}, nullptr);
  auto control = origin->fork();
  std::vector<int32_t> wanted;
  for (int i = 0; i < 4; ++i) wanted.push_back(control->decode(nullptr).token);
  int refusals = 0;
  for (int64_t n = 0;; ++n) {
    auto rt = runtime();  // whose workspace is cold
    auto session = Session::create(rt, model(), params);
    session->prefill(ids, {}, nullptr);
    refuse_at = n;
    bool failed = false;
    Event event;
    try {
      event = session->decode(nullptr);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool all_done = refuse_at >= 0;
    refuse_at = -1;
    if (failed) {
      ++refusals;
      assert_int_equal(session->stats().tokens, ids.size());
      event = session->decode(nullptr);
    }
    assert_int_equal(event.token, wanted[0]);
    for (size_t i = 1; i < wanted.size(); ++i) assert_int_equal(session->decode(nullptr).token, wanted[i]);
    if (all_done) break;
  }
  std::printf("%d allocations refused\n", refusals);
  assert_true(refusals >= 4);
}

void a_batch_that_fails_says_who_and_changes_nobody(void**) {
  auto rt = runtime();
  std::vector<std::shared_ptr<Session>> sessions, controls;
  std::vector<Session*> batch;
  for (size_t i = 0; i < 4; ++i) {
    auto params = session_params(rt, i % 2 ? "full" : "wave");
    params.sampling.seed = i;
    sessions.push_back(Session::create(rt, model(), params));
    sessions[i]->prefill(prompt(80 + 200 * i, i), {}, nullptr);
    controls.push_back(sessions[i]->fork());
    batch.push_back(sessions[i].get());
  }
  std::vector<Event> events(batch.size());
  for (int round = 0; round < 3; ++round) {
    // With logits there already, and with a step to do.
    SamplingParams breaks = warm();
    breaks.logits_callback = [](void*, float*, uint64_t) { return 9; };
    auto third = sessions[2]->fork();
    third->set_sampling(breaks);
    batch[2] = third.get();
    assert_error(WI_E_CANCELLED, "sessions[2]: logits_callback returned 9",
                 Session::decode_batch(batch, nullptr, events.data()));
    SamplingParams forbids = warm();
    for (int32_t token = 0; token < 100; ++token) forbids.logit_bias.push_back({token, -INFINITY});
    third->set_sampling(forbids);
    assert_error(WI_E_STATE, "sessions[2]: no token is left to sample: logit_bias",
                 Session::decode_batch(batch, nullptr, events.data()));
    batch[2] = sessions[2].get();
    auto empty = Session::create(rt, model(), session_params(rt, "full"));
    batch.push_back(empty.get());
    events.resize(5);
    assert_error(WI_E_STATE, "sessions[4]: session is empty",
                 Session::decode_batch(batch, nullptr, events.data()));
    batch.pop_back();
    Session::decode_batch(batch, nullptr, events.data());
    for (size_t i = 0; i < batch.size(); ++i)
      assert_int_equal(events[i].token, controls[i]->decode(nullptr).token);
  }
  for (size_t i = 0; i < batch.size(); ++i)
    assert_int_equal(sessions[i]->stats().decode_steps, controls[i]->stats().decode_steps);
}

// Neither its own failure nor a companion's decides how the newest token is computed that a prompt comes after.
void what_a_failed_step_computed_is_no_part_of_a_prompt(void**) {
  auto rt = runtime();
  SamplingParams breaks = warm();
  breaks.logits_callback = [](void*, float*, uint64_t) { return 9; };
  const auto at_pending = [&](size_t tokens) {
    auto session = Session::create(rt, model(), session_params(rt, "wave"));
    session->prefill(prompt(tokens), {}, nullptr);
    session->decode(nullptr);  // a token that is not computed itself
    return session;
  };
  const auto wanted = at_pending(900), alone = at_pending(900), beside = at_pending(900);
  const auto failing = at_pending(300);
  failing->set_sampling(breaks);
  alone->set_sampling(breaks);
  Session* const batch[] = {beside.get(), failing.get()};
  Event events[2];
  assert_error(WI_E_CANCELLED, "logits_callback", alone->decode(nullptr));
  assert_error(WI_E_CANCELLED, "logits_callback", Session::decode_batch(batch, nullptr, events));
  for (Session* session : {wanted.get(), alone.get(), beside.get()})
    session->prefill(prompt(700, 1), {}, nullptr);
  for (Session* session : {alone.get(), beside.get()}) {
    assert_int_equal(session->stats().segments, wanted->stats().segments);
    assert_int_equal(session->stats().decode_steps, wanted->stats().decode_steps);
    assert_true(logits_of(*session) == logits_of(*wanted));
  }
}

void a_batch_may_mix_kv_types(void**) {
  auto rt = runtime();
  std::vector<std::shared_ptr<Session>> sessions, alone;
  std::vector<Session*> batch;
  for (DType kv : {DType::f32, DType::f16, DType::bf16}) {
    sessions.push_back(Session::create(rt, model(), session_params(rt, "wave", kv)));
    sessions.back()->prefill(prompt(700), {}, nullptr);
    alone.push_back(sessions.back()->fork());
    batch.push_back(sessions.back().get());
  }
  std::vector<Event> events(3);
  for (int step = 0; step < 10; ++step) {
    Session::decode_batch(batch, nullptr, events.data());
    for (size_t i = 0; i < 3; ++i) {
      const Event wanted = alone[i]->decode(nullptr);
      assert_int_equal(events[i].token, wanted.token);
      assert_true(events[i].logprob == wanted.logprob);
    }
  }
}

// ---- keys and values beyond the KV type ----

// The key projection of layer 1 times `scale`.
std::shared_ptr<const Model> model_with_keys(float scale) {
  auto own = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  const Matrix& keys = own->weights.layers[1].k;
  auto* values = static_cast<float*>(const_cast<void*>(keys.data));
  for (int64_t i = 0; i < keys.rows * keys.cols; ++i) values[i] *= scale;
  return own;
}

// A past made elsewhere, its last token pending: the next step computes with the model.
std::shared_ptr<Session> with_past(const std::shared_ptr<Runtime>& rt, const std::shared_ptr<const Model>& of,
                                   DType kv) {
  auto session = Session::create(rt, of, session_params(rt, "wave", kv));
  session->append_computed(
      prompt(400),
      [](int32_t, int64_t first, int64_t count, float* keys, float* values) {
        for (int64_t i = 0; i < count * 32; ++i)
          keys[i] = values[i] = std::sin(static_cast<float>(first * 32 + i));
      },
      nullptr);
  return session;
}

void keys_beyond_the_kv_type_are_an_error_that_names_the_layer(void**) {
  auto rt = runtime();
  const auto large = model_with_keys(1e5f);
  const char* const words = "layer 1 has a key or value of ";
  for (const char* policy : {"full", "wave"}) {
    auto session = Session::create(rt, large, session_params(rt, policy, DType::f16));
    assert_error(WI_E_UNSUPPORTED, words, session->prefill(prompt(300), {}, nullptr));
    assert_error(WI_E_UNSUPPORTED, "more than kv_type f16 holds (65504): use bf16 or f32",
                 session->prefill(prompt(1), {}, nullptr));
    assert_int_equal(session->stats().tokens, 0);
    for (DType kv : {DType::bf16, DType::f32}) {
      auto holds = Session::create(rt, large, session_params(rt, policy, kv));
      holds->prefill(prompt(300), {}, nullptr);
      for (int i = 0; i < 3; ++i) assert_true(std::isfinite(holds->decode(nullptr).logprob));
    }
  }
  auto session = with_past(rt, large, DType::f16);
  assert_error(WI_E_UNSUPPORTED, words, session->decode(nullptr));
  assert_error(WI_E_UNSUPPORTED, words, session->accept(3, nullptr));
  assert_error(WI_E_UNSUPPORTED, words, session->logits(nullptr));
  assert_int_equal(session->stats().tokens, 400);
  session->truncate(100);  // and it goes on working
  assert_int_equal(session->stats().tokens, 100);
}

void keys_that_are_no_numbers_are_an_error(void**) {
  auto rt = runtime();
  for (float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto broken = model_with_keys(scale);
    for (DType kv : {DType::f16, DType::bf16, DType::f32}) {
      auto session = Session::create(rt, broken, session_params(rt, "full", kv));
      assert_error(WI_E_UNSUPPORTED, "layer 1 computes keys or values that are not finite",
                   session->prefill(prompt(10), {}, nullptr));
    }
  }
}

void a_batch_says_whose_keys_are_beyond_the_kv_type(void**) {
  auto rt = runtime();
  const auto large = model_with_keys(1e5f);
  auto fine = with_past(rt, large, DType::f32), not_fine = with_past(rt, large, DType::f16);
  auto control = fine->fork();
  Session* const batch[] = {fine.get(), not_fine.get()};
  Event events[2];
  assert_error(WI_E_UNSUPPORTED, "sessions[1]: layer 1 has a key or value of ",
               Session::decode_batch(batch, nullptr, events));
  assert_int_equal(fine->stats().tokens, 400);
  for (int i = 0; i < 5; ++i) assert_int_equal(fine->decode(nullptr).token, control->decode(nullptr).token);
}

void a_kv_store_refuses_what_it_cannot_hold(void**) {
  auto rt = runtime();
  for (DType kv : {DType::f16, DType::bf16, DType::f32}) {
    KvStoreParams params;
    params.shape = {2, 1, 24, kv};  // not whole vectors, so that the last ones are seen too
    params.query_heads = 1;
    params.policy = find_policy(rt->backend, "full");
    KvStore store(rt, params);
    const std::vector<float> fine(48, kv == DType::f16 ? 65504.0f : 3e38f);
    store.append(0, 2, fine.data(), fine.data());
    for (size_t at : {size_t{0}, size_t{23}, size_t{47}}) {
      std::vector<float> row = fine;
      row[at] = -65520;
      if (kv == DType::f16)
        assert_error(WI_E_UNSUPPORTED, "layer 1 has a key or value of 65520",
                     store.append(1, 2, row.data(), fine.data()));
      row[at] = std::numeric_limits<float>::max();
      if (kv == DType::bf16)
        assert_error(WI_E_UNSUPPORTED, "more than kv_type bf16 holds (3.39e38): use f32",
                     store.append(1, 2, fine.data(), row.data()));
      row[at] = std::numeric_limits<float>::quiet_NaN();
      assert_error(WI_E_ARGUMENT, "keys or values of layer 1 are not finite",
                   store.append(1, 2, row.data(), fine.data()));
      row[at] = -std::numeric_limits<float>::infinity();
      assert_error(WI_E_ARGUMENT, "keys or values of layer 1 are not finite",
                   store.append(1, 2, fine.data(), row.data()));
    }
    assert_int_equal(store.stats().tokens, 0);
    store.append(1, 2, fine.data(), fine.data());
    assert_int_equal(store.stats().tokens, 2);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_steps_stages_add_up_to_its_time),
      cmocka_unit_test(a_batch_counts_its_steps_and_their_time_for_each_session),
      cmocka_unit_test(accept_is_decode_with_a_token_of_the_hosts),
      cmocka_unit_test(accept_leaves_the_random_numbers_alone),
      cmocka_unit_test(a_refused_allocation_loses_no_token_and_no_random_number),
      cmocka_unit_test(a_batch_that_fails_says_who_and_changes_nobody),
      cmocka_unit_test(what_a_failed_step_computed_is_no_part_of_a_prompt),
      cmocka_unit_test(a_batch_may_mix_kv_types),
      cmocka_unit_test(keys_beyond_the_kv_type_are_an_error_that_names_the_layer),
      cmocka_unit_test(keys_that_are_no_numbers_are_an_error),
      cmocka_unit_test(a_batch_says_whose_keys_are_beyond_the_kv_type),
      cmocka_unit_test(a_kv_store_refuses_what_it_cannot_hold),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
