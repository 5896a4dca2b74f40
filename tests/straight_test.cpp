// Segments that the fast tier has no room for: a session whose budget is less than one of them takes reads prompts,
// decodes, forks, is cut and saved, says the same bits as one with everything in memory, never holds more than its
// budget, and is as it was when the disk fails. The plan says beforehand what such a budget must be.
#include "src/pipeline/straight.h"

#include "src/cancel.h"
#include "src/memory_plan.h"
#include "tests/support/failing_calls.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tiers.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr int32_t kSegment = 2048, kUnit = 128;
constexpr size_t kPrompt = 5000;

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared = [] {
    ModelShape shape;
    shape.name = "straight";
    shape.layers = slow_or(2, 3);
    shape.kv_heads = 4;
    shape.query_heads = slow_or(4, 8);
    shape.head_dim = 32;
    return random_model(shape, DType::f32, seed());
  }();
  return shared;
}
TiersWorld world_of(const Tiers& tiers) { return TiersWorld(tiers, model()); }

SessionParams params_of(const TiersWorld& world, const char* policy = "wave") {
  SessionParams params = world.params(0);
  params.policy = find_policy(world.runtime->backend, policy);
  params.policy_params.segment_tokens = kSegment;
  params.policy_params.decode_segment_tokens = kUnit;
  params.policy_params.tokens_per_centroid = 64;
  return params;
}
std::shared_ptr<Session> session_of(const TiersWorld& world, const char* policy = "wave") {
  return Session::create(world.runtime, world.model, params_of(world, policy));
}

uint64_t segment_bytes() { return uint64_t{kSegment} * kv_shape_of(*model(), DType::f16).token_bytes(); }
// Of each kind of case so many, and so many of a disk's calls that fail.
constexpr size_t kCases = slow_or(1, 3), kFaults = slow_or(1, 3);
// Of a plan that is held to its word.
constexpr size_t kPlanned = slow_or(3000, 6000);
constexpr int kPlannedSteps = slow_or(300, 400);
// A prompt in chunks of so many tokens is read with that.
constexpr int32_t kChunk = 128;
uint64_t budget() { return segment_bytes() * 9 / 10; }

std::vector<float> logits_of(Session& session) {
  const std::span<const float> logits = session.logits(nullptr);
  return {logits.begin(), logits.end()};
}

