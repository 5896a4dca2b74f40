// What a host hears of its prompt, and may do, while keys and values leave the fast tier for it: the disk takes 100 ms
// for a write, and what leaves takes seconds. Nothing of that changes a token.
#include <chrono>
#include <functional>
#include <thread>

#include "src/cancel.h"
#include "src/memory/breaks.h"
#include "tests/support/failing_calls.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tiers.h"

using namespace wi;
using namespace wi::test;

namespace {

using Clock = std::chrono::steady_clock;

double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::vector<float> logits_of(Session& session) {
  const std::span<const float> logits = session.logits(nullptr);
  return {logits.begin(), logits.end()};
}

// Writes down what it is told, and answers what `then` says. first_chunk: how often before one has been read.
struct Host {
  std::function<bool()> then = [] { return false; };
  int told = 0, first_chunk = 0;
  bool elsewhere = false;
  Clock::time_point last{};
  Clock::duration longest{};
  const std::thread::id thread = std::this_thread::get_id();

  static int32_t progress(void* user, uint64_t done, uint64_t) {
    auto& self = *static_cast<Host*>(user);
    self.elsewhere |= std::this_thread::get_id() != self.thread;
    self.longest = std::max(self.longest, Clock::now() - self.last);
    ++self.told;
    self.first_chunk += done == 0;
    const bool ends = self.then();
    self.last = Clock::now();  // what it does itself is no silence
    return ends;
  }
  PrefillParams params(int32_t chunk) {
    PrefillParams params = chunks_of(chunk);
    params.progress = progress;
    params.progress_user = this;
    last = Clock::now();
    return params;
  }
};

void slow_writes() { arm(kPwrite, kSlow); }
int64_t writes() { return fault.calls[kPwrite]; }

// ---- Segments ----

constexpr size_t kPrompt = 1500;
constexpr int64_t kLeaving = 16;  // writes of what surely leaves: a plane each

// A session with everything in memory, and forks of it whose prompts' first chunks come after all that has left.
struct Family {
  explicit Family(const TiersWorld& of) : world(of), origin(of.session(0)) {
    origin->prefill(random_prompt(kPrompt), chunks_of(150), nullptr);
  }
  std::shared_ptr<Session> greedy() const { return origin->fork_as(world.params(0.01f), nullptr); }

