// Whose turn it is, as a host sees it: nobody waits for more of another's prompt or text than was promised, and what
// is cancelled ends in the middle of both.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "support/fewer.h"
#include "support/patience.h"
#include "support/tasks.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;
double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

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
      some_tokens(few_or<size_t>(3000, length(24000)), 5);  // two chunks at least
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
    for (size_t bytes = few_or(30'000, 1'500'000); tokenising < std::chrono::seconds(1); bytes *= 2) {
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

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_cancelled_task_does_not_wait_for_a_chunk_of_another),
      cmocka_unit_test(a_cancelled_prompt_ends_within_the_chunks_of_others),
      cmocka_unit_test(a_writer_goes_on_while_another_task_reads),
      cmocka_unit_test(a_newcomer_that_only_writes_waits_a_moment_for_a_lone_reader),
      cmocka_unit_test(a_long_text_stalls_nobody_while_it_is_tokenised),
      cmocka_unit_test(a_task_is_cancelled_while_its_text_is_tokenised),
      cmocka_unit_test(a_cancelled_task_does_not_wait_for_a_text_of_another),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
