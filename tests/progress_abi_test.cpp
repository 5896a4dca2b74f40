// What a prefill tells its host while it lasts: in time, within a chunk too and while a text is tokenised, on the
// thread that made the call, which may end it there or use all else of the runtime.
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "support/abi.h"
#include "support/fewer.h"

namespace {

using namespace wi::test;
using Clock = std::chrono::steady_clock;

// With two threads, however many processors there are: what takes long must do so everywhere.
struct World {
  static Runtime with_two_threads() {
    auto params = sized<wi_runtime_params>();
    params.threads = 2;
    return create_runtime(&params);
  }
  Runtime runtime = with_two_threads();
  Model model = open_sample_model(runtime.get());
};
World* world;

// One chunk of several seconds, in which a host surely hears so often before the end; a part of it under a sanitizer or an
// emulator.
#if defined(WI_EMULATED)
constexpr size_t kTokens = 200, kSurelyTold = 1, kTextBytes = 768'000;
#elif defined(WI_SANITIZED)
constexpr size_t kTokens = 4000, kSurelyTold = 1, kTextBytes = kTokens << 9;
#else
constexpr size_t kTokens = 12000, kSurelyTold = 2, kTextBytes = kTokens << 9;
#endif

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 7 % 1000) + 1;
  return tokens;
}

// Writes down what it is told, and answers what `then` says.
struct Host {
  std::function<int32_t(uint64_t done, uint64_t total)> then = [](uint64_t, uint64_t) { return 0; };
  std::vector<std::pair<uint64_t, uint64_t>> told;
  Clock::time_point last = Clock::now();
  Clock::duration longest{};
  const std::thread::id thread = std::this_thread::get_id();
  bool elsewhere = false;

  static int32_t progress(void* user, uint64_t done, uint64_t total) {
    auto& self = *static_cast<Host*>(user);
    self.elsewhere |= std::this_thread::get_id() != self.thread;
    self.longest = std::max(self.longest, Clock::now() - self.last);
    self.last = Clock::now();
    self.told.emplace_back(done, total);
    return self.then(done, total);
  }
  wi_prefill_params params(int32_t chunk_tokens) {
    auto params = sized<wi_prefill_params>();
    params.chunk_tokens = chunk_tokens;
    params.progress = progress;
    params.progress_user = this;
    last = Clock::now();
    return params;
  }
};

double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

wi_status read(wi_session* session, const std::vector<int32_t>& tokens, const wi_prefill_params* params,
               wi_error* error) {
  return wi_session_prefill(session, tokens.data(), tokens.size(), params, nullptr, error);
}

std::vector<float> logits_of(wi_session* session) {
  uint64_t count = 0;
  assert_works(wi_session_logits(session, nullptr, nullptr, 0, &count, error));
  std::vector<float> logits(count);
  assert_works(wi_session_logits(session, nullptr, logits.data(), count, &count, error));
  return logits;
}

Session fresh_session() {
  auto params = sized<wi_session_params>();
  params.prefix_reuse = WI_PREFIX_REUSE_OFF;
  return create_session(world->model.get(), &params);
}

void a_host_hears_of_its_prefill_within_a_chunk(void**) {
  const std::vector<int32_t> tokens = some_tokens(kTokens);
  Session session = fresh_session(), unheard = fresh_session();
  const double longest = wi::test::least_of_tries(wi::test::kProgressMs, [&] {
    session = fresh_session();
    Host host;
    const wi_prefill_params params = host.params(static_cast<int32_t>(kTokens));
    const Clock::time_point start = Clock::now();
    assert_works(read(session.get(), tokens, &params, error));
    std::printf("told %zu times in %.0f ms, at most %.0f ms apart\n", host.told.size(),
                ms(Clock::now() - start), ms(host.longest));
    assert_false(host.elsewhere);
    assert_true(std::is_sorted(host.told.begin(), host.told.end()));
    assert_true(host.told.back() == std::make_pair(uint64_t{kTokens}, uint64_t{kTokens}));
    return ms(host.longest);
  });
  assert_in_time(longest < wi::test::kProgressMs);
  // What is computed does not depend on who hears of it.
  auto silent = sized<wi_prefill_params>();
  silent.chunk_tokens = static_cast<int32_t>(kTokens);
  assert_works(read(unheard.get(), tokens, &silent, error));
  assert_true(logits_of(session.get()) == logits_of(unheard.get()));
}

// From a callback of the call's own.
void a_host_may_change_its_tokens_while_they_are_read(void**) {
  const std::vector<int32_t> given = some_tokens(kTokens / 2);
  auto silent = sized<wi_prefill_params>();
  silent.chunk_tokens = 64;
  Session unchanged = fresh_session();
  assert_works(read(unchanged.get(), given, &silent, error));
  for (const int32_t other : {5, INT32_MIN}) {
    std::vector<int32_t> tokens = given;
    Host host;
    host.then = [&](uint64_t, uint64_t) {
      std::fill(tokens.begin(), tokens.end(), other);
      return 0;
    };
    Session session = fresh_session();
    const wi_prefill_params params = host.params(64);
    assert_works(read(session.get(), tokens, &params, error));
    assert_int_equal(tokens[0], other);
    std::vector<int32_t> held(given.size());
    uint64_t count = 0;
    assert_works(wi_session_tokens(session.get(), held.data(), held.size(), &count, error));
    assert_true(held == given);
    assert_true(logits_of(session.get()) == logits_of(unchanged.get()));
  }
}

