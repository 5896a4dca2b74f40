// A task's events, fetched by polling, waiting, a descriptor or a callback: each once, in order, and nobody sleeps for
// them who did not ask to.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "support/fewer.h"
#include "support/tasks.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;

// Against the header, as a callback and a main loop may; their texts are whoever's was last.
void two_who_poll_at_once_get_each_event_once(void**) {
  const std::vector<int32_t> prompt = some_tokens(64);
  const wi_task_params params = prompt_of(prompt, length(400));
  Session session = create_session(world->model.get());
  Task task = submit(session.get(), &params);
  std::atomic<bool> ended{false};
  std::atomic<int> got{0}, ends{0};
  const auto poll = [&] {
    wi_error failure = sized<wi_error>();
    std::vector<wi_event> events(8, sized<wi_event>());
    while (!ended) {
      uint64_t count = 0;
      if (wi_task_poll(task.get(), events.data(), events.size(), &count, &failure) != WI_OK) break;
      for (uint64_t i = 0; i < count; ++i) {
        if (events[i].kind == WI_EVENT_TOKEN)
          ++got;
        else
          ++ends, ended = true;
      }
    }
  };
  std::thread other(poll);
  poll();
  other.join();
  auto info = sized<wi_task_info>();
  assert_works(wi_task_get_info(task.get(), &info, error));
  assert_int_equal(ends, 1);
  assert_int_equal(got, info.answer_tokens);
}