  const TiersWorld& world;
  std::shared_ptr<Session> origin;
  const std::vector<int32_t> more = random_prompt(100, 1);
};

// Where a newcomer has room when some of what is on its way has left.
uint64_t little_more_than_a_family() {
  const TiersWorld fast({.slow = false});
  const Family family(fast);
  return fast.runtime->pool->peak() * 5 / 4;
}

std::vector<float> wanted_logits() {
  const TiersWorld fast({.slow = false});
  const Family family(fast);
  const auto expected = family.origin->fork();
  expected->prefill(family.more, {}, nullptr);
  return logits_of(*expected);
}

void a_host_hears_of_its_prompt_while_segments_leave(void**) {
  const std::vector<float> wanted = wanted_logits();
  const double longest = least_of_tries(kProgressMs, [&] {
    const TiersWorld world;
    const Family family(world);
    const auto session = family.greedy();
    Host host;
    slow_writes();
    session->prefill(family.more, host.params(0), nullptr);
    const int64_t wrote = writes();
    disarm();
    std::printf("  told %d times while %lld were written, at most %.0f ms apart\n", host.first_chunk,
                static_cast<long long>(wrote), ms(host.longest));
    assert_true(wrote >= kLeaving);
    assert_true(host.first_chunk >= 2);
    assert_false(host.elsewhere);
    assert_true(logits_of(*session) == wanted);
    return ms(host.longest);
  });
  assert_in_time(longest < kProgressMs);
}

void a_host_ends_its_prompt_while_segments_leave(void**) {
  const std::vector<float> wanted = wanted_logits();
  const TiersWorld world;
  const double wrote = least_of_tries(kLeaving / 2, [&] {
    const Family family(world);
    const auto session = family.greedy();
    const std::vector<float> before = logits_of(*session);
    Host host;
    host.then = [&] { return host.told == 2; };
    slow_writes();
    assert_error(WI_E_CANCELLED, "progress callback", session->prefill(family.more, host.params(0), nullptr));
    const int64_t until_end = writes();
    disarm();
    assert_int_equal(host.told, 2);
    assert_int_equal(host.first_chunk, 2);
    // What had not left is where it was, and the file has no more than the rest.
    uint64_t slow = 0;
    for (const auto& segment : session->sequence().segments())
      if (segment->is_slow()) slow += segment->leaving_bytes();
    assert_true(session->sequence().slow_segments() < session->sequence().segments().size());
    assert_int_equal(world.buffer().file()->used(), slow);
    assert_int_equal(session->stats().tokens, kPrompt);
    assert_true(logits_of(*session) == before);
    session->prefill(family.more, {}, nullptr);
    assert_true(logits_of(*session) == wanted);
    return static_cast<double>(until_end);
  });
  std::printf("  ended after %.0f writes\n", wrote);
  assert_in_time(wrote < kLeaving / 2);
}

// They read the very segments that are on their way, on the thread that made the call, or want them gone as well.
void a_callback_may_use_sessions_that_share_what_leaves(void**) {
  std::vector<float> wanted, got;
  const auto step = [](Session& session, int32_t token, std::vector<float>& all) {
    session.accept(token, nullptr);
    const std::vector<float> logits = logits_of(session);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const auto read_more = [](Session& session, std::span<const int32_t> ids, std::vector<float>& all) {
    session.prefill(ids, {}, nullptr);
    const std::vector<float> logits = logits_of(session);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const std::vector<int32_t> question = random_prompt(900, 2);
  {
    const TiersWorld fast({.slow = false});
    const Family family(fast);
    const auto reader = family.origin->fork(), newcomer = fast.session(0);
    step(*family.origin, 3, wanted);
    read_more(*newcomer, question, wanted);
    step(*reader, 5, wanted);
    read_more(*reader, family.more, wanted);
  }
  const TiersWorld world({.kv_budget_bytes = little_more_than_a_family()});
  const Family family(world);
  const auto session = family.greedy(), reader = family.origin->fork(), newcomer = world.session(0);
  Host host;
  bool on_its_way = false;
  host.then = [&] {
    if (host.told > 1) return false;
    on_its_way = !session->sequence().segments().back()->is_slow();
    step(*family.origin, 3, got);
    read_more(*newcomer, question, got);
    step(*reader, 5, got);
    return false;
  };
  assert_int_equal(session->sequence().slow_segments(), 0);
  slow_writes();
  session->prefill(family.more, host.params(0), nullptr);
  disarm();
  assert_true(host.first_chunk >= 1 && on_its_way);
  const std::vector<float> logits = logits_of(*session);
  read_more(*reader, family.more, got);
  assert_true(got == wanted);
  assert_true(logits == wanted_logits());
}

// Another thread that needs the room of what is on its way is not kept from it by a callback that takes its time.
void a_callback_that_takes_its_time_keeps_no_other_thread_from_room(void**) {
  const std::vector<int32_t> question = random_prompt(900, 2);
  const TiersWorld fast({.slow = false});
  const auto expected = fast.session(0);
  expected->prefill(question, {}, nullptr);
  const TiersWorld world({.kv_budget_bytes = little_more_than_a_family()});
  const Family family(world);
  const auto session = family.greedy(), newcomer = world.session(0);
  bool on_its_way = false;
  Host host;
  host.then = [&] {
    if (host.told > 1) return false;
    on_its_way = !session->sequence().segments().back()->is_slow();
    std::thread([&] { newcomer->prefill(question, {}, nullptr); }).join();
    return false;
  };
  slow_writes();
  session->prefill(family.more, host.params(0), nullptr);
  disarm();
  assert_true(host.first_chunk >= 1 && on_its_way);
  assert_true(logits_of(*session) == wanted_logits());
  assert_true(logits_of(*newcomer) == logits_of(*expected));
}

// As the engine's other tasks do, on the thread that reads the prompt.
void others_have_their_turns_while_segments_leave(void**) {
  constexpr int kSteps = 5;
  const auto step = [](Session& session, int32_t token, std::vector<float>& all) {
    session.accept(token, nullptr);
    const std::vector<float> logits = logits_of(session);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  std::vector<float> wanted;
  {
    const TiersWorld fast({.slow = false});
    const Family family(fast);
    for (int i = 0; i < kSteps; ++i) step(*family.origin, i, wanted);
  }
  const TiersWorld world;
  const Family family(world);
  const auto session = family.greedy();
  std::vector<float> got;
  const std::shared_ptr<const Segment> leaves_last = session->sequence().segments().back();
  struct Others final : Breaks {
    std::function<void()> turn;
    bool due() override { return false; }
    void take() override { turn(); }
  } others;
  int turns = 0;
  others.turn = [&] {
    if (leaves_last->is_slow()) return;
    if (turns++ < kSteps) step(*family.origin, turns - 1, got);
  };
  PrefillParams params;
  params.breaks = &others;
  slow_writes();
  session->prefill(family.more, params, nullptr);
  disarm();
  assert_true(turns >= kSteps);
  assert_true(got == wanted);
  assert_true(logits_of(*session) == wanted_logits());
}

// ---- A tail's blocks, and segments that go straight to the disk ----

constexpr int32_t kSegment = 2048, kChunk = 128;

std::shared_ptr<const Model> wide_model() {
  static const std::shared_ptr<const Model> shared = [] {
    ModelShape shape;
    shape.name = "room";
    shape.layers = slow_or(2, 8);  // so that some planes are made at once
    shape.kv_heads = 4;
    shape.query_heads = 4;
    shape.head_dim = 32;
    return random_model(shape, DType::f32, seed());
  }();
  return shared;
}

SessionParams params_of(const TiersWorld& world) {
  SessionParams params = world.params(0);
  params.policy_params.segment_tokens = kSegment;
  params.policy_params.decode_segment_tokens = 128;
  params.policy_params.tokens_per_centroid = 64;
  return params;
}

// A session whose budget is less than a segment of it, in the middle of a prompt that it reads piece by piece.
void a_host_hears_of_its_prompt_while_its_own_tokens_leave(void**) {
  const std::vector<int32_t> ids = random_prompt(4700);
  const uint64_t segment_bytes = uint64_t{kSegment} * kv_shape_of(*wide_model(), DType::f16).token_bytes();
  const TiersWorld fast({.slow = false}, wide_model());
  const auto expected = Session::create(fast.runtime, fast.model, params_of(fast));
  expected->prefill(ids, chunks_of(kChunk), nullptr);
  const std::vector<float> wanted = logits_of(*expected);
  const size_t before = 3900;
  for (const bool seals : {false, true}) {
    const double longest = least_of_tries(kProgressMs, [&] {
      const TiersWorld world({.kv_budget_bytes = segment_bytes * 9 / 10, .threads = 4}, wide_model());
      const auto session = Session::create(world.runtime, world.model, params_of(world));
      size_t done = 0;
      const auto read_until = [&](size_t end, PrefillParams params) {
        while (done < end)
          done += static_cast<size_t>(
              session->prefill_chunk_of({ids.data() + done, ids.size() - done}, params, nullptr));
      };
      read_until(before, chunks_of(kChunk));
      assert_true(session->sequence().slow_blocks() > 0);
      if (seals) read_until(4200, chunks_of(kChunk));
      world.settle();
      const size_t segments = session->sequence().segments().size();
      const auto going_on = [&] {
        return seals ? session->sequence().segments().size() == segments && done < ids.size()
                     : done < before + 300;
      };
      Host host;
      const PrefillParams params = host.params(kChunk);
      int64_t wrote = 0;
      while (going_on()) {
        slow_writes();
        read_until(done + 1, params);
        wrote += writes();
      }
      disarm();
      std::printf("  told %d times while %lld were written, at most %.0f ms apart\n", host.told,
                  static_cast<long long>(wrote), ms(host.longest));
      assert_true(wrote >= 8);
      assert_true(host.told >= wrote / 4);
      read_until(ids.size(), chunks_of(kChunk));
      assert_true(logits_of(*session) == wanted);
      return ms(host.longest);
    });
    assert_in_time(longest < kProgressMs);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_host_hears_of_its_prompt_while_segments_leave),
      cmocka_unit_test(a_host_ends_its_prompt_while_segments_leave),
      cmocka_unit_test(a_callback_may_use_sessions_that_share_what_leaves),
      cmocka_unit_test(a_callback_that_takes_its_time_keeps_no_other_thread_from_room),
      cmocka_unit_test(others_have_their_turns_while_segments_leave),
      cmocka_unit_test(a_host_hears_of_its_prompt_while_its_own_tokens_leave),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