void a_host_ends_its_prefill_within_a_chunk(void**) {
  const std::vector<int32_t> tokens = some_tokens(kTokens);
  Session session = fresh_session();
  assert_works(read(session.get(), some_tokens(200), nullptr, error));
  const std::vector<float> before = logits_of(session.get());
  Host host;
  const wi_prefill_params params = host.params(static_cast<int32_t>(kTokens));
  const double after = wi::test::least_of_tries(wi::test::kCancelMs, [&] {
    host.told.clear();
    host.then = [&](uint64_t, uint64_t) { return host.told.size() >= kSurelyTold; };
    assert_fails(WI_E_CANCELLED, "progress callback", read(session.get(), tokens, &params, error));
    const double took = ms(Clock::now() - host.last);
    assert_in_time(host.told.back() == std::make_pair(uint64_t{0}, uint64_t{kTokens}));
    return took;
  });
  std::printf("ended within %.1f ms\n", after);
  assert_in_time(after < wi::test::kCancelMs);
  auto stats = sized<wi_session_stats>();
  assert_works(wi_session_get_stats(session.get(), &stats, error));
  assert_int_equal(stats.tokens, 200);
  assert_true(logits_of(session.get()) == before);
  host.then = [](uint64_t, uint64_t) { return 0; };
  assert_works(read(session.get(), some_tokens(100), &params, error));
}

// A text that takes long to tokenise: its tokens are not counted yet.
void a_host_hears_of_a_text_that_is_tokenised(void**) {
  constexpr double kLimit = wi::test::kProgressMs;
  std::string text;
  while (text.size() < kTextBytes) text += "And the waters of " + std::to_string(text.size()) + " ran; ";
  Session session = fresh_session();
  const double longest = wi::test::least_of_tries(kLimit, [&] {
    Host host;
    host.then = [&](uint64_t, uint64_t) { return host.told.size() >= 4; };
    const wi_prefill_params params = host.params(0);
    assert_fails(WI_E_CANCELLED, "progress callback",
                 wi_session_append_text(session.get(), text.data(), text.size(), 0, &params, nullptr, error));
    std::printf("told at most %.0f ms apart, then of %zu tokens\n", ms(host.longest),
                static_cast<size_t>(host.told.back().second));
    assert_false(host.elsewhere);
    assert_true(host.told.front() == std::make_pair(uint64_t{0}, uint64_t{text.size()}));
    return ms(host.longest);
  });
  assert_in_time(longest < kLimit);
  uint64_t count = 1;
  assert_works(wi_session_tokens(session.get(), nullptr, 0, &count, error));
  assert_int_equal(count, 0);
}

// Prefills with callbacks of their own, steps and tasks, in the middle of another prefill's loops.
void a_callback_may_use_other_sessions_and_tasks_of_its_runtime(void**) {
  const std::vector<int32_t> tokens = some_tokens(kTokens), question = some_tokens(emulated_or(70, 300));
  Session reader = fresh_session(), answers = fresh_session(), works = fresh_session(),
          alone = fresh_session();
  assert_works(read(answers.get(), question, nullptr, error));
  assert_works(read(works.get(), question, nullptr, error));
  auto event = sized<wi_event>(), wanted = sized<wi_event>();
  assert_works(read(alone.get(), question, nullptr, error));

  int inner = 0, compared = 0;
  Host host;
  host.then = [&](uint64_t, uint64_t) {
    if (++inner > 8) return 0;
    assert_fails(WI_E_BUSY, "", wi_session_decode(reader.get(), nullptr, &event, error));
    auto stats = sized<wi_session_stats>();
    assert_works(wi_session_get_stats(reader.get(), &stats, error));
    assert_works(wi_session_decode(answers.get(), nullptr, &event, error));
    assert_works(wi_session_decode(alone.get(), nullptr, &wanted, error));
    compared += event.token == wanted.token;
    Host within;
    const wi_prefill_params params = within.params(64);
    Session another = fresh_session();
    assert_works(read(another.get(), question, &params, error));
    assert_true(within.told.size() >= question.size() / 64);
    auto task_params = sized<wi_task_params>();
    task_params.tokens = question.data();
    task_params.token_count = question.size();
    task_params.max_tokens = 2;
    wi_task* task = nullptr;
    assert_works(wi_task_submit(works.get(), &task_params, &task, error));
    auto info = sized<wi_task_info>();
    while (info.state < WI_TASK_DONE) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      assert_works(wi_task_get_info(task, &info, error));
    }
    assert_int_equal(info.state, WI_TASK_DONE);
    wi_task_release(task);
    return 0;
  };
  const wi_prefill_params params = host.params(static_cast<int32_t>(kTokens / 2));
  assert_works(read(reader.get(), tokens, &params, error));
  assert_true(inner >= 2);
  assert_int_equal(compared, std::min(inner, 8));
  Session unheard = fresh_session();
  auto silent = sized<wi_prefill_params>();
  silent.chunk_tokens = params.chunk_tokens;
  assert_works(read(unheard.get(), tokens, &silent, error));
  assert_true(logits_of(reader.get()) == logits_of(unheard.get()));
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

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_host_hears_of_its_prefill_within_a_chunk),
      cmocka_unit_test(a_host_may_change_its_tokens_while_they_are_read),
      cmocka_unit_test(a_host_ends_its_prefill_within_a_chunk),
      cmocka_unit_test(a_host_hears_of_a_text_that_is_tokenised),
      cmocka_unit_test(a_callback_may_use_other_sessions_and_tasks_of_its_runtime),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
