// The memory plan against sessions that were really made: it repeats the store's arithmetic, so it must agree
// with it.
#include "src/memory_plan.h"

#include <random>
#include <span>

#include "src/pipeline/building.h"
#include "src/pipeline/index.h"
#include "support/folder.h"
#include "support/random_model.h"
#include "test.h"
#include "tests/support/fewer.h"
#include "tests/support/policies.h"
#include "tests/support/runtime.h"

namespace wi {
namespace {

SessionParams params_of(const char* policy, int32_t segment_tokens, int32_t decode_segment_tokens,
                        int32_t window, DType kv) {
  SessionParams params;
  params.policy = find_policy(test::runtime()->backend, policy);
  assert_non_null(params.policy);
  params.policy_params.segment_tokens = segment_tokens;
  params.policy_params.decode_segment_tokens = decode_segment_tokens;
  params.policy_params.local_window = window;
  params.kv = kv;
  return params;
}

std::shared_ptr<const Model> small_model() {
  static const auto model = test::random_model({}, DType::f32, test::seed());
  return model;
}

std::shared_ptr<Runtime> small_runtime(uint64_t kv_budget_bytes = 0) {
  RuntimeParams params;
  params.threads = 1;
  params.kv_budget_bytes = kv_budget_bytes;
  return test::create_runtime(params);
}

std::vector<int32_t> some_tokens(uint64_t count) {
  std::vector<int32_t> tokens(count);
  for (uint64_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * i + i / 3) % 100);
  return tokens;
}

void plan_agrees_with_a_session_that_is_made(void**) {
  for (const char* policy : test::policies()) {
    for (const auto& params :
         {params_of(policy, 1024, 256, 64, DType::f16), params_of(policy, 512, 1024, 0, DType::f32)}) {
      for (uint64_t count : test::kSlowed
                                ? std::vector<uint64_t>{0, 69, 5000}
                                : std::vector<uint64_t>{0, 1, 4, 5, 68, 69, 600, 1023, 2200, 3000, 5000}) {
        const auto runtime = small_runtime();
        const auto session = Session::create(runtime, small_model(), params);
        const wi_memory_plan plan = plan_memory(*runtime, *small_model(), params, count);
        session->prefill(some_tokens(count), {}, nullptr);
        const wi_session_stats stats = session->stats();
        const uint64_t peak = runtime->pool->peak();
        if (stats.kv_bytes - stats.index_bytes != plan.kv_bytes || stats.index_bytes > plan.index_bytes)
          std::printf("%s, %d tokens\n", policy, static_cast<int>(count));
        assert_int_equal(stats.kv_bytes - stats.index_bytes, plan.kv_bytes);
        assert_true(stats.index_bytes <= plan.index_bytes);
        assert_true(plan.index_bytes <= 3 * stats.index_bytes);  // an upper bound, but not a useless one
        assert_true(peak <= plan.kv_bytes + plan.index_bytes + plan.sealing_bytes);
        assert_int_equal(plan.fits, 1);
      }
    }
  }
}

// Of layers with a window, which have no index, all tokens are kept.
void plan_agrees_where_windows_slide(void**) {
  const SessionParams params = params_of("wave", 1024, 256, 64, DType::f16);
  uint64_t index_bytes[3], kv_bytes[3];
  for (int sliding : {0, 1, 2}) {
    test::ModelShape shape;
    shape.windows = {sliding > 0 ? 100 : 0, sliding > 1 ? 100 : 0};
    const auto model = test::random_model(shape, DType::f32, test::seed());
    const auto runtime = small_runtime();
    const wi_memory_plan plan = plan_memory(*runtime, *model, params, 5000);
    const auto session = Session::create(runtime, model, params);
    session->prefill(some_tokens(5000), {}, nullptr);
    const wi_session_stats stats = session->stats();
    assert_int_equal(stats.kv_bytes - stats.index_bytes, plan.kv_bytes);
    assert_true(stats.index_bytes <= plan.index_bytes && plan.index_bytes <= 3 * stats.index_bytes);
    assert_true(runtime->pool->peak() <= plan.kv_bytes + plan.index_bytes + plan.sealing_bytes);
    index_bytes[sliding] = plan.index_bytes;
    kv_bytes[sliding] = plan.kv_bytes;
  }
  assert_true(kv_bytes[0] == kv_bytes[1] && kv_bytes[0] == kv_bytes[2]);
  // Layers, KV heads; a place for each sealed token, and each of 6 segments' only partition's two ends.
  assert_int_equal(index_bytes[2], uint64_t{2} * 2 * (4864 + 6 * 2) * sizeof(int32_t));
  assert_int_equal(2 * index_bytes[1], index_bytes[0] + index_bytes[2]);
}

// A task reads a chunk a call, and each goes back to where it began if it fails; whatever part of the tokens is the
// answer, and whatever the parameters, the plan of all of them is enough.
void a_plan_is_enough_for_a_task_of_any_length(void**) {
  std::mt19937_64 random(test::seed());
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int i = 0; i < test::slow_or(1, 12); ++i) {
    const int32_t segment = 64 << below(8), unit = 64 << below(4), window = below(2) ? 64 : 700;
    const SessionParams params =
        params_of(below(2) ? "wave" : "full", segment, std::min(unit, segment), window, DType::f16);
    const uint64_t most = 2100 + below(test::slow_or(400, 10000)), answer = below(2) ? 1 : below(700);
    const auto runtime = small_runtime();
    const wi_memory_plan plan = plan_memory(*runtime, *small_model(), params, most);
    const auto session = Session::create(runtime, small_model(), params);
    const std::vector<int32_t> tokens = some_tokens(most - answer);
    for (std::span<const int32_t> left = tokens; !left.empty();)
      left = left.subspan(static_cast<size_t>(session->prefill_chunk_of(left, {}, nullptr)));
    for (uint64_t n = 0; n < answer; ++n) session->accept(static_cast<int32_t>(n % 100), nullptr);
    const uint64_t bytes = plan.kv_bytes + plan.index_bytes + plan.sealing_bytes,
                   peak = runtime->pool->peak();
    if (peak > bytes)
      std::printf("segments of %d to %d, window %d, %d tokens and %d: %d bytes, planned %d\n", segment, unit,
                  window, static_cast<int>(most - answer), static_cast<int>(answer), static_cast<int>(peak),
                  static_cast<int>(bytes));
    assert_true(peak <= bytes);
  }
}