void add(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void step(Session& session, int steps, std::vector<float>& all) {
  for (int i = 0; i < steps; ++i) {
    session.accept(i * 7 % 100, nullptr);
    add(all, logits_of(session));
  }
}

// Everything that a host does with a session, in pieces that are sealed anew as parts of longer segments.
std::vector<float> life(const TiersWorld& world, const char* policy) {
  std::vector<float> all;
  const auto session = session_of(world, policy);
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  for (size_t at = 0; at < ids.size(); at += 1700) {
    session->prefill({ids.data() + at, std::min<size_t>(1700, ids.size() - at)}, chunks_of(kChunk), nullptr);
    add(all, logits_of(*session));
  }
  step(*session, 20, all);
  const auto fork = session->fork();
  step(*session, slow_or(300, 700), all);  // units are sealed
  fork->truncate(3000);
  add(all, logits_of(*fork));
  fork->prefill(random_prompt(2500, 1), chunks_of(kChunk), nullptr);
  step(*fork, 3, all);
  const std::string path = world.folder.file("saved");
  session->save(path, nullptr);
  const auto loaded = Session::load(
      world.runtime, world.model, path, [](const SessionParams& params) { return params; }, nullptr);
  step(*loaded, 3, all);
  return all;
}

void a_budget_below_one_segment_changes_no_bit(void**) {
  const TiersWorld fast = world_of({.slow = false});
  const char* const policies[] = {"wave", "full", "blocks"};
  for (const char* policy : std::span(policies).first(kCases)) {
    const TiersWorld world = world_of({.kv_budget_bytes = budget()});
    const auto session = session_of(world, policy), expected = session_of(fast, policy);
    const std::vector<int32_t> ids = random_prompt(kPrompt);
    std::vector<float> got, wanted;
    for (Session* one : {session.get(), expected.get()}) {
      one->prefill(ids, chunks_of(kChunk), nullptr);
      std::vector<float>& all = one == session.get() ? got : wanted;
      add(all, logits_of(*one));
      step(*one, 300, all);
    }
    assert_true(got == wanted);
    assert_true(session->sequence().segments()[0]->tokens() == kSegment);
    assert_in_range(world.runtime->pool->peak(), 1, budget());
    std::printf("  %s: %llu of %llu bytes, a segment takes %llu\n", policy,
                static_cast<unsigned long long>(world.runtime->pool->peak()),
                static_cast<unsigned long long>(budget()), static_cast<unsigned long long>(segment_bytes()));
  }
}

// With room for a segment here and there, and none for it there and here.
void whatever_the_budget_all_that_a_host_does_says_the_same(void**) {
  const std::vector<float> wanted = life(world_of({.slow = false}), "wave");
  const double budgets[] = {1.6, 2.3, 3.5};
  for (const double segments : std::span(budgets).first(kCases)) {
    const auto bytes = static_cast<uint64_t>(segments * static_cast<double>(segment_bytes()));
    const TiersWorld world = world_of({.kv_budget_bytes = bytes});
    const bool same = life(world, "wave") == wanted;
    if (!same) fail_because("at %.1f segments", segments);
    assert_in_range(world.runtime->pool->peak(), 1, bytes);
  }
}

// The session's own budget, in a runtime that has room for all.
void a_sessions_own_budget_may_be_less_than_a_segment(void**) {
  const TiersWorld world = world_of({}), fast = world_of({.slow = false});
  SessionParams params = params_of(world);
  params.kv_budget_bytes = budget();
  const auto session = Session::create(world.runtime, world.model, params), expected = session_of(fast);
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  for (size_t at = 0; at < ids.size(); at += 1000) {
    for (Session* one : {session.get(), expected.get()})
      one->prefill({ids.data() + at, 1000}, chunks_of(kChunk), nullptr);
    assert_in_range(session->sequence().bytes(), 1, budget());
    assert_true(logits_of(*session) == logits_of(*expected));
  }
}

// A prompt that is read a chunk a call, as tasks' are, holds no more; and one that is given up may be decoded.
void a_prompt_that_is_given_up_half_way_goes_on_as_in_memory(void**) {
  const TiersWorld world = world_of({.kv_budget_bytes = budget()}), fast = world_of({.slow = false});
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  const size_t stops[] = {3900, 1500, ids.size()};
  for (const size_t stop : std::span(stops).first(kCases)) {
    const auto session = session_of(world), expected = session_of(fast);
    std::vector<float> got, wanted;
    for (Session* one : {session.get(), expected.get()}) {
      for (size_t done = 0; done < stop;)
        done += static_cast<size_t>(
            one->prefill_chunk_of({ids.data() + done, ids.size() - done}, chunks_of(kChunk), nullptr));
      std::vector<float>& all = one == session.get() ? got : wanted;
      SavedBytes saved;
      one->save(saved, nullptr);
      add(all, logits_of(*one));
      if (one == session.get() && stop < ids.size()) assert_true(one->sequence().slow_blocks() > 0);
      auto fork = one->fork();
      fork->truncate(static_cast<int64_t>(stop) - 300);
      step(*fork, 5, all);
      fork.reset();
      step(*one, 5, all);
      const auto loaded = Session::load(
          fast.runtime, model(), saved, [](const SessionParams& params) { return params; }, nullptr);
      step(*loaded, 2, all);
      assert_int_equal(one->sequence().slow_blocks(), 0);
    }
    assert_true(got == wanted);
    assert_in_range(world.runtime->pool->peak(), 1, budget());
  }
}

// A cut that takes tokens out of a segment puts them before those of the tail, which may lie on the disk.
void a_cut_brings_tokens_back_beside_blocks_on_the_disk(void**) {
  const TiersWorld world = world_of({.kv_budget_bytes = budget()}), fast = world_of({.slow = false});
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  std::vector<float> logits[2];
  for (const TiersWorld* in : {&world, &fast}) {
    SessionParams params = params_of(*in);
    params.policy_params.local_window = 256;
    const auto session = Session::create(in->runtime, in->model, params);
    for (size_t done = 0; done < 3900;)
      done += static_cast<size_t>(
          session->prefill_chunk_of({ids.data() + done, ids.size() - done}, chunks_of(kChunk), nullptr));
    const int64_t sealed = session->sequence().sealed_end();
    if (in == &world) assert_true(session->sequence().slow_blocks() > 4);
    session->truncate(sealed + 200);
    assert_true(session->sequence().sealed_end() < sealed);
    step(*session, 5, logits[in == &fast]);
  }
  assert_true(logits[0] == logits[1]);
  assert_in_range(world.runtime->pool->peak(), 1, budget());
}

// Another's segments are more than the session may have in memory: what it does not take over it computes.
void a_prefix_beyond_the_sessions_budget_is_computed(void**) {
  const TiersWorld world = world_of({}), alone = world_of({.slow = false});
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  std::vector<float> logits[2];
  SessionParams params = params_of(world);
  params.prefix_reuse = true;
  const auto other = Session::create(world.runtime, world.model, params);
  other->prefill(ids, {}, nullptr);
  assert_int_equal(other->sequence().slow_segments(), 0);
  params.kv_budget_bytes = segment_bytes() * 8 / 5;
  const auto session = Session::create(world.runtime, world.model, params);
  session->prefill(ids, {}, nullptr);
  step(*session, 3, logits[0]);
  const auto expected = session_of(alone);
  expected->prefill(ids, {}, nullptr);
  step(*expected, 3, logits[1]);
  assert_true(logits[0] == logits[1]);
}

// Also one that is over it by the first tokens alone, which are taken over as well.
void a_prefix_counts_with_the_tokens_before_it(void**) {
  const TiersWorld world = world_of({}), alone = world_of({.slow = false});
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  SessionParams params = params_of(world);
  params.prefix_reuse = true;
  const auto other = Session::create(world.runtime, world.model, params);
  other->prefill(ids, {}, nullptr);
  uint64_t bytes = 0;
  const auto segments = other->sequence().segments();
  assert_true(segments.size() > 2);
  for (const auto& segment : segments.first(2)) bytes += segment->bytes();
  params.kv_budget_bytes = bytes + 1;
  const auto session = Session::create(world.runtime, world.model, params);
  session->prefill(ids, {}, nullptr);
  const auto expected = session_of(alone);
  expected->prefill(ids, {}, nullptr);
  std::vector<float> logits[2];
  step(*session, 3, logits[0]);
  step(*expected, 3, logits[1]);
  assert_true(logits[0] == logits[1]);
}

// Who has nothing to compute needs no room for it, and is in nobody's way.
void a_batch_asks_for_no_room_where_nothing_comes(void**) {
  const TiersWorld world = world_of({});
  SessionParams params = params_of(world);
  const auto writing = Session::create(world.runtime, world.model, params);
  writing->prefill(random_prompt(300), {}, nullptr);
  writing->decode(nullptr);
  params.kv_budget_bytes = segment_bytes() * 8 / 5;
  const auto spilled = Session::create(world.runtime, world.model, params);
  constexpr size_t kWholeBlocks = kSinkTokens + 78 * kBlockTokens;
  spilled->prefill(random_prompt(kWholeBlocks), {}, nullptr);
  assert_int_equal(spilled->sequence().slow_segments(), spilled->sequence().segments().size());
  params.kv_budget_bytes = spilled->stats().kv_bytes;
  const auto full = spilled->fork_as(params, nullptr);
  Session* const batch[] = {writing.get(), full.get()};
  Event events[2];
  Session::decode_batch(batch, nullptr, events);
  assert_int_equal(events[1].token, spilled->decode(nullptr).token);
}

// Short prompts may be read through the index, as steps are; those look at the tail in memory.
void a_short_prompt_behind_a_long_one_may_be_read_through_the_index(void**) {
  const TiersWorld world = world_of({.kv_budget_bytes = 2 * segment_bytes()}),
                   fast = world_of({.slow = false});
  std::vector<float> logits[2];
  for (const TiersWorld* in : {&world, &fast}) {
    SessionParams params = params_of(*in);
    params.sparse_read_tokens = 64;
    const auto session = Session::create(in->runtime, in->model, params);
    const std::vector<int32_t> ids = random_prompt(kPrompt);
    session->prefill(ids, chunks_of(kChunk), nullptr);  // whose last chunk is one of 8
    session->prefill(random_prompt(50, 1), chunks_of(kChunk), nullptr);
    step(*session, 3, logits[in == &fast]);
  }
  assert_true(logits[0] == logits[1]);
  assert_in_range(world.runtime->pool->peak(), 1, 2 * segment_bytes());
}

// ---- What fails ----

struct FaultCase {
  Function function;
  int what;
};

// Or it does no harm: what the disk does not take stays in memory, where there is room for it.
void a_disk_that_fails_leaves_the_session_as_it_was(void**) {
  int ended = 0;
  const std::vector<int32_t> ids = random_prompt(kPrompt);
  const TiersWorld fast = world_of({.slow = false});
  const auto expected = session_of(fast);
  expected->prefill({ids.data(), 600}, chunks_of(kChunk), nullptr);
  const std::vector<float> before = logits_of(*expected);
  expected->prefill({ids.data() + 600, ids.size() - 600}, chunks_of(kChunk), nullptr);
  const std::vector<float> wanted = logits_of(*expected);
  const auto attempt = [&](const FaultCase& one, int64_t first, int64_t last) {
    const TiersWorld world = world_of({.kv_budget_bytes = budget()});
    const auto session = session_of(world);
    session->prefill({ids.data(), 600}, chunks_of(kChunk), nullptr);
    arm(one.function, one.what, first, last);
    wi_status status = WI_OK;
    try {
      session->prefill({ids.data() + 600, ids.size() - 600}, chunks_of(kChunk), nullptr);
    } catch (const Error& error) {
      status = error.code();
    }
    const bool happened = fault.happened;
    disarm();
    if (!happened || one.function == kPread) assert_int_equal(status, happened ? WI_E_IO : WI_OK);
    if (status != WI_OK) {
      ++ended;
      assert_int_equal(status, WI_E_IO);
      assert_int_equal(session->stats().tokens, 600);
      assert_true(logits_of(*session) == before);
      session->prefill({ids.data() + 600, ids.size() - 600}, chunks_of(kChunk), nullptr);
    }
    assert_true(logits_of(*session) == wanted);
    assert_in_range(world.runtime->pool->peak(), 1, budget());
    return happened;
  };
  std::mt19937_64 random(seed());
  int happened = 0;
  for (const bool ring : {true, false}) {
    without_rings = !ring;
    for (const FaultCase& one :
         {FaultCase{kFallocate, ENOSPC}, {kPwrite, ENOSPC}, {kPwrite, EIO}, {kPread, EIO}}) {
      if (!ring && one.function != kPread) continue;  // the rest is the same
      if (ring && one.function == kPread) continue;
      const int64_t numbers[] = {0, 1, static_cast<int64_t>(random() % 30)};
      for (const int64_t number : std::span(numbers).first(kFaults)) happened += attempt(one, number, number);
    }
  }
  without_rings = false;
  assert_true(happened >= 3 * static_cast<int>(kFaults));
  assert_true(ended > 0);
}

// Where the disk cannot reserve, a segment's zeros are written first, which takes as long as the segment itself; and
// others may be at that.
void the_room_for_a_segment_is_waited_for_until_a_cancel(void**) {
  const TiersWorld world = world_of({});
  const KvShape shape = kv_shape_of(*model(), DType::f16);
  std::atomic<bool> cancelled{true};
  Stream stream;
  stream.workers = 2;
  stream.cancel = &cancelled;
  SpillFile& file = *world.buffer().file();
  const auto make = [&] { StraightPlanes(stream, world.buffer(), *world.runtime->pool, shape, kSegment); };
  for (const int reason : {0, EOPNOTSUPP}) {
    arm(reason ? kFallocate : kFunctions, reason);
    assert_error(WI_E_CANCELLED, "cancelled", make());
    // While another has the file's space, until that one's work is cancelled.
    std::atomic<bool> reserves{false}, end{false};
    const std::function<void()> poll = [&] {
      reserves = true;
      while (!end) std::this_thread::yield();
    };
    std::thread other([&] { static_cast<void>(file.reserve(100, "another's", poll)); });
    while (!reserves) std::this_thread::yield();
    assert_error(WI_E_CANCELLED, "cancelled", make());
    end = true;
    other.join();
    assert_int_equal(file.used(), 0);
    disarm();
  }
  cancelled = false;
  make();
}

// ---- What the plan says ----

void the_planned_part_is_enough_and_less_than_a_segment(void**) {
  const std::vector<int32_t> ids = random_prompt(kPlanned);
  const TiersWorld roomy = world_of({}), fast = world_of({.slow = false});
  const auto expected = session_of(fast);
  expected->prefill(ids, {}, nullptr);
  std::vector<float> wanted, got;
  step(*expected, kPlannedSteps, wanted);
  const uint64_t bytes =
      plan_memory(*roomy.runtime, *model(), params_of(roomy), ids.size() + kPlannedSteps).fast_bytes;
  const TiersWorld world = world_of({.kv_budget_bytes = bytes});
  assert_int_equal(plan_memory(*world.runtime, *model(), params_of(world), ids.size() + kPlannedSteps).fits,
                   1);
  const auto session = session_of(world);
  session->prefill(ids, {}, nullptr);
  step(*session, kPlannedSteps, got);
  assert_true(got == wanted);
  assert_in_range(world.runtime->pool->peak(), 1, bytes);
}

// Llama 3.1 8B with all defaults.
void an_8b_model_needs_a_fraction_of_a_segment_beside_its_index(void**) {
  const KvShape shape{32, 8, 128, DType::f16};
  const PolicyParams params;
  const Policy& wave = *find_policy(cpu_backend(), "wave");
  const uint64_t segment = shape.token_bytes() * static_cast<uint64_t>(params.segment_tokens);
  const KvPlan whole = plan_kv(shape, wave, params, 1024, 32768),
               straight = plan_kv(shape, wave, params, 1024, 32768, {.workers = 16, .tail = true});
  std::printf(
      "  a segment: %.2f GB; must be in memory at 32K tokens: %.2f GB, %.2f where planes leave at once, "
      "%.2f of it the index\n",
      static_cast<double>(segment) / 1e9, static_cast<double>(whole.fast_bytes) / 1e9,
      static_cast<double>(straight.fast_bytes) / 1e9, static_cast<double>(straight.index_bytes) / 1e9);
  assert_true(whole.fast_bytes > 2 * segment);
  assert_true(straight.fast_bytes - straight.index_bytes < segment * 2 / 3);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(an_8b_model_needs_a_fraction_of_a_segment_beside_its_index),
      cmocka_unit_test(a_budget_below_one_segment_changes_no_bit),
      cmocka_unit_test(whatever_the_budget_all_that_a_host_does_says_the_same),
      cmocka_unit_test(a_sessions_own_budget_may_be_less_than_a_segment),
      cmocka_unit_test(a_prompt_that_is_given_up_half_way_goes_on_as_in_memory),
      cmocka_unit_test(a_cut_brings_tokens_back_beside_blocks_on_the_disk),
      cmocka_unit_test(a_prefix_beyond_the_sessions_budget_is_computed),
      cmocka_unit_test(a_batch_asks_for_no_room_where_nothing_comes),
      cmocka_unit_test(a_prefix_counts_with_the_tokens_before_it),
      cmocka_unit_test(a_short_prompt_behind_a_long_one_may_be_read_through_the_index),
      cmocka_unit_test(a_disk_that_fails_leaves_the_session_as_it_was),
      cmocka_unit_test(the_room_for_a_segment_is_waited_for_until_a_cancel),
      cmocka_unit_test(the_planned_part_is_enough_and_less_than_a_segment),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