void polling_never_waits(void**) {
  constexpr double kLimit = 50;
  const std::vector<int32_t> prompt = some_tokens(length(6000));
  const wi_task_params params = prompt_of(prompt, 50);
  const double median = wi::test::least_of_tries(kLimit, [&] {
    Session session = create_session(world->model.get());
    Task task = submit(session.get(), &params);
    std::vector<double> times;
    Answer answer;
    for (bool more = true; more;) {
      const Clock::time_point start = Clock::now();
      more = take(task.get(), &answer);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::sort(times.begin(), times.end());
    std::printf("a poll takes %.1f us, of %zu\n", times[times.size() / 2], times.size());
    return times[times.size() / 2];  // the median: a shared machine takes the thread away now and then
  });
  assert_in_time(median < kLimit);
}

// Where who writes stays for a while, but for one thread.
std::atomic<int> held_up{-1};
std::thread::id polling;

// Whom an event wakes may take the processor from the engine's thread at that moment: here that is made to stay there
// for a while. What it held then, a poll would have to sleep for.
void a_poll_does_not_sleep_for_the_engine_that_it_interrupts(void**) {
#ifdef WI_SANITIZED
  skip();  // a sanitizer has write() itself
#endif
  Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(30);
  const wi_task_params params = prompt_of(prompt, 40);
  Task task = submit(session.get(), &params);
  const int32_t fd = descriptor_of(task.get());
  polling = std::this_thread::get_id();
  held_up = fd;
  const auto sleeps = [] {
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
  };
  int polls = 0, slept = 0;
  for (auto event = sized<wi_event>(); event.kind == WI_EVENT_TOKEN; ++polls) {
    pollfd watched{fd, POLLIN, 0};
    assert_int_equal(::poll(&watched, 1, 60'000), 1);
    uint64_t count = 0;
    const auto before = sleeps();
    const wi_status status = wi_task_poll(task.get(), &event, 1, &count, nullptr);
    slept += sleeps() != before;
    assert_int_equal(status, WI_OK);
  }
  held_up = -1;
  std::printf("%d of %d polls slept\n", slept, polls);
  assert_true(polls > 20);
  assert_true(slept <= polls / 10);  // the system may let a thread sleep for a page of memory
}

// Events of each of many tasks come once, in order and to the end, however the host waits for them.
void no_event_is_missed_whoever_waits(void**) {
  const std::vector<int32_t> prompt = some_tokens(20);
  const Answer wanted = alone(prompt, 60, nullptr);
  const wi_task_params params = prompt_of(prompt, 60);
  for (int i = 0; i < few_or(2, 10); ++i) {
    Session session = create_session(world->model.get());
    Task task = submit(session.get(), &params);
    int32_t fd = -1;
    std::thread asks([&] {  // when some events have come, or none
      std::this_thread::sleep_for(std::chrono::microseconds(700 * i));
      int32_t made = -1;
      wi_task_get_fd(task.get(), &made, nullptr);
    });
    std::atomic<bool> ended{false};
    std::thread waits([&] {  // beside who polls
      for (int32_t ready = 0; !ended;) wi_task_wait(task.get(), 1'000'000, &ready, nullptr);
    });
    Answer answer;
    for (bool more = true; more;) {
      assert_works(wi_task_get_fd(task.get(), &fd, error));
      pollfd watched{fd, POLLIN, 0};
      assert_int_equal(::poll(&watched, 1, 60000), 1);
      more = take(task.get(), &answer, static_cast<uint64_t>(i % 3 + 1));
    }
    ended = true;
    asks.join();
    waits.join();
    assert_true(answer.tokens == wanted.tokens && answer.text == wanted.text);
    assert_int_equal(answer.last, WI_EVENT_LIMIT);
  }
}

void a_descriptor_is_readable_while_there_are_events(void**) {
  Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(30);
  const wi_task_params params = prompt_of(prompt, 10);
  Task task = submit(session.get(), &params);
  const int32_t fd = descriptor_of(task.get());
  assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  Answer answer;
  for (bool more = true; more;) {
    pollfd watched{fd, POLLIN, 0};
    assert_int_equal(::poll(&watched, 1, 60000), 1);
    while (more) {
      const size_t before = answer.tokens.size();
      more = take(task.get(), &answer);
      if (answer.tokens.size() == before) break;
    }
  }
  // Once more, perhaps: the engine rings for an event that is taken already.
  pollfd watched{fd, POLLIN, 0};
  if (::poll(&watched, 1, 0) == 1) {
    auto event = sized<wi_event>();
    uint64_t count = 1;
    assert_works(wi_task_poll(task.get(), &event, 1, &count, error));
    assert_int_equal(count, 0);
    assert_int_equal(::poll(&watched, 1, 0), 0);
  }
  task.reset();
  while (fcntl(fd, F_GETFD) != -1) std::this_thread::yield();  // the engine lets go a moment later
}

struct Bell {
  std::atomic<int> rings{0};
  static void ring(void* user) { static_cast<Bell*>(user)->rings++; }
};

void a_callback_rings_for_every_event_and_not_after_release(void**) {
  Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(30);
  Bell bell;
  wi_task_params params = prompt_of(prompt, 10);
  params.notify = Bell::ring;
  params.notify_user = &bell;
  Task task = submit(session.get(), &params);
  const Answer answer = take_all(task.get());
  while (bell.rings < static_cast<int>(answer.tokens.size()) + (answer.last == WI_EVENT_LIMIT))
    std::this_thread::yield();

  auto gone = std::make_unique<Bell>();
  params.max_tokens = 100000;
  params.notify_user = gone.get();
  Task second = submit(session.get(), &params);
  while (gone->rings == 0) std::this_thread::yield();
  second.reset();
  gone.reset();  // a ring after this is a use after free, which ASan tells
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

// Whatever a callback calls on the engine's thread, sessions that have tasks are in use.
void a_callback_finds_the_sessions_of_tasks_busy(void**) {
  struct Caller {
    wi_session* own = nullptr;
    wi_session* other = nullptr;
    int calls = 0, busy = 0;
    static int32_t call(void* user, float*, uint64_t) {
      auto* const self = static_cast<Caller*>(user);
      for (wi_session* session : {self->own, self->other}) {
        wi_error why = {};
        why.struct_size = sizeof why;
        uint64_t count = 0;
        wi_task* task = nullptr;
        const wi_status statuses[] = {wi_session_tokens(session, nullptr, 0, &count, &why),
                                      wi_session_truncate(session, 0, &why),
                                      wi_task_submit(session, nullptr, &task, &why)};
        for (const wi_status status : statuses) ++self->calls, self->busy += status == WI_E_BUSY;
      }
      return 0;
    }
  } caller;
  auto sampling = sized<wi_sampling_params>();
  sampling.logits_callback = Caller::call;
  sampling.logits_user = &caller;
  auto params = sized<wi_session_params>();
  params.sampling = &sampling;
  Session first = create_session(world->model.get(), &params), second = create_session(world->model.get());
  caller.own = first.get();
  caller.other = second.get();
  const std::vector<int32_t> prompt = some_tokens(30), more = some_tokens(length(3000));
  const wi_task_params answer = prompt_of(prompt, 10), longer = prompt_of(more, 200);
  const Task other = submit(second.get(), &longer), own = submit(first.get(), &answer);
  assert_int_equal(take_all(own.get()).tokens.size(), 10);
  assert_int_equal(caller.calls, 60);
  assert_int_equal(caller.busy, 60);
  wi_task_cancel(other.get());
  take_all(other.get());
}

// Also of a task that fails at once.
void a_callback_finds_the_handle_of_its_task(void**) {
  struct Looker {
    wi_task* task = nullptr;
    std::atomic<int> rings{0}, without{0};
    static void ring(void* user) {
      auto* const self = static_cast<Looker*>(user);
      self->without += self->task == nullptr;
      self->rings++;
    }
  };
  const Session session = create_session(world->model.get());
  const std::vector<int32_t> prompt = some_tokens(30);
  for (int i = 0; i < few_or(20, 300); ++i) {
    Looker looker;
    wi_task_params params = prompt_of(prompt, UINT64_MAX);  // never has room
    params.notify = Looker::ring;
    params.notify_user = &looker;
    assert_works(wi_task_submit(session.get(), &params, &looker.task, error));
    while (looker.rings == 0) std::this_thread::yield();
    assert_int_equal(looker.without, 0);
    wi_task_release(looker.task);
  }
}

// One callback, which forks share: what it says of one task's step is that task's alone, and is not asked again.
void a_callback_ends_one_task_of_the_forks_that_share_it(void**) {
  struct Asked {
    int calls = 0;
    static int32_t once(void* user, float*, uint64_t) { return ++static_cast<Asked*>(user)->calls == 17; }
  } asked;
  auto sampling = sized<wi_sampling_params>();
  sampling.logits_callback = Asked::once;
  sampling.logits_user = &asked;
  auto params = sized<wi_session_params>();
  params.sampling = &sampling;
  const std::vector<int32_t> prompt = some_tokens(30);
  const Answer wanted = alone(prompt, 10, nullptr);
  Session first = create_session(world->model.get(), &params);
  assert_works(wi_session_prefill(first.get(), prompt.data(), prompt.size(), nullptr, nullptr, error));
  wi_session* fork = nullptr;
  assert_works(wi_session_fork(first.get(), &fork, error));
  const Session second(fork, wi_session_release);
  const wi_task_params answer = prompt_of({}, 10);
  const Task tasks[] = {submit(first.get(), &answer), submit(second.get(), &answer)};
  int failed = 0;
  for (const Task& task : tasks) {
    const Answer got = take_all(task.get());
    if (got.last == WI_EVENT_LIMIT) {
      assert_true(got.tokens == wanted.tokens);
      continue;
    }
    ++failed;
    assert_int_equal(got.last, WI_EVENT_FAILED);
    assert_int_equal(info_of(task.get()).status, WI_E_CANCELLED);
    assert_string_equal(info_of(task.get()).message, "logits_callback returned 1");
  }
  assert_int_equal(failed, 1);
}

}  // namespace

#ifndef WI_SANITIZED
#pragma GCC visibility push(default)
extern "C" ssize_t write(int descriptor, const void* from, size_t count) {
  const ssize_t put = syscall(SYS_write, descriptor, from, count);
  if (descriptor == held_up && std::this_thread::get_id() != polling) usleep(10'000);
  return put;
}
#pragma GCC visibility pop
#endif

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(two_who_poll_at_once_get_each_event_once),
      cmocka_unit_test(polling_never_waits),
      cmocka_unit_test(a_poll_does_not_sleep_for_the_engine_that_it_interrupts),
      cmocka_unit_test(no_event_is_missed_whoever_waits),
      cmocka_unit_test(a_descriptor_is_readable_while_there_are_events),
      cmocka_unit_test(a_callback_rings_for_every_event_and_not_after_release),
      cmocka_unit_test(a_callback_finds_the_sessions_of_tasks_busy),
      cmocka_unit_test(a_callback_finds_the_handle_of_its_task),
      cmocka_unit_test(a_callback_ends_one_task_of_the_forks_that_share_it),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
