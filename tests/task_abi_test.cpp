// Tasks as a host sees them: the tokens of synchronous calls, fetched by polling, waiting, a descriptor or a
// callback; cancelled, refused, out of memory; and many at once.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "support/abi.h"
#include "support/emulated.h"
#include "support/folder.h"
#include "support/patience.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;
double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }
using Task = std::unique_ptr<wi_task, decltype(&wi_task_release)>;

// Where who writes stays for a while, but for one thread.
std::atomic<int> held_up{-1};
std::thread::id polling;

struct World {
  Runtime runtime = create_runtime();
  Model model = open_sample_model(runtime.get());
};
World* world;

// Long prompts are shorter under a sanitizer or an emulator, which take their time with every token.
constexpr size_t length(size_t tokens) {
#if defined(WI_EMULATED)
  return tokens / 24;
#elif defined(WI_SANITIZED)
  return tokens / 8;
#else
  return tokens;
#endif
}

std::vector<int32_t> some_tokens(size_t count, size_t seed = 1) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * 7 + seed * 31) % 1000) + 1;
  return tokens;
}

Task submit(wi_session* session, const wi_task_params* params = nullptr) {
  wi_task* task = nullptr;
  assert_works(wi_task_submit(session, params, &task, error));
  return {task, wi_task_release};
}

wi_task_info info_of(wi_task* task) {
  auto info = sized<wi_task_info>();
  assert_works(wi_task_get_info(task, &info, error));
  return info;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  int32_t last = WI_EVENT_TOKEN;
};

// Takes what is there; true while the answer goes on.
bool take(wi_task* task, Answer* answer, uint64_t most = 7) {
  std::vector<wi_event> events(most, sized<wi_event>());
  uint64_t count = 0;
  assert_works(wi_task_poll(task, events.data(), most, &count, error));
  for (uint64_t i = 0; i < count; ++i) {
    assert_int_equal(answer->last, WI_EVENT_TOKEN);  // nothing comes after the last event
    if (events[i].token >= 0) answer->tokens.push_back(events[i].token);
    answer->text.append(events[i].text, events[i].text_length);
    answer->last = events[i].kind;
  }
  return answer->last == WI_EVENT_TOKEN;
}

