// Tasks as a host sees them: the tokens of synchronous calls, however many at once; bounded, cancelled, refused.
#include <algorithm>
#include <chrono>
#include <thread>

#include "support/fewer.h"
#include "support/tasks.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;
double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// Prompts of all lengths, policies, seeds and priorities at once.
void many_tasks_get_the_tokens_that_each_gets_alone(void**) {
  constexpr size_t kTasks = 12, kMore = few_or(12, 90), kAnswer = few_or(10, 30);
  std::vector<Session> sessions;
  std::vector<Task> tasks;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Answer> wanted;
  for (size_t i = 0; i < kTasks; ++i) {
    auto policy = sized<wi_policy_params>();
    policy.name = i % 3 == 1 ? "full" : "wave";
    auto sampling = sized<wi_sampling_params>();
    sampling.temperature = i % 2 ? 0.8f : 0;
    sampling.seed = i;
    auto params = sized<wi_session_params>();
    params.policy = &policy;
    params.sampling = &sampling;
    // The long ones begin alike, so that they take over from each other what has been read.
    prompts.push_back(i % 4 == 3 ? some_tokens(length(5000 + 300 * i), 3) : some_tokens(20 + kMore * i, i));
    wanted.push_back(alone(prompts.back(), kAnswer, &params));
    sessions.push_back(create_session(world->model.get(), &params));
  }
  for (size_t i = 0; i < kTasks; ++i) {
    wi_task_params params = prompt_of(prompts[i], kAnswer);
    params.priority = static_cast<int32_t>(i % 5) - 2;
    tasks.push_back(submit(sessions[i].get(), &params));
  }
  for (size_t i = 0; i < kTasks; ++i) {
    const Answer got = take_all(tasks[i].get());
    assert_true(got.tokens == wanted[i].tokens);
    assert_string_equal(got.text.c_str(), wanted[i].text.c_str());
    const wi_task_info info = info_of(tasks[i].get());
    assert_int_equal(info.state, WI_TASK_DONE);
    assert_int_equal(info.prompt_done, prompts[i].size());
    assert_int_equal(info.answer_tokens, got.tokens.size());
    assert_true(info.first_token_ns >= info.queued_ns && info.queued_ns > 0);
    uint64_t count = 0;  // the answer is the session's, and the session the host's again
    assert_works(wi_session_tokens(sessions[i].get(), nullptr, 0, &count, error));
    assert_int_equal(count, prompts[i].size() + got.tokens.size());
  }
}

void a_bounded_answer_ends_with_an_event_of_its_own(void**) {
  Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(50);
  const wi_task_params params = prompt_of(prompt, 3);
  Task task = submit(session.get(), &params);
  const Answer answer = take_all(task.get());
  assert_int_equal(answer.tokens.size(), 3);
  assert_int_equal(answer.last, WI_EVENT_LIMIT);
  // and goes on where it was, as a task or by hand
  Task more = submit(session.get());
  Answer rest;
  while (rest.tokens.size() < 5 && take(more.get(), &rest, 1)) std::this_thread::yield();
  more.reset();
  const Answer whole = alone(prompt, 8, nullptr);
  assert_true(std::equal(answer.tokens.begin(), answer.tokens.end(), whole.tokens.begin()));
  assert_true(std::equal(rest.tokens.begin(), rest.tokens.end(), whole.tokens.begin() + 3));
}

void a_text_is_tokenised_by_the_engine(void**) {
  const std::string text = "In the beginning was the Word, and the Word was with God.";
  Session by_hand = create_session(world->model.get()), by_task = create_session(world->model.get());
  assert_works(wi_session_append_text(by_hand.get(), text.data(), text.size(), WI_TOKENIZE_ADD_BOS, nullptr,
                                      nullptr, error));
  auto params = sized<wi_task_params>();
  params.text = text.data();
  params.text_length = text.size();
  params.tokenize_flags = WI_TOKENIZE_ADD_BOS;
  params.max_tokens = 4;
  Task task = submit(by_task.get(), &params);
  const Answer answer = take_all(task.get());
  auto event = sized<wi_event>();
  for (int32_t token : answer.tokens) {
    assert_works(wi_session_decode(by_hand.get(), nullptr, &event, error));
    assert_int_equal(event.token, token);
  }
}

void a_session_with_a_task_is_busy_until_the_task_has_ended(void**) {
  Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(length(8000));
  const wi_task_params params = prompt_of(prompt, 1);
  Task task = submit(session.get(), &params);
  auto event = sized<wi_event>();
  wi_task* second = nullptr;
  auto stats = sized<wi_session_stats>();
  assert_fails(WI_E_BUSY, "task", wi_session_decode(session.get(), nullptr, &event, error));
  assert_fails(WI_E_BUSY, "task", wi_session_truncate(session.get(), 0, error));
  assert_fails(WI_E_BUSY, "task", wi_task_submit(session.get(), nullptr, &second, error));
  assert_works(wi_session_get_stats(session.get(), &stats, error));
  // Others are not, and go on beside it.
  Session other = create_session(world->model.get());
  assert_works(wi_session_prefill(other.get(), prompt.data(), 100, nullptr, nullptr, error));
  assert_works(wi_session_decode(other.get(), nullptr, &event, error));
  take_all(task.get());
  assert_works(wi_session_decode(session.get(), nullptr, &event, error));
}

