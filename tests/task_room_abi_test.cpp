// Tasks that memory has no room for yet wait for it, and are told at once where it never will.
#include <chrono>
#include <unistd.h>

#include "support/folder.h"
#include "support/patience.h"
#include "support/tasks.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;

wi_runtime_params with_budget(uint64_t bytes) {
  auto params = sized<wi_runtime_params>();
  params.kv_budget_bytes = bytes;
  return params;
}

void tasks_wait_for_memory_instead_of_failing(void**) {
  const wi_runtime_params limited = with_budget(40 << 20);
  const World narrow(&limited);
  const std::vector<int32_t> prompt = some_tokens(length(6000));
  const wi_task_params params = prompt_of(prompt, 5);
  std::vector<Session> sessions;
  std::vector<Task> tasks;
  auto off = sized<wi_session_params>();
  off.prefix_reuse = WI_PREFIX_REUSE_OFF;
  for (int i = 0; i < 6; ++i) {
    sessions.push_back(create_session(narrow.model.get(), &off));
    tasks.push_back(submit(sessions.back().get(), &params));
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Answer answer = take_all(tasks[i].get());
    assert_int_equal(info_of(tasks[i].get()).state, WI_TASK_DONE);
    assert_true(!answer.tokens.empty());
    assert_works(wi_session_truncate(sessions[i].get(), 0, error));  // makes room for those that wait
  }
  // What can never fit is told at once, not queued for ever.
  Session large = create_session(narrow.model.get());
  for (const uint64_t tokens : {uint64_t{1000000}, UINT64_MAX}) {
    wi_task_params too_much = prompt_of(prompt, tokens);
    Task refused = submit(large.get(), &too_much);
    assert_int_equal(take_all(refused.get()).last, WI_EVENT_FAILED);
    const wi_task_info info = info_of(refused.get());
    assert_int_equal(info.status, WI_E_BUDGET);
    assert_non_null(std::strstr(info.message, "kv_budget_bytes"));
  }
}

// Five, in a budget of what is planned for one of them.
void tasks_with_room_for_one_succeed_one_after_the_other(void**) {
  const std::vector<int32_t> prompt = some_tokens(length(3839));
  auto off = sized<wi_session_params>();
  off.prefix_reuse = WI_PREFIX_REUSE_OFF;
  auto plan = sized<wi_memory_plan>();
  assert_works(wi_model_plan_memory(world->model.get(), &off, prompt.size() + 5, &plan, error));
  const wi_runtime_params limited = with_budget(plan.kv_bytes + plan.index_bytes + plan.sealing_bytes);
  const World narrow(&limited);
  const wi_task_params params = prompt_of(prompt, 5);
  std::vector<Task> tasks;
  for (int i = 0; i < 5; ++i) {
    const Session session = create_session(narrow.model.get(), &off);
    tasks.push_back(submit(session.get(), &params));
  }
  for (const Task& task : tasks) {
    take_all(task.get());
    assert_int_equal(info_of(task.get()).status, WI_OK);
    assert_int_equal(info_of(task.get()).state, WI_TASK_DONE);
  }
}

// Neither what must stay in fast memory, as the slow tier has no room for it, nor what a share of it leaves no room for.
void a_slow_tier_that_can_never_hold_a_task_is_told_at_once(void**) {
  const Folder folder;
  wi_runtime_params limited = with_budget(16 << 20);
  limited.spill_folder = folder.path.c_str();
  limited.spill_bytes = 1 << 20;
  const World narrow(&limited);
  const std::vector<int32_t> prompt = some_tokens(100);
  const wi_task_params too_much = prompt_of(prompt, 20000);
  const struct {
    float share;
    const char* named;
  } cases[] = {{0, "kv_budget_bytes"}, {0.1f, "spill_bytes"}};
  for (const auto& [share, named] : cases) {
    auto params = sized<wi_session_params>();
    params.kv_fast_share = share;
    Session session = create_session(narrow.model.get(), &params);
    Task refused = submit(session.get(), &too_much);
    assert_int_equal(take_all(refused.get()).last, WI_EVENT_FAILED);
    const wi_task_info info = info_of(refused.get());
    assert_int_equal(info.status, WI_E_BUDGET);
    assert_non_null(std::strstr(info.message, named));
    assert_int_equal(info.prompt_done, 0);
  }
}

