// What a host sets for a whole runtime changes no token: which clusters make room for others, pages, cores, how long
// tasks wait. And what a runtime says of its slow tier and of prefixes is what happened.
#include <chrono>
#include <functional>
#include <thread>

#include "support/abi.h"
#include "support/fewer.h"
#include "support/folder.h"

using namespace wi::test;

namespace {

constexpr size_t kPrompt = emulated_or<size_t>(1500, 3000);
constexpr int kSteps = emulated_or(10, 80);
constexpr uint64_t kSegment = 256, kShortest = 64;

const std::vector<int32_t> kIds = [] {
  std::vector<int32_t> ids(kPrompt);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 251) + 5;
  return ids;
}();

using Change = std::function<void(wi_runtime_params&)>;

struct World {
  explicit World(const Change& change) {
    auto params = sized<wi_runtime_params>();
    params.threads = 2;
    change(params);
    runtime = create_runtime(&params);
    model = open_sample_model(runtime.get());
  }
  // Small segments, of which kv_fast_share stays in memory.
  Session session(float fast_share, int32_t prefix_reuse = WI_PREFIX_REUSE_OFF) const {
    auto policy = sized<wi_policy_params>();
    policy.segment_tokens = kSegment;
    policy.decode_segment_tokens = kShortest;
    policy.local_window = 32;
    policy.budget = 0.1f;
    auto sampling = sized<wi_sampling_params>();
    sampling.temperature = 1.2f;
    sampling.seed = 5;
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    params.sampling = &sampling;
    params.prefix_reuse = prefix_reuse;
    params.kv_fast_share = fast_share;
    return create_session(model.get(), &params);
  }
  wi_runtime_stats stats() const {
    auto stats = sized<wi_runtime_stats>();
    assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
    return stats;
  }
  Runtime runtime{nullptr, wi_runtime_release};
  Model model{nullptr, wi_model_release};
};

void read_prompt(wi_session* session) {
  assert_works(wi_session_prefill(session, kIds.data(), kIds.size(), nullptr, nullptr, error));
}

std::vector<int32_t> decode(wi_session* session) {
  std::vector<int32_t> tokens;
  auto event = sized<wi_event>();
  for (int i = 0; i < kSteps; ++i) {
    assert_works(wi_session_decode(session, nullptr, &event, error));
    tokens.push_back(event.token);
  }
  return tokens;
}

std::vector<int32_t> life(const World& world, float fast_share) {
  const Session session = world.session(fast_share);
  read_prompt(session.get());
  return decode(session.get());
}

const std::vector<int32_t>& wanted() {
  static const std::vector<int32_t> tokens = life(World([](auto&) {}), 0);
  return tokens;
}

void every_buffer_manager_gives_the_same_tokens(void**) {
  const Folder folder;
  for (const int32_t manager : {WI_BUFFER_AUTO, WI_BUFFER_LRU, WI_BUFFER_BUCKETED}) {
    const World world([&](wi_runtime_params& params) {
      params.spill_folder = folder.path.c_str();
      params.buffer_manager = manager;
    });
    assert_true(life(world, 0.15f) == wanted());
    const wi_runtime_stats stats = world.stats();
    std::printf("manager %d: %llu came in, %llu made room\n", manager,
                static_cast<unsigned long long>(stats.buffer_admissions),
                static_cast<unsigned long long>(stats.buffer_evictions));
    assert_true(stats.buffer_admissions > 0 && stats.buffer_evictions > 0);
  }
}

void pages_and_cores_change_no_token(void**) {
  for (const bool off : {false, true}) {
    const World world([&](wi_runtime_params& params) {
      params.huge_pages = off ? WI_HUGE_PAGES_OFF : WI_HUGE_PAGES_AUTO;
      params.bind_threads = off ? WI_BIND_OFF : WI_BIND_AUTO;
    });
    assert_true(life(world, 0) == wanted());
  }
}