Answer take_all(wi_task* task) {
  Answer answer;
  while (take(task, &answer)) {
    int32_t ready = 0;
    assert_works(wi_task_wait(task, 600'000'000'000, &ready, error));
    assert_int_equal(ready, 1);
  }
  return answer;
}

// The same by synchronous calls.
Answer alone(const std::vector<int32_t>& prompt, uint64_t most, const wi_session_params* params) {
  Session session = create_session(world->model.get(), params);
  assert_works(wi_session_prefill(session.get(), prompt.data(), prompt.size(), nullptr, nullptr, error));
  Answer answer;
  auto event = sized<wi_event>();
  while (answer.tokens.size() < most && event.kind == WI_EVENT_TOKEN) {
    assert_works(wi_session_decode(session.get(), nullptr, &event, error));
    answer.tokens.push_back(event.token);
    answer.text.append(event.text, event.text_length);
  }
  return answer;
}

wi_task_params prompt_of(const std::vector<int32_t>& tokens, uint64_t max_tokens) {
  auto params = sized<wi_task_params>();
  params.tokens = tokens.data();
  params.token_count = tokens.size();
  params.max_tokens = max_tokens;
  return params;
}

// Prompts of all lengths, policies, seeds and priorities at once.
void many_tasks_get_the_tokens_that_each_gets_alone(void**) {
  constexpr size_t kTasks = 12, kMore = emulated_or(12, 90), kAnswer = emulated_or(10, 30);
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

// Greedy, and never at an end.
struct Endless {
  Endless() {
    auto info = sized<wi_model_info>();
    assert_works(wi_model_get_info(world->model.get(), &info, error));
    no_end = {info.eos_token, -INFINITY};
    sampling.logit_bias = &no_end;
    sampling.logit_bias_count = 1;
  }
  Endless(const Endless&) = delete;
  wi_logit_bias no_end{};
  wi_sampling_params sampling = sized<wi_sampling_params>();
};

// What waits for its turn ends in the middle of another's chunk, however long turns are: one that writes, one that
// waits for memory, one that the engine has not seen yet, and a second one that reads.
void a_cancelled_task_does_not_wait_for_a_chunk_of_another(void**) {
  const std::vector<int32_t> document = some_tokens(std::max<size_t>(length(24000), 9000));
  const std::vector<int32_t> question = some_tokens(20, 2);
  auto off = sized<wi_session_params>();
  off.prefix_reuse = WI_PREFIX_REUSE_OFF;
  auto plan = sized<wi_memory_plan>();
  assert_works(wi_model_plan_memory(world->model.get(), &off, document.size() + 1, &plan, error));
  auto patient = sized<wi_runtime_params>();
  patient.task_wait_ms = 60'000;
  patient.kv_budget_bytes = (plan.kv_bytes + plan.index_bytes + plan.sealing_bytes) * 19 / 10;
  Runtime runtime = create_runtime(&patient);
  Model model = open_sample_model(runtime.get());
  const Endless endless;
  const wi_task_params longest = prompt_of(document, 1);
  wi_task_params writer = prompt_of(question, 100), too_large = prompt_of(question, document.size());
  writer.sampling = &endless.sampling;
  wi_task_params reader = prompt_of(document, 1);
  reader.token_count = 4000;  // more than the chunk that it gets before all others are the longest one's
  reader.priority = -8;
  const struct {
    const char* name;
    const wi_task_params* params;
    int32_t state;
    // Whether it waits for its turn: what is known of it, and of how far the other was when it came and is now.
    bool (*waits)(const wi_task_info& info, uint64_t came, uint64_t now);
  } cases[] = {
      {"a writer", &writer, WI_TASK_WRITING,
       [](const wi_task_info& info, uint64_t, uint64_t) { return info.answer_tokens > 0; }},
      {"one that waits for memory", &too_large, WI_TASK_QUEUED,
       [](const wi_task_info&, uint64_t came, uint64_t now) { return now > came; }},
      {"a newcomer", &writer, WI_TASK_QUEUED, [](const wi_task_info&, uint64_t, uint64_t) { return true; }},
      {"a second reader", &reader, WI_TASK_READING,
       [](const wi_task_info& info, uint64_t, uint64_t) { return info.prompt_done > 0; }},
  };
  for (const auto& [name, params, state, waits] : cases) {
    // What the other read of its document meanwhile: nothing, unless the chunk ends by itself just then.
    uint64_t read = document.size();
    for (int i = 0; i < 5 && read > 0; ++i) {
      Session first = create_session(model.get(), &off), second = create_session(model.get(), &off);
      Task other = submit(first.get(), &longest);
      const auto done = [&] { return info_of(other.get()).prompt_done; };
      while (done() == 0) std::this_thread::yield();
      const uint64_t came = done();
      Task task = submit(second.get(), params);
      while (!waits(info_of(task.get()), came, done())) std::this_thread::yield();
      const uint64_t before = done();
      const bool waited = info_of(task.get()).state == state;
      wi_task_cancel(task.get());
      assert_int_equal(take_all(task.get()).last, WI_EVENT_CANCELLED);
      if (waited && info_of(other.get()).state == WI_TASK_READING) read = done() - before;
    }
    std::printf("%s is cancelled while another reads %llu tokens\n", name,
                static_cast<unsigned long long>(read));
    assert_int_equal(read, 0);
  }
}

void a_writer_goes_on_while_another_task_reads(void**) {
  // task_wait_ms is 50; a step and one piece of an operation come on top, and what others have of a shared machine: some
  // gaps may be twice as long. A chunk takes 300 ms.
  constexpr double kLimit = 90;
  const Endless endless;
  const std::vector<int32_t> question = some_tokens(100), document = some_tokens(length(24000), 5);
  wi_task_params write = prompt_of(question, 1'000'000);
  write.sampling = &endless.sampling;
  const wi_task_params read = prompt_of(document, 1);
  auto off = sized<wi_session_params>();
  off.prefix_reuse = WI_PREFIX_REUSE_OFF;
  const double gap = wi::test::least_of_tries(kLimit, [&] {
    Session writer = create_session(world->model.get()), reader = create_session(world->model.get(), &off);
    Task writing = submit(writer.get(), &write);
    Answer answer;
    while (answer.tokens.size() < 5) take(writing.get(), &answer);
    Task reading = submit(reader.get(), &read);
    while (info_of(reading.get()).state == WI_TASK_QUEUED) assert_true(take(writing.get(), &answer));
    std::vector<double> gaps;
    for (Clock::time_point last = Clock::now(); info_of(reading.get()).state == WI_TASK_READING;) {
      int32_t ready;
      assert_works(wi_task_wait(writing.get(), 10'000'000, &ready, error));
      const size_t before = answer.tokens.size();
      assert_true(take(writing.get(), &answer, 1));
      if (answer.tokens.size() == before) continue;
      const Clock::time_point now = Clock::now();
      gaps.push_back(ms(now - std::exchange(last, now)));
    }
    assert_false(gaps.empty());
    std::sort(gaps.begin(), gaps.end());
    const double half = gaps[gaps.size() / 2], most = gaps[gaps.size() * 95 / 100];
    std::printf("%zu tokens while %zu were read, %.0f ms apart, 19 of 20 at most %.0f\n", gaps.size(),
                document.size(), half, most);
    return std::max(half, most / 2);
  });
  assert_in_time(gap < kLimit);
}

// The engine does not know of them when the loops of a lone reader's chunk begin.
void a_newcomer_that_only_writes_waits_a_moment_for_a_lone_reader(void**) {
  constexpr double kLimit = 90;  // task_wait_ms is 50, and the end of a segment may come in between
  Session writer = create_session(world->model.get());
  const std::vector<int32_t> question = some_tokens(100);
  const std::vector<int32_t> document =
      some_tokens(emulated_or<size_t>(3000, length(24000)), 5);  // two chunks at least
  assert_works(wi_session_prefill(writer.get(), question.data(), question.size(), nullptr, nullptr, error));
  const wi_task_params read = prompt_of(document, 1);
  wi_task_params write = sized<wi_task_params>();
  write.max_tokens = 1;
  const double median = wi::test::least_of_tries(kLimit, [&] {
    Session reader = create_session(world->model.get());
    Task reading = submit(reader.get(), &read);
    while (info_of(reading.get()).prompt_done < document.size() / 4) std::this_thread::yield();
    std::vector<double> waits;
    while (info_of(reading.get()).state == WI_TASK_READING && waits.size() < 15) {
      Task writing = submit(writer.get(), &write);
      take_all(writing.get());
      waits.push_back(static_cast<double>(info_of(writing.get()).first_token_ns) * 1e-6);
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + 13 * waits.size() % 50));
    }
    wi_task_cancel(reading.get());
    take_all(reading.get());
    assert_false(waits.empty());
    std::sort(waits.begin(), waits.end());
    std::printf("%zu newcomers waited %.0f ms, at most %.0f\n", waits.size(), waits[waits.size() / 2],
                waits.back());
    return waits[waits.size() / 2];
  });
  assert_in_time(median < kLimit);
}

// A text that takes a second or more to tokenise wherever it is tokenised, and how long it takes.
struct LongText {
  LongText() {
    for (size_t bytes = emulated_or(30'000, 1'500'000); tokenising < std::chrono::seconds(1); bytes *= 2) {
      while (text.size() < bytes) text += "And the waters of " + std::to_string(text.size()) + " ran; ";
      const Clock::time_point start = Clock::now();
      uint64_t count = 0;
      assert_works(
          wi_model_tokenize(world->model.get(), text.data(), text.size(), 0, nullptr, 0, &count, error));
      tokenising = Clock::now() - start;
    }
  }
  wi_task_params task() const {
    auto params = sized<wi_task_params>();
    params.text = text.data();
    params.text_length = text.size();
    params.max_tokens = 1;
    return params;
  }
  std::string text;
  Clock::duration tokenising{};
};

// One task writes, a second one's long text is tokenised, and a third one's short text comes after it.
void a_long_text_stalls_nobody_while_it_is_tokenised(void**) {
  const LongText lengthy;
  const Endless endless;
  Session writer = create_session(world->model.get()), reader = create_session(world->model.get()),
          third = create_session(world->model.get());
  const std::vector<int32_t> question = some_tokens(100);
  wi_task_params write = prompt_of(question, 1'000'000);
  write.sampling = &endless.sampling;
  Task writing = submit(writer.get(), &write);
  Answer answer;
  while (answer.tokens.size() < 5) take(writing.get(), &answer);
  const wi_task_params read = lengthy.task();
  const Clock::time_point start = Clock::now();
  Task reading = submit(reader.get(), &read);
  wi_task_params brief = read;
  brief.text_length = 20;
  Task short_one = submit(third.get(), &brief);
  const size_t before = answer.tokens.size();
  Clock::duration longest{}, short_took{};
  for (Clock::time_point last = start;;) {
    const wi_task_info now = info_of(reading.get());
    if (now.prompt_tokens > 0 || now.state > WI_TASK_READING) break;
    const size_t had = answer.tokens.size();
    assert_true(take(writing.get(), &answer));
    if (answer.tokens.size() > had) {
      longest = std::max(longest, Clock::now() - last);
      last = Clock::now();
    }
    if (short_took == Clock::duration() && info_of(short_one.get()).state >= WI_TASK_DONE)
      short_took = Clock::now() - start;
    int32_t ready;
    assert_works(wi_task_wait(writing.get(), 10'000'000, &ready, error));
  }
  std::printf(
      "tokenised in %.0f ms (alone %.0f ms); meanwhile %zu tokens, at most %.0f ms apart, and a short text's "
      "in %.0f ms\n",
      ms(Clock::now() - start), ms(lengthy.tokenising), answer.tokens.size() - before, ms(longest),
      ms(short_took));
  // Some 55 ms on a quiet machine (task_wait_ms is 50); without breaks it is the whole time.
  assert_in_time(longest < lengthy.tokenising / 3);
  assert_in_time(answer.tokens.size() - before >= 4);
  assert_in_time(short_took > Clock::duration());
}

void a_task_is_cancelled_while_its_text_is_tokenised(void**) {
  const LongText lengthy;
  Session session = create_session(world->model.get());
  const wi_task_params params = lengthy.task();
  const double took = wi::test::least_of_tries(wi::test::kCancelMs, [&] {
    Task task = submit(session.get(), &params);
    std::this_thread::sleep_for(lengthy.tokenising / 8);
    const Clock::time_point fired = Clock::now();
    wi_task_cancel(task.get());
    assert_int_equal(take_all(task.get()).last, WI_EVENT_CANCELLED);
    return ms(Clock::now() - fired);
  });
  std::printf("cancelled within %.1f ms\n", took);
  assert_in_time(took < wi::test::kCancelMs);
  assert_works(wi_session_truncate(session.get(), 0, error));
}

void a_cancelled_task_does_not_wait_for_a_text_of_another(void**) {
  const LongText lengthy;
  auto patient = sized<wi_runtime_params>();
  patient.task_wait_ms = 60'000;
  Runtime runtime = create_runtime(&patient);
  Model model = open_sample_model(runtime.get());
  const Endless endless;
  const std::vector<int32_t> question = some_tokens(20);
  wi_task_params write = prompt_of(question, 1'000'000);
  write.sampling = &endless.sampling;
  const wi_task_params read = lengthy.task();
  bool goes_on = false;  // the text, when the other has ended
  for (int i = 0; i < 5 && !goes_on; ++i) {
    Session writer = create_session(model.get()), reader = create_session(model.get());
    Task writing = submit(writer.get(), &write);
    Answer answer;
    while (answer.tokens.empty()) take(writing.get(), &answer);
    Task reading = submit(reader.get(), &read);
    std::this_thread::sleep_for(lengthy.tokenising / 4);
    wi_task_cancel(writing.get());
    assert_int_equal(take_all(writing.get()).last, WI_EVENT_CANCELLED);
    goes_on = info_of(reading.get()).prompt_tokens == 0;
  }
  assert_true(goes_on);
}

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
  int32_t fd = -1;
  assert_works(wi_task_get_fd(task.get(), &fd, error));
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
  for (int i = 0; i < emulated_or(2, 10); ++i) {
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
  int32_t fd = -1;
  assert_works(wi_task_get_fd(task.get(), &fd, error));
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
  for (int i = 0; i < emulated_or(20, 300); ++i) {
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

// Chunks lie within each other on the engine's thread: one that is cancelled ends those within it, which are read again.
void a_cancelled_prompt_ends_within_the_chunks_of_others(void**) {
  const std::vector<int32_t> prompt = some_tokens(length(9000)), others = some_tokens(length(8000), 2);
  const Answer wanted = alone(others, 10, nullptr);
  for (int i = 0; i < 6; ++i) {
    const Session first = create_session(world->model.get()), second = create_session(world->model.get());
    const wi_task_params reads = prompt_of(prompt, 10), reads_too = prompt_of(others, 10);
    const Task task = submit(first.get(), &reads), other = submit(second.get(), &reads_too);
    std::this_thread::sleep_for(std::chrono::milliseconds(60 + 40 * i));
    wi_task_cancel(task.get());
    take_all(task.get());
    const Answer got = take_all(other.get());
    assert_true(got.tokens == wanted.tokens && got.text == wanted.text);
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

void tasks_wait_for_memory_instead_of_failing(void**) {
  auto limited = sized<wi_runtime_params>();
  limited.kv_budget_bytes = 40 << 20;
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  const std::vector<int32_t> prompt = some_tokens(length(6000));
  const wi_task_params params = prompt_of(prompt, 5);
  std::vector<Session> sessions;
  std::vector<Task> tasks;
  auto off = sized<wi_session_params>();
  off.prefix_reuse = WI_PREFIX_REUSE_OFF;
  for (int i = 0; i < 6; ++i) {
    sessions.push_back(create_session(model.get(), &off));
    tasks.push_back(submit(sessions.back().get(), &params));
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Answer answer = take_all(tasks[i].get());
    assert_int_equal(info_of(tasks[i].get()).state, WI_TASK_DONE);
    assert_true(!answer.tokens.empty());
    assert_works(wi_session_truncate(sessions[i].get(), 0, error));  // makes room for those that wait
  }
  // What can never fit is told at once, not queued for ever.
  Session large = create_session(model.get());
  for (const uint64_t tokens : {uint64_t{1000000}, UINT64_MAX}) {
    wi_task_params too_much = prompt_of(prompt, tokens);
    Task refused = submit(large.get(), &too_much);
    assert_int_equal(take_all(refused.get()).last, WI_EVENT_FAILED);
    const wi_task_info info = info_of(refused.get());
    assert_int_equal(info.status, WI_E_BUDGET);
    assert_non_null(std::strstr(info.message, "kv_budget_bytes"));
  }
}

// Neither what must stay in fast memory, as the slow tier has no room for it, nor what a share of it leaves no room for.
void a_slow_tier_that_can_never_hold_a_task_is_told_at_once(void**) {
  const Folder folder;
  auto limited = sized<wi_runtime_params>();
  limited.kv_budget_bytes = 16 << 20;
  limited.spill_folder = folder.path.c_str();
  limited.spill_bytes = 1 << 20;
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  const std::vector<int32_t> prompt = some_tokens(100);
  const wi_task_params too_much = prompt_of(prompt, 20000);
  const struct {
    float share;
    const char* named;
  } cases[] = {{0, "kv_budget_bytes"}, {0.1f, "spill_bytes"}};
  for (const auto& [share, named] : cases) {
    auto params = sized<wi_session_params>();
    params.kv_fast_share = share;
    Session session = create_session(model.get(), &params);
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
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  std::vector<Session> sessions;
  std::vector<Task> tasks;
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(create_session(model.get(), &given.off));
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
  auto limited = sized<wi_runtime_params>();
  limited.spill_folder = folder.path.c_str();
  limited.kv_budget_bytes = given.planned_bytes() * 5 / 4;
  limited.spill_bytes = 1 << 20;
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  Session idle = create_session(model.get(), &given.off), next = create_session(model.get(), &given.off);
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
  auto limited = sized<wi_runtime_params>();
  limited.spill_folder = folder.path.c_str();
  limited.kv_budget_bytes = given.planned_bytes() * 2;
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  const std::vector<int32_t> recent = some_tokens(900);
  auto policy = sized<wi_policy_params>();
  policy.local_window = 1000;
  auto all_recent = given.off;
  all_recent.policy = &policy;
  std::vector<Session> idle;
  for (int i = 0; i < 50; ++i) {
    idle.push_back(create_session(model.get(), &all_recent));
    assert_works(
        wi_session_prefill(idle.back().get(), recent.data(), recent.size(), nullptr, nullptr, error));
  }
  Session session = create_session(model.get(), &given.off);
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
  auto limited = sized<wi_runtime_params>();
  limited.kv_budget_bytes = 40 << 20;
  Runtime runtime = create_runtime(&limited);
  Model model = open_sample_model(runtime.get());
  const std::vector<int32_t> prompt = some_tokens(length(6000));
  const wi_task_params params = prompt_of(prompt, 5);
  auto sampling = sized<wi_sampling_params>();
  sampling.top_logprobs = 3;
  auto session_params = sized<wi_session_params>();
  session_params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  session_params.sampling = &sampling;
  std::vector<Task> tasks;
  for (int i = 0; i < 6; ++i) {
    const Session session = create_session(model.get(), &session_params);
    tasks.push_back(submit(session.get(), &params));
  }
  for (const Task& task : tasks)
    for (const auto start = Clock::now(); info_of(task.get()).state < WI_TASK_DONE; usleep(1000))
      assert_true(Clock::now() - start < std::chrono::seconds(patience(60)));
  auto stats = sized<wi_runtime_stats>();
  assert_works(wi_runtime_get_stats(runtime.get(), &stats, error));
  assert_int_equal(stats.sessions, 0);
  assert_int_equal(stats.kv_bytes, 0);
  runtime.reset();
  model.reset();
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
    const std::vector<int32_t> prompt = some_tokens(static_cast<size_t>(i * emulated_or(20, 200)) + 1);
    const wi_task_params params = prompt_of(prompt, 20);
    Task task = submit(session.get(), &params);
    if (i % 2) task.reset();
    runtime.reset();
    model.reset();
    session.reset();
    if (task && i % 4 == 0) take_all(task.get());
  }
}

int open_world(void**) {
  world = new World;
  return 0;
}

int close_world(void**) {
  delete world;
  return 0;
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
      cmocka_unit_test(many_tasks_get_the_tokens_that_each_gets_alone),
      cmocka_unit_test(a_bounded_answer_ends_with_an_event_of_its_own),
      cmocka_unit_test(a_text_is_tokenised_by_the_engine),
      cmocka_unit_test(a_session_with_a_task_is_busy_until_the_task_has_ended),
      cmocka_unit_test(a_cancelled_task_ends_soon_and_its_session_is_free),
      cmocka_unit_test(a_cancelled_task_does_not_wait_for_a_chunk_of_another),
      cmocka_unit_test(a_writer_goes_on_while_another_task_reads),
      cmocka_unit_test(a_newcomer_that_only_writes_waits_a_moment_for_a_lone_reader),
      cmocka_unit_test(a_long_text_stalls_nobody_while_it_is_tokenised),
      cmocka_unit_test(a_task_is_cancelled_while_its_text_is_tokenised),
      cmocka_unit_test(a_cancelled_task_does_not_wait_for_a_text_of_another),
      cmocka_unit_test(two_who_poll_at_once_get_each_event_once),
      cmocka_unit_test(polling_never_waits),
      cmocka_unit_test(a_poll_does_not_sleep_for_the_engine_that_it_interrupts),
      cmocka_unit_test(no_event_is_missed_whoever_waits),
      cmocka_unit_test(a_descriptor_is_readable_while_there_are_events),
      cmocka_unit_test(a_callback_rings_for_every_event_and_not_after_release),
      cmocka_unit_test(a_callback_finds_the_sessions_of_tasks_busy),
      cmocka_unit_test(a_callback_finds_the_handle_of_its_task),
      cmocka_unit_test(a_cancelled_prompt_ends_within_the_chunks_of_others),
      cmocka_unit_test(a_callback_ends_one_task_of_the_forks_that_share_it),
      cmocka_unit_test(tasks_wait_for_memory_instead_of_failing),
      cmocka_unit_test(tasks_wait_for_the_slow_tier_instead_of_failing),
      cmocka_unit_test(tasks_wait_for_idle_sessions_that_cannot_leave),
      cmocka_unit_test(a_task_beside_idle_sessions_does_with_what_they_leave),
      cmocka_unit_test(a_slow_tier_that_can_never_hold_a_task_is_told_at_once),
      cmocka_unit_test(an_ended_task_holds_no_memory_that_others_wait_for),
      cmocka_unit_test(wrong_arguments_are_named),
      cmocka_unit_test(handles_may_be_released_in_any_order_while_a_task_runs),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