// The same of one whose session has tokens, by calls before it, and in part shared with a fork.
void a_later_task_takes_no_more_than_is_planned_for_it(void**) {
  std::mt19937_64 random(test::seed());
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int i = 0; i < test::slow_or(1, 12); ++i) {
    const SessionParams params = params_of("wave", 512 << below(4), 128 << below(2), 64, DType::f16);
    const auto runtime = small_runtime();
    const auto session = Session::create(runtime, small_model(), params);
    session->prefill(some_tokens(1 + below(5000)), {}, nullptr);
    for (uint64_t n = below(2) ? below(600) : 0; n > 0; --n)
      session->accept(static_cast<int32_t>(n % 100), nullptr);
    const std::shared_ptr<Session> fork = below(2) ? session->fork() : nullptr;
    const std::vector<int32_t> tokens = some_tokens(below(3) ? 1 + below(5000) : 0);
    const uint64_t answer = below(500), used = runtime->pool->used();
    const TaskBytes bytes =
        plan_task(*session, static_cast<int64_t>(tokens.size()), static_cast<int64_t>(answer));
    MemoryBudget& budget = *runtime->pool->shared_budget();
    const uint64_t others = budget.bytes() - used - (bytes.most - bytes.now);
    budget.tell_elsewhere(0, others);
    for (std::span<const int32_t> left = tokens; !left.empty();)
      left = left.subspan(static_cast<size_t>(session->prefill_chunk_of(left, {}, nullptr)));
    for (uint64_t n = 0; n < answer; ++n) session->accept(static_cast<int32_t>(n % 100), nullptr);
    budget.tell_elsewhere(others, 0);
  }
}