// Two tasks at once, one of which reads while the other writes.
void tasks_may_wait_any_time(void**) {
  for (const int32_t wait_ms : {0, 1, 60000}) {
    const World world([&](wi_runtime_params& params) { params.task_wait_ms = wait_ms; });
    const Session first = world.session(0), second = world.session(0);
    using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;
    std::vector<Task> tasks;
    for (wi_session* session : {first.get(), second.get()}) {
      auto params = sized<wi_task_params>();
      params.tokens = kIds.data();
      params.token_count = kIds.size();
      params.max_tokens = static_cast<uint64_t>(kSteps);
      wi_task* task = nullptr;
      assert_works(wi_task_submit(session, &params, &task, error));
      tasks.emplace_back(task, wi_task_release);
    }
    for (const Task& task : tasks) {
      auto info = sized<wi_task_info>();
      while (info.state < WI_TASK_DONE) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        assert_works(wi_task_get_info(task.get(), &info, error));
      }
      assert_int_equal(info.state, WI_TASK_DONE);
      std::vector<int32_t> got;
      std::vector<wi_event> events(static_cast<size_t>(kSteps) + 1, sized<wi_event>());
      uint64_t count = 0;
      do {
        assert_works(wi_task_poll(task.get(), events.data(), events.size(), &count, error));
        for (uint64_t i = 0; i < count; ++i)
          if (events[i].kind == WI_EVENT_TOKEN || events[i].kind == WI_EVENT_END)
            got.push_back(events[i].token);
      } while (count > 0);
      // An answer that ends does so in a task, and a host that calls decode goes on.
      assert_true(!got.empty() && got.size() <= wanted().size());
      assert_true(std::equal(got.begin(), got.end(), wanted().begin()));
    }
  }
}

void a_runtime_says_what_its_slow_tier_did(void**) {
  const World fast([](auto&) {});
  life(fast, 0);
  const wi_runtime_stats none = fast.stats();
  for (const uint64_t field : {none.slow_bytes, none.slow_reads, none.slow_read_bytes, none.slow_read_ns,
                               none.slow_stalls, none.slow_written_bytes, none.buffer_admissions})
    assert_int_equal(field, 0);

  const Folder folder;
  const World world([&](wi_runtime_params& params) { params.spill_folder = folder.path.c_str(); });
  const Session session = world.session(0.01f);
  const auto start = std::chrono::steady_clock::now();
  read_prompt(session.get());
  decode(session.get());
  const auto took =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);
  const wi_runtime_stats stats = world.stats();
  auto own = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(session.get(), &own, error));
  std::printf("%llu reads of %llu bytes, waited %llu times, %.1f of %.1f ms\n",
              static_cast<unsigned long long>(stats.slow_reads),
              static_cast<unsigned long long>(stats.slow_read_bytes),
              static_cast<unsigned long long>(stats.slow_stalls),
              static_cast<double>(stats.slow_read_ns) * 1e-6, static_cast<double>(took.count()) * 1e-6);
  assert_true(own.slow_bytes > 0 && stats.slow_bytes >= own.slow_bytes);
  assert_true(stats.slow_written_bytes >= own.slow_bytes);
  assert_true(stats.slow_reads > 0 && stats.slow_read_bytes >= stats.slow_reads);
  assert_true(own.buffer_misses > 0 && own.buffer_stalls > 0);
  // A call waits for reads that were begun; two threads of the runtime's and this one can.
  assert_true(stats.slow_stalls > 0 && stats.slow_stalls <= stats.slow_reads);
  assert_true(stats.slow_read_ns > 0);
  assert_true(stats.slow_read_ns <= 3 * static_cast<uint64_t>(took.count()));
}

void segments_that_are_taken_over_are_counted(void**) {
  const World world([](auto&) {});
  const Session first = world.session(0, WI_PREFIX_REUSE_ON);
  read_prompt(first.get());
  assert_int_equal(world.stats().prefix_hits, 0);
  const Session second = world.session(0, WI_PREFIX_REUSE_ON);
  read_prompt(second.get());
  auto stats = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(second.get(), &stats, error));
  const uint64_t hits = world.stats().prefix_hits;
  assert_true(hits > 0 && hits <= static_cast<uint64_t>(stats.segments));
  assert_in_range(stats.prefix_tokens, hits * kShortest, hits * kSegment);
  assert_true(decode(second.get()) == wanted());
  assert_int_equal(world.stats().prefix_hits, hits);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_buffer_manager_gives_the_same_tokens),
      cmocka_unit_test(pages_and_cores_change_no_token),
      cmocka_unit_test(tasks_may_wait_any_time),
      cmocka_unit_test(a_runtime_says_what_its_slow_tier_did),
      cmocka_unit_test(segments_that_are_taken_over_are_counted),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