// A task whose session has sealed several segments, and what comes of it where all is in memory and nothing else runs.
struct LongTask {
  static constexpr size_t kTokens = 24000;
  // What shorter ones have in the fast tier is most of them.
  static constexpr bool kIsShortened = length(kTokens) < kTokens;

  std::vector<int32_t> prompt = some_tokens(kTokens);
  wi_task_params params = prompt_of(prompt, 5);
  wi_session_params off = sized<wi_session_params>();
  Answer wanted;
  wi_session_stats stats = sized<wi_session_stats>();
  wi_memory_plan plan = sized<wi_memory_plan>();
  LongTask() {
    off.prefix_reuse = WI_PREFIX_REUSE_OFF;
    Session undisturbed = create_session(world->model.get(), &off);
    wanted = take_all(submit(undisturbed.get(), &params).get());
    assert_works(wi_session_get_stats(undisturbed.get(), &stats, error));
    assert_works(wi_model_plan_memory(world->model.get(), &off, prompt.size() + 5, &plan, error));
  }
  LongTask(const LongTask&) = delete;
  uint64_t planned_bytes() const { return plan.kv_bytes + plan.index_bytes + plan.sealing_bytes; }
};

// Each fits alone, two fit into the fast tier together, and no two into the slow one.
void tasks_wait_for_the_slow_tier_instead_of_failing(void**) {
  if (LongTask::kIsShortened) skip();
  const Folder folder;
  const LongTask given;
  auto limited = sized<wi_runtime_params>();
  limited.spill_folder = folder.path.c_str();
  auto plan = sized<wi_memory_plan>();
  {
    Runtime unlimited = create_runtime(&limited);
    Model model = open_sample_model(unlimited.get());
    assert_works(wi_model_plan_memory(model.get(), &given.off, given.prompt.size() + 5, &plan, error));
  }
  limited.kv_budget_bytes = plan.fast_bytes * 5 / 2;
  limited.spill_bytes = given.stats.kv_bytes + given.stats.kv_bytes * 8192 / given.kTokens;  // and a segment
  assert_true(limited.kv_budget_bytes < given.stats.kv_bytes);
  const World narrow(&limited);
  std::vector<Session> sessions;
  std::vector<Task> tasks;
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(create_session(narrow.model.get(), &given.off));
    tasks.push_back(submit(sessions.back().get(), &given.params));
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Answer answer = take_all(tasks[i].get());
    assert_int_equal(info_of(tasks[i].get()).status, WI_OK);
    assert_int_equal(info_of(tasks[i].get()).state, WI_TASK_DONE);
    assert_true(answer.tokens == given.wanted.tokens);
    assert_works(wi_session_truncate(sessions[i].get(), 0, error));  // makes room for those that wait
  }
}