void max_tokens_fit_the_runtimes_budget(void**) {
  for (const char* policy : test::policies()) {
    const auto runtime = small_runtime(uint64_t{1} << 20);
    const SessionParams params = params_of(policy, 1024, 256, 64, DType::f16);
    const wi_memory_plan plan = plan_memory(*runtime, *small_model(), params, 1);
    assert_true(plan.max_tokens > 1000);
    const auto session = Session::create(runtime, small_model(), params);
    session->prefill(some_tokens(plan.max_tokens), {}, nullptr);
    assert_int_equal(session->stats().tokens, plan.max_tokens);
    assert_int_equal(plan_memory(*runtime, *small_model(), params, plan.max_tokens).fits, 1);
    assert_int_equal(plan_memory(*runtime, *small_model(), params, plan.max_tokens + 1).fits, 0);
  }
}

// What is promised with a slow tier is held: so many tokens, and what memory they need of which budget.
void with_a_slow_tier_only_the_fast_part_must_fit(void**) {
  const test::Folder folder;
  const char* const policies[] = {"wave", "blocks"};
  for (const char* policy : std::span(policies).first(test::slow_or(1u, 2u))) {
    const uint64_t budget = test::slow_or(uint64_t{1}, uint64_t{2}) << 20;
    RuntimeParams runtime_params;
    runtime_params.threads = 1;
    runtime_params.kv_budget_bytes = budget;
    const SessionParams params = params_of(policy, 1024, 256, 64, DType::f16);
    const uint64_t in_memory =
        plan_memory(*test::create_runtime(runtime_params), *small_model(), params, 1).max_tokens;
    runtime_params.spill_folder = folder.path;
    const auto runtime = test::create_runtime(runtime_params);
    const uint64_t tokens = plan_memory(*runtime, *small_model(), params, 1).max_tokens;
    const wi_memory_plan plan = plan_memory(*runtime, *small_model(), params, tokens);
    std::printf("%s: %llu tokens in memory, %llu with a file, %llu of %llu bytes at once\n", policy,
                static_cast<unsigned long long>(in_memory), static_cast<unsigned long long>(tokens),
                static_cast<unsigned long long>(plan.fast_bytes),
                static_cast<unsigned long long>(plan.total_bytes));
    assert_true(tokens > in_memory * 3 / 2);
    assert_int_equal(plan.fits, 1);
    assert_in_range(plan.fast_bytes, 1, budget);
    const auto session = Session::create(runtime, small_model(), params);
    session->prefill(some_tokens(tokens), {}, nullptr);
    assert_int_equal(session->stats().tokens, tokens);
    assert_in_range(runtime->pool->peak(), 1, budget);
    session->logits(nullptr);
  }
}