void a_cancelled_task_ends_soon_and_its_session_is_free(void**) {
  const std::vector<int32_t> prompt = some_tokens(length(30000));
  const auto milliseconds = [&](bool by_release) {
    Session session = create_session(world->model.get());
    const wi_task_params params = prompt_of(prompt, 0);
    Task task = submit(session.get(), &params);
    while (info_of(task.get()).state != WI_TASK_READING) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Clock::time_point fired = Clock::now();
    if (by_release) {
      task.reset();
    } else {
      wi_task_cancel(task.get());
      assert_int_equal(take_all(task.get()).last, WI_EVENT_CANCELLED);
      const wi_task_info info = info_of(task.get());
      assert_int_equal(info.state, WI_TASK_CANCELLED);
      assert_int_equal(info.status, WI_E_CANCELLED);
      assert_string_equal(info.message, "cancelled");
    }
    wi_status status = WI_E_BUSY;
    while (status == WI_E_BUSY) {
      status = wi_session_truncate(session.get(), 0, nullptr);
      std::this_thread::yield();
    }
    assert_int_equal(status, WI_OK);
    return ms(Clock::now() - fired);
  };
  for (const bool by_release : {false, true}) {
    const double took =
        wi::test::least_of_tries(wi::test::kCancelMs, [&] { return milliseconds(by_release); });
    std::printf("cancelled within %.1f ms\n", took);
    assert_in_time(took < wi::test::kCancelMs);
  }
}

void wrong_arguments_are_named(void**) {
  Session session = create_session(world->model.get());
  wi_task* task = nullptr;
  auto params = sized<wi_task_params>();
  assert_fails(WI_E_STATE, "no prompt", wi_task_submit(session.get(), nullptr, &task, error));
  params.priority = 9;
  assert_fails(WI_E_ARGUMENT, "priority is 9", wi_task_submit(session.get(), &params, &task, error));
  const int32_t wrong[] = {5, -3};
  params = sized<wi_task_params>();
  params.tokens = wrong;
  params.token_count = 2;
  assert_fails(WI_E_ARGUMENT, "tokens[1] is -3", wi_task_submit(session.get(), &params, &task, error));
  params.token_count = 1;
  params.text = "x";
  params.text_length = 1;
  assert_fails(WI_E_ARGUMENT, "1 tokens and 1 bytes", wi_task_submit(session.get(), &params, &task, error));
  const wi_logit_bias bias = {1 << 20, 1};
  auto sampling = sized<wi_sampling_params>();
  sampling.logit_bias = &bias;
  sampling.logit_bias_count = 1;
  params = sized<wi_task_params>();
  params.sampling = &sampling;
  assert_fails(WI_E_ARGUMENT, "logit_bias[0].token is 1048576",
               wi_task_submit(session.get(), &params, &task, error));
  assert_fails(WI_E_ARGUMENT, "session is NULL", wi_task_submit(nullptr, nullptr, &task, error));
  assert_fails(WI_E_ARGUMENT, "task is NULL", wi_task_get_info(nullptr, nullptr, error));
  assert_null(task);
  wi_task_release(nullptr);
  wi_task_cancel(nullptr);
}

// The task holds its session, which holds the rest; the engine may be the last to let go.
void handles_may_be_released_in_any_order_while_a_task_runs(void**) {
  for (int i = 0; i < 8; ++i) {
    Runtime runtime = create_runtime();
    Model model = open_sample_model(runtime.get());
    Session session = create_session(model.get());
    const std::vector<int32_t> prompt = some_tokens(static_cast<size_t>(i * few_or(20, 200)) + 1);
    const wi_task_params params = prompt_of(prompt, 20);
    Task task = submit(session.get(), &params);
    if (i % 2) task.reset();
    runtime.reset();
    model.reset();
    session.reset();
    if (task && i % 4 == 0) take_all(task.get());
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(many_tasks_get_the_tokens_that_each_gets_alone),
      cmocka_unit_test(a_bounded_answer_ends_with_an_event_of_its_own),
      cmocka_unit_test(a_text_is_tokenised_by_the_engine),
      cmocka_unit_test(a_session_with_a_task_is_busy_until_the_task_has_ended),
      cmocka_unit_test(a_cancelled_task_ends_soon_and_its_session_is_free),
      cmocka_unit_test(wrong_arguments_are_named),
      cmocka_unit_test(handles_may_be_released_in_any_order_while_a_task_runs),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