// An idle session has the fast tier, and the slow one has no room for what it would have to give up.
void tasks_wait_for_idle_sessions_that_cannot_leave(void**) {
  if (LongTask::kIsShortened) skip();
  const Folder folder;
  const LongTask given;
  wi_runtime_params limited = with_budget(given.planned_bytes() * 5 / 4);
  limited.spill_folder = folder.path.c_str();
  limited.spill_bytes = 1 << 20;
  const World narrow(&limited);
  Session idle = create_session(narrow.model.get(), &given.off),
          next = create_session(narrow.model.get(), &given.off);
  assert_works(
      wi_session_prefill(idle.get(), given.prompt.data(), given.prompt.size(), nullptr, nullptr, error));
  const Task task = submit(next.get(), &given.params);
  usleep(300'000);  // in which it would have failed
  assert_int_equal(info_of(task.get()).state, WI_TASK_QUEUED);
  assert_works(wi_session_truncate(idle.get(), 0, error));
  assert_true(take_all(task.get()).tokens == given.wanted.tokens);
  assert_int_equal(info_of(task.get()).status, WI_OK);
}

// The fast tier would hold all of the task's session, were it not for what idle ones must have there.
void a_task_beside_idle_sessions_does_with_what_they_leave(void**) {
  if (LongTask::kIsShortened) skip();
  const Folder folder;
  const LongTask given;
  wi_runtime_params limited = with_budget(given.planned_bytes() * 2);
  limited.spill_folder = folder.path.c_str();
  const World narrow(&limited);
  const std::vector<int32_t> recent = some_tokens(900);
  auto policy = sized<wi_policy_params>();
  policy.local_window = 1000;
  auto all_recent = given.off;
  all_recent.policy = &policy;
  std::vector<Session> idle;
  for (int i = 0; i < 50; ++i) {
    idle.push_back(create_session(narrow.model.get(), &all_recent));
    assert_works(
        wi_session_prefill(idle.back().get(), recent.data(), recent.size(), nullptr, nullptr, error));
  }
  Session session = create_session(narrow.model.get(), &given.off);
  const Task task = submit(session.get(), &given.params);
  int32_t ready = 0;
  assert_works(wi_task_wait(task.get(), int64_t{patience(60)} * 1'000'000'000, &ready, error));
  assert_int_equal(ready, 1);
  assert_true(take_all(task.get()).tokens == given.wanted.tokens);
  auto stats = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(session.get(), &stats, error));
  assert_true(stats.slow_bytes > 0);
}

// A host that lets go of sessions when their tasks are submitted, and fetches events much later.
void an_ended_task_holds_no_memory_that_others_wait_for(void**) {
  const wi_runtime_params limited = with_budget(40 << 20);
  World narrow(&limited);
  const std::vector<int32_t> prompt = some_tokens(length(6000));
  const wi_task_params params = prompt_of(prompt, 5);
  auto sampling = sized<wi_sampling_params>();
  sampling.top_logprobs = 3;
  auto session_params = sized<wi_session_params>();
  session_params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  session_params.sampling = &sampling;
  std::vector<Task> tasks;
  for (int i = 0; i < 6; ++i) {
    const Session session = create_session(narrow.model.get(), &session_params);
    tasks.push_back(submit(session.get(), &params));
  }
  for (const Task& task : tasks)
    for (const auto start = Clock::now(); info_of(task.get()).state < WI_TASK_DONE; usleep(1000))
      assert_true(Clock::now() - start < std::chrono::seconds(patience(60)));
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(narrow.runtime.get(), &stats, error));
  assert_int_equal(stats.sessions, 0);
  assert_int_equal(stats.kv_bytes, 0);
  narrow.runtime.reset();
  narrow.model.reset();
  for (const Task& task : tasks) {
    std::vector<wi_event> events(10, sized<wi_event>());
    uint64_t count = 0;
    assert_works(wi_task_poll(task.get(), events.data(), events.size(), &count, error));
    assert_true(count > 1 && events[count - 1].kind != WI_EVENT_TOKEN);
    for (uint64_t i = 0; i + 1 < count; ++i) {
      assert_int_equal(events[i].top_count, 3);
      assert_int_equal(events[i].top[0].token, events[i].token);
      assert_true(std::string(events[i].text, events[i].text_length).size() == events[i].text_length);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(tasks_wait_for_memory_instead_of_failing),
      cmocka_unit_test(tasks_with_room_for_one_succeed_one_after_the_other),
      cmocka_unit_test(a_slow_tier_that_can_never_hold_a_task_is_told_at_once),
      cmocka_unit_test(tasks_wait_for_the_slow_tier_instead_of_failing),
      cmocka_unit_test(tasks_wait_for_idle_sessions_that_cannot_leave),
      cmocka_unit_test(a_task_beside_idle_sessions_does_with_what_they_leave),
      cmocka_unit_test(an_ended_task_holds_no_memory_that_others_wait_for),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