// Of sealed keys and values, what stays as spill_bytes has no room for it, is of the fast part.
void what_the_slow_tier_has_no_room_for_must_fit_too(void**) {
  const test::Folder folder;
  RuntimeParams runtime_params;
  runtime_params.threads = 1;
  runtime_params.kv_budget_bytes = test::slow_or(uint64_t{1}, uint64_t{2}) << 20;
  runtime_params.spill_folder = folder.path;
  const auto most_tokens = [&](const SessionParams& params) {
    return plan_memory(*test::create_runtime(runtime_params), *small_model(), params, 1).max_tokens;
  };
  const char* const policies[] = {"wave", "full"};
  for (const char* policy : std::span(policies).first(test::slow_or(1u, 2u))) {
    for (const float share : {0.0f, 0.1f}) {
      SessionParams params = params_of(policy, 1024, 256, 64, DType::f16);
      params.kv_fast_share = share;
      runtime_params.spill_bytes = 0;
      const uint64_t unlimited = most_tokens(params);
      for (const uint64_t spill_bytes : {uint64_t{64} << 10, uint64_t{1} << 20}) {
        runtime_params.spill_bytes = spill_bytes;
        const auto runtime = test::create_runtime(runtime_params);
        const auto plan = [&](uint64_t tokens) {
          return plan_memory(*runtime, *small_model(), params, tokens);
        };
        const uint64_t tokens = plan(1).max_tokens;
        std::printf("%s, a share of %g: %llu tokens with %llu bytes, %llu without an end\n", policy,
                    static_cast<double>(share), static_cast<unsigned long long>(tokens),
                    static_cast<unsigned long long>(spill_bytes), static_cast<unsigned long long>(unlimited));
        assert_in_range(tokens, 100, unlimited - 1);
        assert_int_equal(plan(tokens).fits, 1);
        assert_int_equal(plan(tokens + 1).fits, 0);
        const auto session = Session::create(runtime, small_model(), params);
        session->prefill(some_tokens(tokens), {}, nullptr);
        assert_in_range(runtime->pool->peak(), 1, runtime_params.kv_budget_bytes);
        session->logits(nullptr);
      }
      // The last of them.
      const auto runtime = test::create_runtime(runtime_params);
      const uint64_t more = 3 * most_tokens(params) / 2;
      assert_int_equal(plan_memory(*runtime, *small_model(), params, more).fits, 0);
      const auto session = Session::create(runtime, small_model(), params);
      assert_error(WI_E_BUDGET, "spill file", session->prefill(some_tokens(more), {}, nullptr));
    }
  }
}

void max_tokens_fill_the_sessions_budget(void**) {
  const auto runtime = small_runtime();
  SessionParams params = params_of("full", 1024, 256, 64, DType::f16);
  params.kv_budget_bytes = 300000;
  const wi_memory_plan plan = plan_memory(*runtime, *small_model(), params, 1);
  const auto session = Session::create(runtime, small_model(), params);
  session->prefill(some_tokens(plan.max_tokens), {}, nullptr);
  assert_true(session->stats().kv_bytes <= params.kv_budget_bytes);
  const auto larger = Session::create(runtime, small_model(), params);
  assert_error(WI_E_BUDGET, "300000",
               larger->prefill(some_tokens(plan.max_tokens + kBlockTokens), {}, nullptr));
}

void scratch_is_of_the_right_size(void**) {
  const SessionParams params = params_of("full", 1024, 256, 64, DType::f16);
  for (const auto& model :
       {small_model(), test::random_model({}, DType::q8_0, test::seed(), Precision::int8)}) {
    const auto runtime = small_runtime();
    const wi_memory_plan plan = plan_memory(*runtime, *model, params, 3000);
    Session::create(runtime, model, params)->prefill(some_tokens(3000), {}, nullptr);
    std::printf("scratch planned %llu, used %llu\n", static_cast<unsigned long long>(plan.scratch_bytes),
                static_cast<unsigned long long>(runtime->scratch_bytes()));
    assert_true(runtime->scratch_bytes() <= plan.scratch_bytes);
  }
}

