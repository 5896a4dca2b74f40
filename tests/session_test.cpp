// A session's claims: what forks, truncation, chunking, budgets and cancellation may and may not change. The
// model has random weights, in f32 throughout, so that runs which should agree do so to rounding.
#include "src/session.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <thread>
#include <vector>

#include "src/repeats.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/test.h"

using namespace wi;

namespace {

std::shared_ptr<Runtime> runtime(uint64_t budget_bytes = uint64_t{1} << 30) {
  RuntimeParams params;
  params.threads = 2;
  params.kv_budget_bytes = budget_bytes;
  return test::create_runtime(params);
}

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared =
      test::random_model(test::shape_named("tiny"), DType::f32, 7);
  return shared;
}

// Small segments, so that a few hundred tokens already have an index.
SessionParams session_params(const std::shared_ptr<Runtime>& runtime, const char* policy) {
  SessionParams params;
  params.policy = find_policy(runtime->backend, policy);
  assert_non_null(params.policy);
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
  params.kv = DType::f32;
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

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  assert_int_equal(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

std::vector<int32_t> decode_tokens(Session& session, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(session.decode(nullptr).token);
  return ids;
}

// Sums run in another order, nothing else differs.
constexpr double kRounding = 2e-4;

void append_by_chunks_equals_one_prefill(void**) {
  auto rt = runtime();
  const auto ids = prompt(700);
  for (const char* policy : {"full", "wave"}) {
    auto whole = Session::create(rt, model(), session_params(rt, policy));
    auto params = session_params(rt, policy);
    params.prefix_reuse = false;
    auto parts = Session::create(rt, model(), params);
    whole->prefill(ids, {}, nullptr);
    size_t done = 0;
    for (size_t count : {size_t{1}, size_t{2}, size_t{5}, size_t{300}, size_t{64}, size_t{328}}) {
      parts->prefill({ids.data() + done, count}, {}, nullptr);
      done += count;
    }
    assert_int_equal(done, ids.size());
    assert_true(max_difference(logits_of(*whole), logits_of(*parts)) < kRounding);
  }
}

void whole_budget_without_estimation_equals_full(void**) {
  auto rt = runtime();
  const auto ids = prompt(900);
  auto full = Session::create(rt, model(), session_params(rt, "full"));
  auto params = session_params(rt, "wave");
  params.policy_params.budget = 1;
  params.policy_params.estimation = 0;
  auto wave = Session::create(rt, model(), params);
  full->prefill(ids, {}, nullptr);
  wave->prefill(ids, {}, nullptr);
  for (int step = 0; step < 280; ++step) {  // past a seal while decoding
    assert_int_equal(full->decode(nullptr).token, wave->decode(nullptr).token);
    assert_true(max_difference(logits_of(*full), logits_of(*wave)) < kRounding);
  }
}

// Seen from outside by what select reads: the places of what followed the newest tokens where they stood
// before, once for each layer and KV head.
void a_step_looks_up_where_its_newest_tokens_stood_before(void**) {
  auto rt = runtime();
  auto ids = prompt(900);
  ids.insert(ids.end(), {91, 92, 93, 94});
  std::copy_n(ids.end() - 3, 3, ids.begin() + 400);  // 3 of them stand in a sealed segment
  const ModelConfig& config = model()->config;
  const int64_t width = int64_t{config.kv_heads} * config.head_dim;
  const auto read_by_a_step = [&](int32_t repeats) {
    auto params = session_params(rt, "wave");
    params.policy_params.repeats = repeats;
    params.prefix_reuse = false;
    auto session = Session::create(rt, model(), params);
    session->append_computed(
        ids,
        [&](int32_t, int64_t first, int64_t count, float* keys, float* values) {
          for (int64_t i = 0; i < count * width; ++i)
            keys[i] = values[i] = std::sin(static_cast<float>(first * width + i));
        },
        nullptr);
    session->logits(nullptr);  // of the last token, which was left pending
    return session->stats().index_bytes_read;
  };
  const uint64_t without = read_by_a_step(0), with = read_by_a_step(2);
  const auto lookups = static_cast<uint64_t>(config.layers * config.kv_heads);
  assert_true(without > 0);
  assert_int_equal(with - without, lookups * sizeof(int32_t) * static_cast<uint64_t>(kFollowed));
}

void prefill_and_token_by_token_agree(void**) {
  auto rt = runtime();
  const auto ids = prompt(70);
  auto chunk = Session::create(rt, model(), session_params(rt, "full"));
  auto steps = Session::create(rt, model(), session_params(rt, "full"));
  chunk->prefill(ids, {}, nullptr);
  for (int32_t id : ids) steps->prefill({&id, 1}, {}, nullptr);
  assert_true(max_difference(logits_of(*chunk), logits_of(*steps)) < kRounding);
}

void logits_of_every_token_end_with_the_last(void**) {
  auto rt = runtime();
  const auto ids = prompt(33);
  auto session = Session::create(rt, model(), session_params(rt, "full"));
  std::vector<float> all(ids.size() * 100);
  PrefillParams params;
  params.logits = all;
  session->prefill(ids, params, nullptr);
  const std::vector<float> last(all.end() - 100, all.end());
  assert_true(max_difference(last, logits_of(*session)) == 0);
  // A pending token's row is not the caller's.
  session->decode(nullptr);
  std::vector<float> more(2 * 100);
  params.logits = more;
  const int32_t two[] = {3, 4};
  session->prefill(two, params, nullptr);
  assert_true(max_difference({more.begin() + 100, more.end()}, logits_of(*session)) == 0);
}

void short_sessions_work(void**) {
  auto rt = runtime();
  for (const char* policy : {"full", "wave"}) {
    auto empty = Session::create(rt, model(), session_params(rt, policy));
    assert_error(WI_E_STATE, "session is empty", empty->decode(nullptr));
    empty->prefill({}, {}, nullptr);
    assert_error(WI_E_STATE, "session is empty", empty->logits(nullptr));
    for (size_t count : {size_t{1}, size_t{5}}) {
      auto session = Session::create(rt, model(), session_params(rt, policy));
      session->prefill(prompt(count), {}, nullptr);
      assert_int_equal(decode_tokens(*session, 3).size(), 3);
      assert_int_equal(session->stats().tokens, count + 3);
    }
  }
}

void identical_runs_give_identical_tokens(void**) {
  const auto ids = prompt(600);
  std::vector<std::vector<int32_t>> answers;
  for (int threads : {2, 2, 1}) {
    RuntimeParams rp;
    rp.threads = threads;
    auto rt = test::create_runtime(rp);
    auto session = Session::create(rt, model(), session_params(rt, "wave"));
    session->prefill(ids, {}, nullptr);
    answers.push_back(decode_tokens(*session, 40));
  }
  assert_true(answers[0] == answers[1]);
  assert_true(answers[0] == answers[2]);
}

void fork_diverges_and_leaves_its_origin_alone(void**) {
  auto rt = runtime();
  auto origin = Session::create(rt, model(), session_params(rt, "wave"));
  auto control = Session::create(rt, model(), session_params(rt, "wave"));
  origin->prefill(prompt(500), {}, nullptr);
  control->prefill(prompt(500), {}, nullptr);
  auto fork = origin->fork();
  fork->prefill(prompt(40, 99), {}, nullptr);
  decode_tokens(*fork, 20);
  assert_true(decode_tokens(*origin, 20) == decode_tokens(*control, 20));
}

// One chunk, so that nothing is sealed while the prompt is read and both prompts compute the same bits.
void fork_under_another_policy_goes_on_as_if_read_under_it(void**) {
  auto rt = runtime();
  const char* const policies[] = {"full", "wave", "streaming", "blocks"};
  const auto params_of = [&](const char* policy) {
    SessionParams params = session_params(rt, policy);
    params.prefix_reuse = false;
    return params;
  };
  for (size_t tokens : {size_t{1}, size_t{4}, size_t{70}, size_t{900}})
    for (const char* from : policies) {
      auto origin = Session::create(rt, model(), params_of(from));
      origin->prefill(prompt(tokens), {}, nullptr);
      const auto expected_of_origin = decode_tokens(*origin->fork(), 20);
      for (const char* to : policies) {
        auto control = Session::create(rt, model(), params_of(to));
        control->prefill(prompt(tokens), {}, nullptr);
        auto fork = origin->fork_as(params_of(to), nullptr);
        assert_int_equal(fork->stats().segments, control->stats().segments);
        assert_int_equal(fork->stats().kv_bytes, control->stats().kv_bytes);
        assert_true(decode_tokens(*fork, 100) == decode_tokens(*control, 100));
      }
      assert_true(decode_tokens(*origin, 20) == expected_of_origin);
    }
}

void fork_under_another_budget_shares_what_is_sealed(void**) {
  auto rt = runtime();
  auto origin = Session::create(rt, model(), session_params(rt, "wave"));
  origin->prefill(prompt(900), {}, nullptr);
  const uint64_t before = rt->pool->used();
  auto params = session_params(rt, "wave");
  params.policy_params.budget = 1;
  params.policy_params.estimation = 0;
  auto fork = origin->fork_as(params, nullptr);
  assert_int_equal(rt->pool->used(), before);
  auto control = Session::create(rt, model(), params);
  control->prefill(prompt(900), {}, nullptr);
  assert_true(decode_tokens(*fork, 20) == decode_tokens(*control, 20));
  params.kv_budget_bytes = 1000;
  assert_error(WI_E_BUDGET, "kv_budget_bytes is 1000", origin->fork_as(params, nullptr));
  params.kv_budget_bytes = 0;
  params.kv = DType::bf16;
  assert_error(WI_E_ARGUMENT, "kv_type is bf16", origin->fork_as(params, nullptr));
}

// Also where that is not where the grid has it, behind a cut.
void a_fork_under_another_budget_goes_back_to_the_prompt_as_its_origin(void**) {
  auto rt = runtime();
  auto params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 8192;
  params.policy_params.decode_segment_tokens = 256;
  params.prefix_reuse = false;
  auto origin = Session::create(rt, model(), params);
  const auto ids = prompt(1090);
  origin->prefill({ids.data(), 1000}, {}, nullptr);
  origin->truncate(775);
  origin->prefill({ids.data() + 775, 1090 - 775}, {}, nullptr);
  const int64_t sealed = origin->sequence().sealed_end();
  decode_tokens(*origin, 390);
  assert_true(origin->sequence().sealed_end() > sealed);
  params.policy_params.budget = 0.05f;
  auto fork = origin->fork_as(params, nullptr);
  for (Session* one : {origin.get(), fork.get()}) {
    one->truncate(1090);
    assert_int_equal(one->sequence().sealed_end(), sealed);
  }
}

void two_forks_decode_at_once_on_two_threads(void**) {
  auto rt = runtime();
  auto origin = Session::create(rt, model(), session_params(rt, "wave"));
  origin->prefill(prompt(500), {}, nullptr);
  auto expected = decode_tokens(*origin->fork(), 30);
  auto a = origin->fork(), b = origin->fork();
  std::vector<int32_t> from_a, from_b;
  std::thread other([&] { from_a = decode_tokens(*a, 30); });
  from_b = decode_tokens(*b, 30);
  other.join();
  assert_true(from_a == expected);
  assert_true(from_b == expected);
}

void truncate_into_a_segment_goes_back_exactly(void**) {
  auto rt = runtime();
  const auto ids = prompt(800);
  auto control = Session::create(rt, model(), session_params(rt, "full"));
  for (size_t kept : {size_t{700}, size_t{333}, size_t{261}, size_t{260}, size_t{5}, size_t{3}, size_t{1}}) {
    auto params = session_params(rt, "wave");
    params.policy_params.budget = 1;
    params.prefix_reuse = false;
    auto session = Session::create(rt, model(), params);
    session->prefill(ids, {}, nullptr);
    session->truncate(static_cast<int64_t>(kept));
    assert_int_equal(session->stats().tokens, kept);
    auto fresh = Session::create(rt, model(), session_params(rt, "full"));
    fresh->prefill({ids.data(), kept}, {}, nullptr);
    assert_true(max_difference(logits_of(*session), logits_of(*fresh)) < kRounding);
    assert_int_equal(session->decode(nullptr).token, fresh->decode(nullptr).token);
  }
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  session->prefill(ids, {}, nullptr);
  assert_error(WI_E_ARGUMENT, "tokens is 801, the session has 800", session->truncate(801));
  session->truncate(0);
  assert_int_equal(session->stats().tokens, 0);
  session->prefill(ids, {}, nullptr);
  control->prefill(ids, {}, nullptr);
  assert_true(max_difference(logits_of(*session), logits_of(*control)) < kRounding);
}

// Wherever an answer is cut off, units that were sealed later are tail again; in a fork, and one of other parameters that
// the prompt's end does not depend on, too.
void a_cut_brings_back_the_bits_that_were_there(void**) {
  auto rt = runtime();
  for (const char* policy : {"wave", "full"}) {
    auto session = Session::create(rt, model(), session_params(rt, policy));
    session->prefill(prompt(700), {}, nullptr);
    std::vector<std::vector<float>> at{logits_of(*session)};
    for (int i = 0; i < 1000; ++i) {
      session->accept(i * 31 % 100, nullptr);
      if ((i + 1) % 43 == 0) at.push_back(logits_of(*session));
    }
    assert_true(session->stats().segments > 5);
    for (size_t cut = 0; cut < at.size(); ++cut) {
      const auto fork = session->fork();
      fork->truncate(static_cast<int64_t>(700 + cut * 43));
      assert_true(max_difference(logits_of(*fork), at[cut]) == 0);
    }
    SessionParams other = session_params(rt, policy);
    other.policy_params.budget = 0.5f;
    const auto fork = session->fork_as(other, nullptr);
    fork->truncate(700);
    assert_true(max_difference(logits_of(*fork), at[0]) == 0);
  }
}

// Since a session has other parameters, or its segments were made at once, it goes on from how it was sealed then; and what
// is cut at other places than a prompt's end, from there.
void a_cut_brings_back_what_other_parameters_made(void**) {
  auto rt = runtime();
  const test::Folder folder;
  const auto answer = [](Session& session) {
    std::vector<std::vector<float>> at{logits_of(session)};
    std::vector<int32_t> segments{session.stats().segments};
    for (int i = 0; i < 600; ++i) {
      session.accept(i * 37 % 100, nullptr);
      if ((i + 1) % 43 != 0) continue;
      at.push_back(logits_of(session));
      segments.push_back(session.stats().segments);
    }
    return std::make_pair(at, segments);
  };
  const auto check_cuts = [](Session& session, int64_t from, const auto& was) {
    const auto& [at, segments] = was;
    for (size_t cut = 0; cut < at.size(); ++cut) {
      const auto fork = session.fork();
      fork->truncate(from + static_cast<int64_t>(cut) * 43);
      assert_true(max_difference(logits_of(*fork), at[cut]) == 0);
      assert_int_equal(fork->stats().segments, segments[cut]);
    }
  };
  const auto through_a_file = [&](Session& session, int32_t local_window) {
    session.save(folder.file("saved"), nullptr);
    return Session::load(
        rt, model(), folder.file("saved"),
        [&](SessionParams params) {
          if (local_window) params.policy_params.local_window = local_window;
          return params;
        },
        nullptr);
  };
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 512;
  params.policy_params.decode_segment_tokens = 64;
  params.policy_params.local_window = 128;
  params.prefix_reuse = false;
  for (const int32_t window : {16, 500}) {
    for (const bool file : {false, true}) {
      auto origin = Session::create(rt, model(), params);
      origin->prefill(prompt(1200), {}, nullptr);
      SessionParams other = params;
      other.policy_params.local_window = window;
      const auto fork = file ? through_a_file(*origin, window) : origin->fork_as(other, nullptr);
      const auto was = answer(*fork);
      check_cuts(*fork, 1200, was);
      check_cuts(*through_a_file(*fork, 0), 1200, was);
      fork->truncate(1200);
      assert_true(answer(*fork) == was);
    }
  }
  for (const int32_t segment_tokens : {512, 256}) {  // the same segments, others
    auto origin = Session::create(rt, model(), params);
    origin->prefill(prompt(1200), {}, nullptr);
    answer(*origin);
    SessionParams other = params;
    other.policy_params.segment_tokens = segment_tokens;
    other.policy_params.local_window = 64;
    const auto fork = origin->fork_as(other, nullptr);
    const auto was = answer(*fork);
    check_cuts(*fork, 1800, was);
    check_cuts(*through_a_file(*fork, 0), 1800, was);
  }
  auto inside = Session::create(rt, model(), params);
  inside->prefill(prompt(1200), {}, nullptr);
  inside->truncate(900);
  const auto was = answer(*inside);
  check_cuts(*inside, 900, was);
  check_cuts(*through_a_file(*inside, 0), 900, was);
}

// A step settles what is sealed: a prompt that comes after it leaves that as it is. One that is not made does not, nor one
// of a batch that another session's failure ends.
// Its next token is still to be computed, and what that step seals is not sealed yet: a prompt that comes then finds it
// as it was, too.
void a_cut_seals_no_more_than_was_sealed(void**) {
  auto rt = runtime();
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 512;
  params.policy_params.decode_segment_tokens = 64;
  params.policy_params.local_window = 128;
  params.prefix_reuse = false;
  for (const bool narrower : {false, true}) {
    auto session = Session::create(rt, model(), params);
    session->prefill(prompt(700), {}, nullptr);
    if (narrower) {  // which has units to catch up with
      SessionParams other = params;
      other.policy_params.local_window = 16;
      session = session->fork_as(other, nullptr);
    }
    std::vector<std::shared_ptr<Session>> then;
    for (int i = 0; i < 500; ++i) {
      session->accept(i * 37 % 100, nullptr);
      then.push_back(session->fork());
    }
    for (size_t i = 0; i < then.size(); ++i) {
      const auto cut = session->fork();
      cut->truncate(701 + static_cast<int64_t>(i));
      assert_int_equal(cut->stats().segments, then[i]->stats().segments);
      if (i % 21 != 0 && cut->stats().segments == then[i > 0 ? i - 1 : i]->stats().segments) continue;
      const auto as_then = then[i]->fork();
      cut->prefill(prompt(600), {}, nullptr);
      as_then->prefill(prompt(600), {}, nullptr);
      assert_int_equal(cut->stats().segments, as_then->stats().segments);
      assert_true(max_difference(logits_of(*cut), logits_of(*as_then)) == 0);
    }
  }
}

void a_step_that_fails_settles_nothing(void**) {
  auto rt = runtime();
  auto params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 512;
  params.policy_params.decode_segment_tokens = 64;
  params.prefix_reuse = false;
  CancelToken fired;
  fired.flag = true;
  auto control = Session::create(rt, model(), params);
  auto session = Session::create(rt, model(), params), other = Session::create(rt, model(), params);
  for (Session* each : {control.get(), session.get(), other.get()}) {
    each->prefill(prompt(300), {}, nullptr);
    each->decode(nullptr);
  }
  assert_error(WI_E_CANCELLED, "cancelled", session->decode(&fired));
  Session* const both[] = {other.get(), session.get()};
  Event events[2];
  assert_error(WI_E_CANCELLED, "cancelled", Session::decode_batch(both, &fired, events));
  for (Session* each : {control.get(), session.get(), other.get()})
    each->prefill(prompt(1200, 1), {}, nullptr);
  for (Session* each : both) {
    assert_int_equal(each->stats().segments, control->stats().segments);
    assert_true(max_difference(logits_of(*each), logits_of(*control)) == 0);
    assert_true(decode_tokens(*each, 5) == decode_tokens(*control->fork(), 5));
  }
}

// Where its file asks for what is not computed beyond so many tokens.
void a_session_ends_where_the_model_is_not_computed_any_more(void**) {
  auto rt = runtime();
  const auto limited = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  ModelConfig& config = std::const_pointer_cast<Model>(limited)->config;
  config.most_tokens = 50;
  config.beyond_most = "sliding_window is 50";
  auto session = Session::create(rt, limited, session_params(rt, "wave"));
  const char* const words =
      "tokens would be 51, but sliding_window is 50, and what the model computes beyond 50 tokens is not "
      "supported";
  assert_error(WI_E_UNSUPPORTED, words, session->prefill(prompt(51), {}, nullptr));
  assert_int_equal(session->stats().tokens, 0);
  session->prefill(prompt(48), {}, nullptr);
  for (int i = 0; i < 2; ++i) session->decode(nullptr);
  const auto last = logits_of(*session);
  session->decode(nullptr);  // a token that is not computed itself
  assert_error(WI_E_UNSUPPORTED, words, session->decode(nullptr));
  session->truncate(50);
  assert_true(max_difference(logits_of(*session), last) == 0);
}

// Two models that differ in one byte of one tensor: neither takes over what the other has computed, nor loads
// it.
void nearly_equal_models_share_nothing(void**) {
  auto rt = runtime();
  const auto other = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  const Matrix& matrix = other->weights.layers[0].down;
  const size_t middle = row_bytes(matrix.type, matrix.cols) * static_cast<size_t>(matrix.rows) / 2;
  static_cast<unsigned char*>(const_cast<void*>(static_cast<const void*>(matrix.data)))[middle] ^= 1;
  const auto ids = prompt(800);
  auto first = Session::create(rt, model(), session_params(rt, "wave"));
  first->prefill(ids, {}, nullptr);
  auto second = Session::create(rt, other, session_params(rt, "wave"));
  second->prefill(ids, {}, nullptr);
  assert_int_equal(second->stats().prefix_tokens, 0);

  const test::Folder folder;
  const std::string path = folder.file("nearly");
  first->save(path, nullptr);
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  assert_error(WI_E_MISMATCH, "another model", Session::load(rt, other, path, as_saved, nullptr));
  const auto same = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  assert_int_equal(Session::load(rt, same, path, as_saved, nullptr)->stats().tokens, 800);
}

// What others hold costs no bit, and is used where that is so: a prompt in one call, in chunks as tasks read it, and
// after somebody whose prompt goes another way later.
void shared_segments_change_no_bit(void**) {
  const auto fast = test::random_model(test::shape_named("tiny"), DType::f16, 7, Precision::fast);
  const auto read = [&](const std::shared_ptr<Runtime>& rt, const SessionParams& params,
                        std::span<const int32_t> ids, bool by_chunks) {
    auto session = Session::create(rt, params.kv == DType::f32 ? model() : fast, params);
    if (by_chunks)
      for (size_t at = 0; at < ids.size();)
        at += static_cast<size_t>(session->prefill_chunk_of(ids.subspan(at), {}, nullptr));
    else
      session->prefill(ids, {}, nullptr);
    return session;
  };
  const char* const policies[] = {"wave", "full"};
  const int32_t segments[] = {1024, 2048, 512}, sparse_reads[] = {100, 0};
  for (const char* policy : std::span(policies).first(test::slow_or(1u, 2u))) {
    for (const int32_t segment_tokens : std::span(segments).first(test::slow_or(1u, 3u))) {
      for (const int32_t sparse : std::span(sparse_reads).first(test::slow_or(1u, 2u))) {
        const auto params_on = [&](const std::shared_ptr<Runtime>& rt) {
          SessionParams params = session_params(rt, policy);
          if (segment_tokens == 1024) params.kv = DType::f16;
          params.policy_params.segment_tokens = segment_tokens;
          params.sparse_read_tokens = sparse;
          return params;
        };
        auto ids = prompt(4100 + 500);
        const auto alone = runtime(), shared = runtime();
        auto other_ids = ids;
        other_ids[4300] = (other_ids[4300] + 1) % 100;
        const auto other = read(shared, params_on(shared), other_ids, sparse > 0);
        for (const size_t count : {size_t{4600}, size_t{4100 + 90}, size_t{3000}}) {
          const auto wanted = read(alone, params_on(alone), {ids.data(), count}, false);
          for (const bool by_chunks : {false, true}) {
            const auto found = read(shared, params_on(shared), {ids.data(), count}, by_chunks);
            if (count > 4500) assert_true(found->stats().prefix_tokens >= 2052);
            assert_int_equal(found->stats().segments, wanted->stats().segments);
            for (int i = 0; i < 4; ++i) {
              assert_true(max_difference(logits_of(*found), logits_of(*wanted)) == 0);
              if (by_chunks) continue;  // the same session decodes once
              wanted->accept(i, nullptr);
              found->accept(i, nullptr);
            }
            if (!by_chunks) wanted->truncate(static_cast<int64_t>(count));
          }
        }
      }
    }
  }
}

// Of chunks of another size each number is another one, and so it is where a chunk found more of its past unsealed.
void what_was_read_otherwise_is_not_taken_for_alike(void**) {
  const auto logits_beside = [&](size_t tokens, int32_t chunk_tokens, int32_t local_window) {
    const auto ids = prompt(tokens);
    const auto rt = runtime();
    SessionParams params = session_params(rt, "wave");
    params.policy_params.segment_tokens = 1024;
    auto others = params;
    others.policy_params.local_window = local_window;
    const auto other = Session::create(rt, model(), others);
    PrefillParams chunks;
    chunks.chunk_tokens = chunk_tokens;
    if (chunk_tokens >= 0) other->prefill(ids, chunks, nullptr);
    const auto session = Session::create(rt, model(), params);
    session->prefill(ids, {}, nullptr);
    return logits_of(*session);
  };
  assert_true(logits_beside(2300, 512, 64) == logits_beside(2300, -1, 64));
#ifndef WI_EMULATED
  assert_true(logits_beside(4600, 0, 2100) == logits_beside(4600, -1, 64));

  // Chunks of the library's size at first, then others: as of a task that was cancelled.
  const auto ids = prompt(4600);
  const auto rt = runtime();
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 1024;
  const auto other = Session::create(rt, model(), params);
  const auto done = static_cast<size_t>(other->prefill_chunk_of(ids, {}, nullptr));
  PrefillParams chunks;
  chunks.chunk_tokens = 512;
  other->prefill(std::span(ids).subspan(done), chunks, nullptr);
  const auto session = Session::create(rt, model(), params);
  session->prefill(ids, {}, nullptr);
  assert_true(logits_of(*session) == logits_beside(4600, -1, 64));
#endif
}

// Nor does it hide what is alike, or what goes on further.
void every_chain_of_equal_segments_is_looked_at(void**) {
  const auto ids = prompt(test::slow_or(2600, 4600));
  const auto rt = runtime();
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 1024;
  PrefillParams chunks;
  chunks.chunk_tokens = 512;
  const auto otherwise = Session::create(rt, model(), params),
             as_usual = Session::create(rt, model(), params);
  otherwise->prefill(ids, chunks, nullptr);
  as_usual->prefill(ids, {}, nullptr);
  assert_int_equal(as_usual->stats().prefix_tokens, 0);
  const auto third = Session::create(rt, model(), params);
  third->prefill(ids, {}, nullptr);
  assert_true(third->stats().prefix_tokens >= 2052);
  for (const bool first_is_cut : {true, false}) {
    const auto world = runtime();
    params = session_params(world, "wave");
    params.policy_params.segment_tokens = 1024;
    const auto first = Session::create(world, model(), params),
               second = Session::create(world, model(), params);
    first->prefill(ids, chunks, nullptr);
    second->prefill(ids, chunks, nullptr);
    (first_is_cut ? first : second)->truncate(1200);
    params.any_prefix = true;
    const auto any = Session::create(world, model(), params);
    any->prefill(ids, {}, nullptr);
    assert_true(any->stats().prefix_tokens >= 2052);
  }
}

// A file's keys and values may be of another precision, or anybody's: nobody else gets them.
void what_a_file_has_is_not_offered_to_others(void**) {
  const auto rt = runtime();
  const auto ids = prompt(1600);
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 1024;  // what is loaded becomes part of longer ones
  params.any_prefix = true;
  test::Folder folder;
  const std::string path = folder.file("saved");
  {
    const auto saved = Session::create(rt, model(), params);
    saved->prefill({ids.data(), 800}, {}, nullptr);
    saved->save(path, nullptr);
  }
  const auto loaded = Session::load(
      rt, model(), path, [&](const SessionParams&) { return params; }, nullptr);
  loaded->prefill(std::span(ids).subspan(800), {}, nullptr);
  const auto fork = loaded->fork();
  fork->prefill(prompt(600, 3), {}, nullptr);
  const auto other = Session::create(rt, model(), params);
  other->prefill(ids, {}, nullptr);
  assert_int_equal(other->stats().prefix_tokens, 0);
}

// What others hold does not make the rest of a prompt so short that it is read through the policy.
void a_prefix_leaves_no_rest_that_is_read_sparsely(void**) {
  const auto rt = runtime();
  const auto ids = prompt(test::emulated_or(2200, 4600));
  SessionParams params = session_params(rt, "wave");
  params.policy_params.segment_tokens = 1024;
  params.sparse_read_tokens = 100;
  const auto count = static_cast<size_t>(kSinkTokens + test::emulated_or(2048, 4352) + 64);
  const auto alone = Session::create(rt, model(), params);
  alone->prefill({ids.data(), count}, {}, nullptr);
  const auto wanted = logits_of(*alone);
  alone->truncate(0);
  const auto first = Session::create(rt, model(), params);
  first->prefill(ids, {}, nullptr);
  params.any_prefix = true;
  const auto any = Session::create(rt, model(), params);
  any->prefill({ids.data(), count}, {}, nullptr);
  assert_true(any->stats().prefix_tokens > 0);
  assert_true(max_difference(logits_of(*any), wanted) < kRounding);
}

void equal_prompts_share_segments(void**) {
  auto rt = runtime();
  const auto ids = prompt(800);
  SessionParams params = session_params(rt, "wave");
  auto first = Session::create(rt, model(), params);
  first->prefill(ids, {}, nullptr);
  auto alike = Session::create(rt, model(), params);
  alike->prefill(ids, {}, nullptr);
  assert_int_equal(alike->stats().prefix_tokens, 0);  // less than a chunk
  params.any_prefix = true;
  auto second = Session::create(rt, model(), params);
  const uint64_t before = rt->pool->used();
  second->prefill(ids, {}, nullptr);
  assert_true(second->stats().prefix_tokens >= 512);
  assert_true(rt->pool->used() - before < first->stats().kv_bytes / 2);
  assert_true(max_difference(logits_of(*first), logits_of(*second)) < kRounding);
  // Another prompt with the same beginning shares only what is equal, and nobody else's policy matters.
  auto other_ids = ids;
  other_ids[300] = (other_ids[300] + 1) % 100;
  auto third = Session::create(rt, model(), params);
  third->prefill(other_ids, {}, nullptr);
  assert_int_equal(third->stats().prefix_tokens, kSinkTokens + 256);
  auto full = Session::create(rt, model(), session_params(rt, "full"));
  full->prefill(ids, {}, nullptr);
  assert_int_equal(full->stats().prefix_tokens, 0);
}

// The same file, opened for other products: whoever asked for f32 does not get keys made in bf16.
void equal_prompts_of_other_precision_share_nothing(void**) {
  auto rt = runtime();
  const auto ids = prompt(800);
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<const Model>> models;
  for (Precision precision : {Precision::fast, Precision::high, Precision::int8, Precision::f32})
    models.push_back(test::random_model(test::shape_named("tiny"), DType::f16, 7, precision));
  models.push_back(models.back());
  for (const auto& weights : models) {
    SessionParams params = session_params(rt, "wave");
    params.any_prefix = true;
    sessions.push_back(Session::create(rt, weights, params));
    sessions.back()->prefill(ids, {}, nullptr);
  }
  for (int i : {0, 1, 2, 3}) assert_int_equal(sessions[static_cast<size_t>(i)]->stats().prefix_tokens, 0);
  assert_true(sessions[4]->stats().prefix_tokens >= 512);
}

// What is left out without an estimate is not called covered.
void coverage_is_said_where_it_is_measured(void**) {
  for (const char* policy : {"full", "wave", "streaming", "blocks"}) {
    auto rt = runtime();
    SessionParams params = session_params(rt, policy);
    params.policy_params.budget = 0.05f;
    const auto session = Session::create(rt, model(), params);
    session->prefill(prompt(1000), {}, nullptr);
    assert_true(session->stats().estimated_coverage == 1);
    session->decode(nullptr);
    session->decode(nullptr);
    const wi_session_stats stats = session->stats();
    const bool drops = std::string_view(policy) == "streaming" || std::string_view(policy) == "blocks";
    if (drops) assert_true(stats.dropped_clusters > 0);
    const double measured = std::string_view(policy) == "wave" ? 1e-3 : 1;
    for (const double coverage :
         {stats.estimated_coverage, stats.certified_coverage, stats.certified_coverage_min})
      assert_true(drops ? coverage == 0 : coverage >= measured && coverage <= 1);
  }
}

void over_budget_changes_nothing(void**) {
  auto rt = runtime();
  auto params = session_params(rt, "wave");
  auto probe = Session::create(rt, model(), params);
  probe->prefill(prompt(300), {}, nullptr);
  params.kv_budget_bytes = probe->stats().kv_bytes + 70 * 2 * 2 * 2 * 16 * 4;  // about one block more
  params.prefix_reuse = false;
  auto session = Session::create(rt, model(), params);
  session->prefill(prompt(300), {}, nullptr);
  const auto before = logits_of(*session);
  const auto tokens = session->tokens();
  assert_error(WI_E_BUDGET, "kv_budget_bytes", session->prefill(prompt(1000, 5), {}, nullptr));
  assert_true(session->tokens() == tokens);
  assert_true(max_difference(before, logits_of(*session)) == 0);
  assert_int_equal(session->decode(nullptr).kind, WI_EVENT_TOKEN);
}

void runtime_budget_holds_for_all_sessions(void**) {
  auto rt = runtime(400000);
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  assert_error(WI_E_BUDGET, "", session->prefill(prompt(5000), {}, nullptr));
  assert_int_equal(session->stats().tokens, 0);
  session->prefill(prompt(100), {}, nullptr);
  assert_true(rt->pool->used() <= rt->pool->budget());
}

struct CancelAt {
  CancelToken* token;
  uint64_t done;
};

void cancelled_prefill_changes_nothing(void**) {
  auto rt = runtime();
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  session->prefill(prompt(300), {}, nullptr);
  const auto before = logits_of(*session);
  CancelToken cancel;
  CancelAt at{&cancel, 600};
  PrefillParams params;
  params.chunk_tokens = 100;
  params.progress_user = &at;
  params.progress = [](void* user, uint64_t done, uint64_t) {
    auto* self = static_cast<CancelAt*>(user);
    if (done >= self->done) self->token->flag = true;
    return int32_t{0};
  };
  assert_error(WI_E_CANCELLED, "cancelled", session->prefill(prompt(1200, 3), params, &cancel));
  assert_int_equal(session->stats().tokens, 300);
  assert_true(max_difference(before, logits_of(*session)) == 0);
  assert_error(WI_E_CANCELLED, "cancelled", {
    session->decode(nullptr);
    session->decode(&cancel);
  });
  assert_int_equal(session->stats().tokens, 301);
  cancel.flag = false;
  session->decode(&cancel);
  assert_int_equal(session->stats().tokens, 302);
}

// They are a fork's too, and what a cut to the prompt's end brings back; nobody tries the prompt again here.
void a_failed_prefill_leaves_shared_logits_alone(void**) {
  auto rt = runtime();
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  session->prefill(prompt(300), {}, nullptr);
  const auto fork = session->fork();
  const auto before = logits_of(*session);
  PrefillParams refused;
  refused.progress = [](void*, uint64_t done, uint64_t) { return int32_t{done > 0}; };
  assert_error(WI_E_CANCELLED, "", session->prefill(prompt(50, 3), refused, nullptr));
  decode_tokens(*session, 3);
  assert_true(logits_of(*fork) == before);
  session->truncate(300);
  assert_true(logits_of(*session) == before);
}

void a_prompt_ends_the_making_of_a_segment_of_its_tokens(void**) {
  auto rt = runtime();
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  session->prefill(prompt(300), {}, nullptr);
  for (int i = 0; i < 300 && !session->sequence().being_built(); ++i) session->decode(nullptr);
  assert_true(session->sequence().being_built());
  session->prefill(prompt(700, 1), {}, nullptr);
  assert_false(session->sequence().being_built());
}

void batch_equals_each_alone(void**) {
  auto rt = runtime();
  std::vector<std::shared_ptr<Session>> alone, batched;
  std::vector<Session*> batch;
  for (size_t i = 0; i < 5; ++i) {
    auto session = Session::create(rt, model(), session_params(rt, i % 2 ? "full" : "wave"));
    session->prefill(prompt(100 + 150 * i, i), {}, nullptr);
    batched.push_back(session->fork());
    batch.push_back(batched.back().get());
    alone.push_back(session);
  }
  for (int step = 0; step < 30; ++step) {
    std::vector<Event> events(batch.size());
    Session::decode_batch(batch, nullptr, events.data());
    for (size_t i = 0; i < batch.size(); ++i)
      assert_int_equal(events[i].token, alone[i]->decode(nullptr).token);
  }
  batch[1] = batch[0];
  std::vector<Event> events(batch.size());
  assert_error(WI_E_ARGUMENT, "sessions[1] is in the batch twice",
               Session::decode_batch(batch, nullptr, events.data()));
}

void short_chunks_may_read_through_the_policy(void**) {
  auto rt = runtime();
  const auto ids = prompt(900), question = prompt(12, 42);
  auto exact = Session::create(rt, model(), session_params(rt, "wave"));
  auto params = session_params(rt, "wave");
  params.sparse_read_tokens = 32;
  params.policy_params.budget = 1;
  auto sparse = Session::create(rt, model(), params);
  exact->prefill(ids, {}, nullptr);
  sparse->prefill(ids, {}, nullptr);
  assert_int_equal(sparse->stats().retrieved_tokens, 0);
  exact->prefill(question, {}, nullptr);
  sparse->prefill(question, {}, nullptr);
  // The budget is everything, so the way through the policy must give the exact answer.
  assert_true(max_difference(logits_of(*exact), logits_of(*sparse)) < kRounding);
}

// A cut within a prompt: its last token is computed exactly.
void a_step_that_reads_all_of_the_past_says_so(void**) {
  auto rt = runtime();
  for (const char* policy : {"wave", "full"}) {
    auto session = Session::create(rt, model(), session_params(rt, policy));
    session->prefill(prompt(700), {}, nullptr);
    session->truncate(500);
    logits_of(*session);
    const wi_session_stats stats = session->stats();
    assert_int_equal(stats.decode_steps, 1);
    assert_int_equal(stats.kv_bytes_read, 500 * kv_shape_of(*model(), DType::f32).token_bytes());
  }
}

void statistics_account_for_every_token(void**) {
  auto rt = runtime();
  auto session = Session::create(rt, model(), session_params(rt, "wave"));
  session->prefill(prompt(2000), {}, nullptr);
  decode_tokens(*session, 11);
  const wi_session_stats stats = session->stats();
  assert_int_equal(stats.tokens, 2011);
  assert_int_equal(stats.decode_steps, 10);  // the first token needs none
  assert_int_equal(stats.prefill_tokens, 2000);
  assert_true(stats.segments > 0);
  assert_true(stats.index_bytes > 0 && stats.index_bytes < stats.kv_bytes);
  assert_true(stats.estimated_coverage > 0 && stats.estimated_coverage <= 1);
  assert_true(stats.certified_coverage <= stats.estimated_coverage + 1e-6);
  assert_true(stats.retrieved_tokens > 0);

  session->truncate(1500);  // a token of the prompt, which is computed exactly
  session->logits(nullptr);
  assert_int_equal(session->stats().decode_steps, 11);
  assert_true(session->stats().decode_ns > stats.decode_ns);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(append_by_chunks_equals_one_prefill),
      cmocka_unit_test(whole_budget_without_estimation_equals_full),
      cmocka_unit_test(a_step_looks_up_where_its_newest_tokens_stood_before),
      cmocka_unit_test(prefill_and_token_by_token_agree),
      cmocka_unit_test(logits_of_every_token_end_with_the_last),
      cmocka_unit_test(short_sessions_work),
      cmocka_unit_test(identical_runs_give_identical_tokens),
      cmocka_unit_test(fork_diverges_and_leaves_its_origin_alone),
      cmocka_unit_test(fork_under_another_policy_goes_on_as_if_read_under_it),
      cmocka_unit_test(fork_under_another_budget_shares_what_is_sealed),
      cmocka_unit_test(a_fork_under_another_budget_goes_back_to_the_prompt_as_its_origin),
      cmocka_unit_test(two_forks_decode_at_once_on_two_threads),
      cmocka_unit_test(truncate_into_a_segment_goes_back_exactly),
      cmocka_unit_test(a_cut_brings_back_the_bits_that_were_there),
      cmocka_unit_test(a_cut_brings_back_what_other_parameters_made),
      cmocka_unit_test(a_cut_seals_no_more_than_was_sealed),
      cmocka_unit_test(a_step_that_fails_settles_nothing),
      cmocka_unit_test(a_session_ends_where_the_model_is_not_computed_any_more),
      cmocka_unit_test(nearly_equal_models_share_nothing),
      cmocka_unit_test(shared_segments_change_no_bit),
      cmocka_unit_test(what_was_read_otherwise_is_not_taken_for_alike),
      cmocka_unit_test(every_chain_of_equal_segments_is_looked_at),
      cmocka_unit_test(what_a_file_has_is_not_offered_to_others),
      cmocka_unit_test(a_prefix_leaves_no_rest_that_is_read_sparsely),
      cmocka_unit_test(equal_prompts_share_segments),
      cmocka_unit_test(equal_prompts_of_other_precision_share_nothing),
      cmocka_unit_test(coverage_is_said_where_it_is_measured),
      cmocka_unit_test(over_budget_changes_nothing),
      cmocka_unit_test(runtime_budget_holds_for_all_sessions),
      cmocka_unit_test(cancelled_prefill_changes_nothing),
      cmocka_unit_test(a_failed_prefill_leaves_shared_logits_alone),
      cmocka_unit_test(a_prompt_ends_the_making_of_a_segment_of_its_tokens),
      cmocka_unit_test(batch_equals_each_alone),
      cmocka_unit_test(short_chunks_may_read_through_the_policy),
      cmocka_unit_test(a_step_that_reads_all_of_the_past_says_so),
      cmocka_unit_test(statistics_account_for_every_token),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