// Of a policy that looks up whole segments a step reads a layer's; a chunk reads its past besides, part by part.
void scratch_holds_what_is_read_of_the_slow_tier(void**) {
  test::ModelShape shape;
  shape.head_dim = 64;
  const auto model = test::random_model(shape, DType::f32, test::seed());
  const int64_t width = int64_t{shape.kv_heads} * shape.head_dim;
  const auto fill = [&](int32_t layer, int64_t first, int64_t count, float* keys, float* values) {
    auto state = static_cast<uint32_t>(first * 31 + layer + 1);
    for (float* out : {keys, values})
      for (int64_t i = 0; i < count * width; ++i)
        out[i] = static_cast<float>((state = state * 1664525 + 1013904223) >> 8) * 1e-7f - 0.8f;
  };
  const uint64_t many = test::slow_or(9000, 100000);
  for (const char* policy : {"full", "blocks", "wave"}) {
    const test::Folder folder;
    RuntimeParams runtime_params;
    runtime_params.threads = 2;
    runtime_params.kv_budget_bytes = uint64_t{40} << 20;
    runtime_params.spill_folder = folder.path;
    const auto runtime = test::create_runtime(runtime_params);
    SessionParams params = params_of(policy, 8192, 1024, 64, DType::f16);
    params.kv_fast_share = 0.01f;
    params.sparse_read_tokens = 16;
    const wi_memory_plan plan = plan_memory(*runtime, *model, params, many + 200);
    const auto session = Session::create(runtime, model, params);
    session->append_computed(some_tokens(many), fill, nullptr);
    session->prefill(some_tokens(100), {}, nullptr);
    session->prefill(some_tokens(15), {}, nullptr);
    for (int32_t i = 0; i < 3; ++i) session->accept(i, nullptr);
    session->logits(nullptr);
    assert_true(session->stats().slow_bytes > 0);
    std::printf("%s: scratch planned %llu, used %llu\n", policy,
                static_cast<unsigned long long>(plan.scratch_bytes),
                static_cast<unsigned long long>(runtime->scratch_bytes()));
    assert_true(runtime->scratch_bytes() <= plan.scratch_bytes);
    if (std::strcmp(policy, "full") == 0) {
      const uint64_t layer = session->stats().slow_bytes / 2;
      assert_true(runtime->scratch_bytes() > layer);  // or this test tests nothing
      assert_true(plan.scratch_bytes < layer + (uint64_t{160} << 20));
    }
  }
}

// A sequence of any life: prompts, tokens one by one, cuts (also of what was cut before, which has more clusters than
// a segment of its length is made with), forks, room that a failed call has left behind. While something is done to it
// there is room for no more than the plan says.
class PlannedLife {
 public:
  PlannedLife(const char* policy, int32_t decode_segment_tokens)
      : policy_(*find_policy(runtime_->backend, policy)), random_(test::seed()) {
    params_.segment_tokens = 512;
    params_.decode_segment_tokens = decode_segment_tokens;
    params_.tokens_per_centroid = 4;
    params_.local_window = 64;
  }

  void read_prompt() {
    const auto count = static_cast<int64_t>(1 + random_() % 700);
    append(count, 0);
    const SealPlan plan = plan_seal(sequence_, policy_, params_, 0);
    const uint64_t bytes =
        plan.longest ? making_bytes(shape_, plan.index, plan.longest) + plan.stays_bytes + plan.kept_bytes
                     : 0;
    with_room(bytes,
              [&](const SealContext& context) { seal_prompt(sequence_, context, sequence_.tokens()); });
  }
  void decode() {
    for (auto steps = random_() % 200; steps > 0; --steps) {
      const uint64_t sealing =
          decoded_sealing_bytes(sequence_, policy_, params_, sequence_.tokens(), runtime_->workers.threads());
      append(1, sealing, [&](const SealContext& context) { seal_decoded(sequence_, context); });
    }
  }
  void cut() {
    const int64_t tokens = std::max<int64_t>(sequence_.tokens() - static_cast<int64_t>(random_() % 300), 0);
    const CutPlan plan = plan_cut(sequence_, policy_, params_, tokens);
    const uint64_t bytes =
        plan.longest ? making_bytes(shape_, plan.index, plan.longest) + plan.again_bytes : 0;
    with_room(bytes, [&](const SealContext& context) {
      truncate(sequence_, context, tokens, std::max<int64_t>(tokens - kBuildTokens, kSinkTokens));
    });
  }
  void fork() {
    if (random_() % 2)
      sequence_.reserve(static_cast<int64_t>(random_() % 300));  // for tokens that never came
    forks_.assign(random_() % 2, sequence_);
  }
  int64_t tokens() const { return sequence_.tokens(); }

 private:
  template <class Before>
  void append(int64_t count, uint64_t before_bytes, const Before& before) {
    with_room(sequence_.bytes_to_reserve(count) + before_bytes, [&](const SealContext& context) {
      before(context);
      sequence_.reserve(count);
    });
    std::vector<AppendRun> runs;
    for (int32_t layer = 0; layer < shape_.layers; ++layer)
      sequence_.places(layer, sequence_.tokens(), count, 0, runs);
    for (const AppendRun& run : runs)
      for (int32_t head = 0; head < shape_.kv_heads; ++head)
        for (std::byte* to : {run.keys, run.values}) {
          std::vector<float> numbers(static_cast<size_t>(run.rows * shape_.head_dim));
          for (float& number : numbers) number = static_cast<float>(random_() % 1000) / 500 - 1;
          runtime_->kv_pools.pages->memory().copy(to + static_cast<size_t>(head) * run.head_stride,
                                                  numbers.data(), numbers.size() * sizeof(float));
        }
    sequence_.commit(count);
  }
  void append(int64_t count, uint64_t before_bytes) {
    append(count, before_bytes, [](const SealContext&) {});
  }
  template <class Work>
  void with_room(uint64_t bytes, const Work& work) {
    MemoryBudget& budget = *runtime_->pool->shared_budget();
    const uint64_t others = budget.bytes() - budget.used() - bytes;
    budget.tell_elsewhere(0, others);
    runtime_->workers.run(nullptr, [&](const Stream& stream) {
      work(SealContext{runtime_->backend, policy_, params_, stream, {}});
    });
    budget.tell_elsewhere(others, 0);
  }

  const std::shared_ptr<Runtime> runtime_ = small_runtime(uint64_t{1} << 30);
  const Policy& policy_;
  PolicyParams params_;
  std::mt19937_64 random_;
  const KvShape shape_{2, 2, 64, DType::f32};
  Sequence sequence_{runtime_->kv_pools, shape_, 0};
  std::vector<Sequence> forks_;
};

void what_is_done_to_a_sequence_takes_no_more_than_was_planned(void**) {
  for (const char* policy : {"wave", "blocks"}) {
    for (const int32_t unit : {64, 192}) {
      PlannedLife life(policy, unit);
      std::mt19937_64 random(test::seed() + 1);
      for (int i = 0; i < test::slow_or(30, 120); ++i) {
        switch (random() % 4) {
          case 0:
            life.tokens() < 3000 ? life.read_prompt() : life.cut();
            break;
          case 1:
            life.cut();
            break;
          case 2:
            life.fork();
            break;
          default:
            life.decode();
        }
      }
    }
  }
}

void plan_refuses_more_tokens_than_positions(void**) {
  const auto runtime = small_runtime();
  assert_error(
      WI_E_ARGUMENT, "tokens is 2147483648",
      plan_memory(*runtime, *small_model(), params_of("full", 1024, 256, 64, DType::f16), uint64_t{1} << 31));
}

}  // namespace
}  // namespace wi

int main() {
  using namespace wi;
  const CMUnitTest tests[] = {
      cmocka_unit_test(plan_agrees_with_a_session_that_is_made),
      cmocka_unit_test(plan_agrees_where_windows_slide),
      cmocka_unit_test(a_plan_is_enough_for_a_task_of_any_length),
      cmocka_unit_test(a_later_task_takes_no_more_than_is_planned_for_it),
      cmocka_unit_test(max_tokens_fit_the_runtimes_budget),
      cmocka_unit_test(with_a_slow_tier_only_the_fast_part_must_fit),
      cmocka_unit_test(what_the_slow_tier_has_no_room_for_must_fit_too),
      cmocka_unit_test(max_tokens_fill_the_sessions_budget),
      cmocka_unit_test(scratch_is_of_the_right_size),
      cmocka_unit_test(scratch_holds_what_is_read_of_the_slow_tier),
      cmocka_unit_test(what_is_done_to_a_sequence_takes_no_more_than_was_planned),
      cmocka_unit_test(plan_refuses_more_tokens_than_positions),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
