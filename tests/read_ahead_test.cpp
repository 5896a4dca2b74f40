// A prompt's chunk over a past in the slow tier reads the next part of it while it attends to this one: the same bits
// of every logit as when it does not, less waiting, and whatever the disk does the call ends and the session goes on.
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "src/cancel.h"
#include "src/memory_plan.h"
#include "src/pipeline/past.h"
#include "tests/support/failing_calls.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/patience.h"
#include "tests/support/tiers.h"

using namespace wi;
using namespace wi::test;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int32_t kLayers = 3;
constexpr int kMore = 300;                         // tokens of a prompt after the past
#if defined(WI_SANITIZED) || defined(WI_EMULATED)  // where all takes a multiple of its time
const std::vector<const char*> kPolicies = kFew ? std::vector{"wave"} : std::vector{"full", "wave"};
constexpr int64_t kMostFaults = few_or(1, 3);  // of a kind
constexpr int64_t kParts = 2;                  // of a layer
#else
const std::vector<const char*> kPolicies = {"full", "wave", "blocks", "streaming"};
constexpr int64_t kMostFaults = 14;
constexpr int64_t kParts = 3;
#endif
// The last part is for the most part of what comes after it.
constexpr int64_t kPastTokens = (kParts - 1) * Past::kPartTokens + 700;

// What happens before a part is attended to.
std::function<void(const AttendChunkArgs&)> before_attending;
const Backend& watched_backend() {
  static const Backend backend = [] {
    Backend watched = cpu_backend();
    watched.attend_chunk = [](const Stream& stream, const AttendChunkArgs& args) {
      if (before_attending) before_attending(args);
      cpu_backend().attend_chunk(stream, args);
    };
    return watched;
  }();
  return backend;
}
struct Watching {
  explicit Watching(std::function<void(const AttendChunkArgs&)> before) {
    before_attending = std::move(before);
  }
  ~Watching() { before_attending = nullptr; }
};

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> shared = [] {
    ModelShape shape;
    shape.name = "ahead";
    shape.layers = kLayers;
    shape.head_dim = 32;
    return random_model(shape, DType::f32, seed());
  }();
  return shared;
}

Tiers watched(Tiers tiers) {
  tiers.backend = &watched_backend();
  return tiers;
}
TiersWorld world_of(const Tiers& tiers = {}) { return TiersWorld(watched(tiers), model()); }
TiersWorld fast_world() { return world_of({.slow = false}); }

// A session with a past that nobody had to compute. share: of the fast tier; 0: all of it, where there is room.
std::shared_ptr<Session> with_past(const TiersWorld& world, float share, const char* policy = "full",
                                   DType kv = DType::f16) {
  SessionParams params = world.params(share);
  params.policy = find_policy(world.runtime->backend, policy);
  params.policy_params.segment_tokens = 2048;
  params.policy_params.decode_segment_tokens = 256;
  params.kv = kv;
  const auto session = Session::create(world.runtime, world.model, params);
  const size_t width = size_t{2} * 32;
  const auto fill = [&](int32_t layer, int64_t first, int64_t count, float* keys, float* values) {
    uint32_t state = static_cast<uint32_t>(seed()) + static_cast<uint32_t>(layer * 1000003 + first);
    const auto number = [&] {
      state = state * 1664525 + 1013904223;
      return static_cast<float>(state >> 8) * 0x1p-23f - 1;
    };
    for (size_t i = 0; i < static_cast<size_t>(count) * width; ++i) keys[i] = number(), values[i] = number();
  };
  session->append_computed(random_prompt(kPastTokens), fill, nullptr);
  session->logits(nullptr);
  if (world.runtime->buffer) world.settle();
  return session;
}

std::vector<float> logits_of(Session& session) {
  const std::span<const float> logits = session.logits(nullptr);
  return {logits.begin(), logits.end()};
}
void read(Session& session, uint64_t salt = 1, int32_t chunk = 128, const CancelToken* cancel = nullptr) {
  session.prefill(random_prompt(kMore, salt), chunks_of(chunk), cancel);
}
// Of one that has everything in memory, after read().
const std::vector<float>& wanted_logits() {
  static const std::vector<float> wanted = [] {
    const TiersWorld world = fast_world();
    const auto session = with_past(world, 0);
    read(*session);
    return logits_of(*session);
  }();
  return wanted;
}

SpillStats file_stats(const TiersWorld& world) { return world.buffer().stats().file; }

// ---- The same bits ----

// Of each chunk's every row, of its last one, of none; over a past that is slow, half slow, and slow but for its end.
std::vector<float> life(const TiersWorld& world, float share, const char* policy, DType kv) {
  const auto session = with_past(world, share, policy, kv);
  std::vector<float> all;
  const auto add = [&](std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  add(session->logits(nullptr));
  read(*session, 1, 100);
  add(session->logits(nullptr));
  const std::vector<int32_t> ids = random_prompt(150, 2);
  std::vector<float> every(ids.size() * static_cast<size_t>(world.model->config.vocab));
  PrefillParams params = chunks_of(64);
  params.logits = every;
  session->prefill(ids, params, nullptr);
  add(every);
  for (int i = 0; i < 3; ++i) {
    session->accept(i, nullptr);
    add(session->logits(nullptr));
  }
  session->truncate(Past::kPartTokens + 100);
  read(*session, 3, 1000);
  add(session->logits(nullptr));
  return all;
}

void what_is_read_ahead_changes_no_bit(void**) {
  for (const char* policy : kPolicies) {
    for (const DType kv : {DType::f16, DType::f32}) {
      if (kv == DType::f32 && std::strcmp(policy, "wave") != 0) continue;
      const std::vector<float> wanted = life(fast_world(), 0, policy, kv);
      for (const float share : {0.01f, 0.5f}) {
        for (const bool ahead : {true, false}) {
          if (!ahead && test::kFew) continue;
          const TiersWorld world = world_of({.read_ahead = ahead});
          const std::vector<float> got = life(world, share, policy, kv);
          assert_int_equal(got.size(), wanted.size());
          assert_memory_equal(got.data(), wanted.data(), got.size() * sizeof(float));
          assert_true(file_stats(world).requests > 0);
        }
      }
    }
  }
}

// ---- Beside the work ----

// What has been read when each part is attended to, in requests, and after all.
std::vector<uint64_t> read_before_each_part(const TiersWorld& world, Session& session) {
  std::vector<uint64_t> requests;
  const uint64_t first = file_stats(world).requests;
  const auto note = [&] { requests.push_back(file_stats(world).requests - first); };
  const Watching watching([&](const AttendChunkArgs&) { note(); });
  session.prefill(random_prompt(100, 1), {}, nullptr);
  note();
  return requests;
}

// Attention to each part waits here until the next one has been read: for ever, if nobody does.
void the_next_part_is_read_while_this_one_is_attended_to(void**) {
  const TiersWorld after = world_of({.read_ahead = false}), beside = world_of();
  const auto session = with_past(after, 0.01f);
  const std::vector<uint64_t> needed = read_before_each_part(after, *session);
  const auto other = with_past(beside, 0.01f);
  const uint64_t first = file_stats(beside).requests;
  size_t part = 0, ahead = 0;
  const Watching watching([&](const AttendChunkArgs&) {
    ++part;
    const Clock::time_point start = Clock::now();
    while (file_stats(beside).requests - first < needed[part]) {
      if (Clock::now() - start > std::chrono::seconds(60))
        fail_because("part %zu was not read while the one before it was attended to", part);
      std::this_thread::sleep_for(milliseconds(1));
    }
    ahead += needed[part] > needed[part - 1];
  });
  other->prefill(random_prompt(100, 1), {}, nullptr);
  std::printf("  %zu parts of %zu were read ahead\n", ahead, part);
  assert_int_equal(part, kLayers * kParts);
  assert_int_equal(ahead, kLayers * kParts - 1);  // all but the first
  assert_true(logits_of(*other) == logits_of(*session));
}

// Reads by threads or by the ring take 100 ms each from now on.
void slow_down(bool ring) { arm(ring ? kSubmit : kPread, kSlow); }

// What comes after it is of a ring that was slow, or failed.
void skip_without_rings() {
  if (rings_are_to_be_had()) return;
  std::printf("  not tested further: there is no io_uring to be had\n");
  skip();
}

// With a slow disk and attention that takes longer, nothing is waited for from the second part on. What is read is
// the same.
void statistics_count_the_time_that_calls_waited(void**) {
  const auto statistics = [](bool ahead) {
    const TiersWorld world = world_of({.read_ahead = ahead});
    const auto session = with_past(world, 0.01f);
    std::vector<SpillStats> parts;
    const SpillStats before = file_stats(world);
    {
      const Watching watching([&](const AttendChunkArgs&) {
        parts.push_back(file_stats(world));
        std::this_thread::sleep_for(milliseconds(250));
      });
      slow_down(true);
      session->prefill(random_prompt(20, 1), {}, nullptr);
      disarm();
    }
    const SpillStats after = file_stats(world);
    assert_int_equal(parts.size(), kLayers * kParts);
    SpillStats now;
    now.wait_ns = parts.back().wait_ns - parts[0].wait_ns;
    now.stalls = parts.back().stalls - parts[0].stalls;
    now.requests = after.requests - before.requests;
    now.wanted_bytes = after.wanted_bytes - before.wanted_bytes;
    std::printf("  %s: waited %.0f ms in %llu calls, %llu requests, %.1f MB\n",
                ahead ? "ahead" : "when wanted", static_cast<double>(now.wait_ns) * 1e-6,
                static_cast<unsigned long long>(now.stalls), static_cast<unsigned long long>(now.requests),
                static_cast<double>(now.wanted_bytes) * 1e-6);
    return now;
  };
  const SpillStats wanted = statistics(false);
  const bool was_slow = fault.happened;
  assert_int_equal(wanted.stalls, kLayers * kParts - 1);
  const double waited = least_of_tries(1, [&] {
    const SpillStats ahead = statistics(true);
    assert_int_equal(ahead.requests, wanted.requests);
    assert_int_equal(ahead.wanted_bytes, wanted.wanted_bytes);
    return static_cast<double>(ahead.stalls + ahead.wait_ns);
  });
  assert_in_time(waited == 0);
  skip_without_rings();
  assert_true(was_slow && wanted.wait_ns >= uint64_t{kLayers * kParts - 1} * 100'000'000);
}

// An engine's thread that waits for the disk goes on writing for others.
void a_wait_for_the_disk_is_a_break(void**) {
  struct Others final : Breaks {
    bool due() override { return true; }
    void take() override { ++taken; }
    int taken = 0;
  };
  int taken[2];
  for (const bool ahead : {false, true}) {
    const TiersWorld world = world_of({.read_ahead = ahead});
    const auto session = with_past(world, 0.01f);
    read(*session, 5);
    Others others;
    PrefillParams params;
    params.breaks = &others;
    slow_down(true);
    session->prefill(random_prompt(100, 1), params, nullptr);
    disarm();
    taken[ahead] = others.taken;
  }
  std::printf("  %d breaks, %d with reading ahead\n", taken[0], taken[1]);
  skip_without_rings();
  assert_true(fault.happened);
  assert_in_time(taken[1] > taken[0] + 100);  // of 800 ms
}

// ---- Faults ----

// Each of a chunk's calls of the system fails once: the call says so, and works the second time.
void each_read_may_fail_once(void**) {
  const std::vector<float>& wanted = wanted_logits();
  const bool rings = rings_are_to_be_had();
  struct Case {
    bool ring;
    Function function;
    int what;
  };
  for (const Case one : {Case{false, kPread, EIO},
                         {false, kPread, kEnd},
                         {false, kPread, kShort},
                         {true, kSubmit, EBADF},
                         {true, kCompletion, EIO},
                         {true, kCompletion, kShort}}) {
    without_rings = !one.ring;
    const TiersWorld world = world_of();
    const auto base = with_past(world, 0.01f);
    const std::vector<float> before = logits_of(*base);
    arm(kFunctions, 0);
    {
      const auto session = base->fork();
      read(*session);
      assert_true(logits_of(*session) == wanted);
    }
    const int64_t count = fault.calls[one.function];
    const int64_t step = std::getenv("WI_TEST_ALL") ? 1 : count / kMostFaults + 1;
    int failed = 0, lives = 0;
    for (int64_t number = 0; number < count; number += step, ++lives) {
      const auto session = base->fork();
      arm(one.function, one.what, number, number);
      try {
        read(*session);
      } catch (const Error& error) {
        if (error.code() != WI_E_IO || error.native_code() != EIO || one.ring || one.what != EIO)
          fail_because("%s %lld fails: status %d: %s", kNames[one.function], static_cast<long long>(number),
                       error.code(), error.what());
        ++failed;
        assert_int_equal(session->stats().tokens, kPastTokens);
        assert_true(logits_of(*session) == before);
        read(*session);
      }
      disarm();
      if (logits_of(*session) != wanted)
        fail_because("%s %lld fails: other logits", kNames[one.function], static_cast<long long>(number));
    }
    std::printf("  %d of %d calls with %s said so (%lld such)\n", failed, lives, kNames[one.function],
                static_cast<long long>(count));
    assert_true((count > 0) == (rings || !one.ring));
    assert_true((one.what == EIO && !one.ring) == (failed > 0));
  }
  without_rings = false;
  skip_without_rings();
}

// Milliseconds from the cancelling of a call, so long after its beginning, to its end.
double milliseconds_to_end(milliseconds after, const std::function<void(const CancelToken*)>& call) {
  CancelToken cancel;
  Clock::time_point cancelled;
  std::thread canceller([&] {
    std::this_thread::sleep_for(after);
    cancelled = Clock::now();
    cancel.flag = true;
  });
  assert_error(WI_E_CANCELLED, "cancelled", call(&cancel));
  const Clock::time_point ended = Clock::now();
  canceller.join();
  return std::chrono::duration<double, std::milli>(ended - cancelled).count();
}

// Whether it waits for a part, or attends to one while the next is being read.
void a_chunk_is_cancelled_within_a_reads_time(void**) {
  constexpr double kLimit = 240;  // a read that has begun, and the sleep here that it meets
  for (const bool ring : {true, false}) {
    if (ring && !rings_are_to_be_had()) continue;
    without_rings = !ring;
    const TiersWorld world = world_of();
    const auto session = with_past(world, 0.01f);
    const std::vector<float> before = logits_of(*session);
    double most = 0;
    for (const int attending : {0, 60}) {
      for (const int after : {10, 130, 260}) {
        const Watching watching(
            [&](const AttendChunkArgs&) { std::this_thread::sleep_for(milliseconds(attending)); });
        most = std::max(most, least_of_tries(kLimit, [&] {
                          slow_down(ring);
                          const double took = milliseconds_to_end(
                              milliseconds(after),
                              [&](const CancelToken* cancel) { read(*session, 1, 128, cancel); });
                          disarm();
                          assert_int_equal(session->stats().tokens, kPastTokens);
                          assert_true(logits_of(*session) == before);
                          return took;
                        }));
      }
    }
    std::printf("  %s: cancelled within %.0f ms\n", ring ? "ring" : "threads", most);
    assert_in_time(most < kLimit);
    read(*session);
    assert_true(logits_of(*session) == wanted_logits());
  }
  without_rings = false;
  skip_without_rings();
}

// Handles go in any order and at any time; the thread has ended when the last one has.
void a_runtime_ends_when_a_call_that_read_ahead_has_failed(void**) {
  for (const int after : {5, 120}) {
    auto world = std::make_unique<TiersWorld>(watched({}), model());
    auto session = with_past(*world, 0.01f);
    slow_down(rings_are_to_be_had());
    milliseconds_to_end(milliseconds(after),
                        [&](const CancelToken* cancel) { read(*session, 1, 128, cancel); });
    disarm();
    world.reset();
    session.reset();
  }
}

#ifdef WI_SANITIZED
void without_a_thread_the_chunk_reads_itself(void**) { skip(); }  // threads are not to be refused
void a_child_of_fork_waits_for_no_thread(void**) { skip(); }      // nor are processes to be copied
#else
void without_a_thread_the_chunk_reads_itself(void**) {
  const TiersWorld world = world_of();
  const auto session = with_past(world, 0.01f);
  threads_allowed = 0;
  read(*session);
  assert_true(threads_allowed < 0);  // one was asked for
  threads_allowed = INT32_MAX;
  assert_true(logits_of(*session) == wanted_logits());
}

void a_child_of_fork_waits_for_no_thread(void**) {
  const TiersWorld world = world_of();
  auto ahead = std::make_unique<ReadAhead>(world.buffer().file());
  std::fflush(stdout);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(patience(20));
    ahead.reset();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

// ---- Memory ----

// The next part goes where this one was before it was unpacked: there is nothing more that could find no room.
void reading_ahead_takes_no_memory_of_its_own(void**) {
  uint64_t scratch[2], peak[2];
  for (const bool ahead : {false, true}) {
    const TiersWorld world = world_of({.read_ahead = ahead});
    const auto session = with_past(world, 0.01f);
    read(*session, 1, 256);
    scratch[ahead] = world.runtime->scratch_bytes();
    peak[ahead] = world.runtime->pool->peak();
    SessionParams params = session->params();
    const wi_memory_plan plan = plan_memory(*world.runtime, *world.model, params, kPastTokens + kMore);
    std::printf("  %s: scratch %llu of %llu planned\n", ahead ? "ahead" : "when wanted",
                static_cast<unsigned long long>(scratch[ahead]),
                static_cast<unsigned long long>(plan.scratch_bytes));
    assert_true(scratch[ahead] <= plan.scratch_bytes);
  }
  assert_int_equal(scratch[0], scratch[1]);
  assert_int_equal(peak[0], peak[1]);
}

// Of a budget that holds little more than what must be in it.
void the_least_budget_is_enough_for_reading_ahead(void**) {
  const TiersWorld roomy = world_of();
  SessionParams params = with_past(roomy, 0.01f)->params();
  const wi_memory_plan plan = plan_memory(*roomy.runtime, *roomy.model, params, kPastTokens + kMore + 1);
  const TiersWorld world = world_of({.kv_budget_bytes = plan.fast_bytes});
  assert_int_equal(plan_memory(*world.runtime, *world.model, params, kPastTokens + kMore + 1).fits, 1);
  const auto session = with_past(world, 0);
  read(*session);
  assert_true(session->sequence().slow_segments() > 0);
  assert_true(logits_of(*session) == wanted_logits());
  assert_true(world.runtime->pool->peak() <= plan.fast_bytes);
}

// ---- What changes meanwhile ----

// A chunk sees the tiers as they were when it began, whether it knew of none in the slow tier or of some.
void a_segment_that_leaves_meanwhile_is_read_where_it_was(void**) {
  for (const size_t slow_before : {0, 3}) {
    for (const int leaves_at : {0, 2, 5}) {
      const TiersWorld world = world_of();
      const auto session = with_past(world, 0);
      const auto now = session->sequence().segments();
      const std::vector<std::shared_ptr<const Segment>> segments(now.begin(), now.end());
      for (size_t i = 0; i < slow_before; ++i) segments[i]->demote(world.buffer());
      int part = 0;
      const Watching watching([&](const AttendChunkArgs&) {
        if (part++ != leaves_at) return;
        for (const auto& segment : session->sequence().segments()) segment->demote(world.buffer());
      });
      read(*session);
      for (const auto& segment : segments) assert_non_null(segment->slow());
      assert_true(logits_of(*session) == wanted_logits());
    }
  }
}

// What lies in a saved session is held against its checksums, as what is read when it is wanted.
void damage_in_a_saved_session_is_refused_and_costs_no_token(void**) {
  const TiersWorld fast = fast_world(), world = world_of();
  const std::string path = world.folder.file("saved");
  uint64_t bytes = 0;
  {
    const auto session = with_past(fast, 0);
    session->save(path, nullptr);
    bytes = session->sequence().segments().size() * session->sequence().segments()[0]->kv_bytes();
  }
  const auto session = Session::load(
      world.runtime, world.model, path, [](const SessionParams& saved) { return saved; }, nullptr);
  assert_true(session->sequence().slow_segments() > 0);
  const std::vector<float> before = logits_of(*session);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  const auto size = static_cast<uint64_t>(std::filesystem::file_size(path));
  std::mt19937_64 random(seed());
  int refused = 0;
  for (int tries = 0; tries < 12; ++tries) {
    // Keys and values are most of the file.
    const auto at = static_cast<off_t>(random() % size);
    char byte = 0;
    assert_int_equal(syscall(SYS_pread64, file, &byte, 1, at), 1);
    const char other = static_cast<char>(byte ^ 1);
    assert_int_equal(syscall(SYS_pwrite64, file, &other, 1, at), 1);
    try {
      const auto fork = session->fork();
      read(*fork);
      assert_true(logits_of(*fork) == wanted_logits());
    } catch (const Error& error) {
      assert_int_equal(error.code(), WI_E_FORMAT);
      ++refused;
    }
    assert_int_equal(syscall(SYS_pwrite64, file, &byte, 1, at), 1);
    assert_true(logits_of(*session) == before);
  }
  close(file);
  std::printf("  %d of 12 damaged bytes of %llu were of keys and values (%llu)\n", refused,
              static_cast<unsigned long long>(size), static_cast<unsigned long long>(bytes));
  assert_true(refused > 0);
  read(*session);
  assert_true(logits_of(*session) == wanted_logits());
}

// Chunks of several sessions at once, each with a reader of its own, beside one that writes.
void sessions_read_ahead_beside_each_other(void**) {
  const TiersWorld world = world_of();
  const auto base = with_past(world, 0.01f);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, own = base->fork()] {
      for (int round = 0; round < 2; ++round) {
        const auto fork = own->fork();
        read(*fork);
        wrong += logits_of(*fork) != wanted_logits();
      }
    });
  const auto writer = base->fork();
  for (int i = 0; i < 20; ++i) writer->decode(nullptr);
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(wrong, 0);
}

}  // namespace

int main() {
  wanted_logits();
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_read_ahead_changes_no_bit),
      cmocka_unit_test(the_next_part_is_read_while_this_one_is_attended_to),
      cmocka_unit_test(statistics_count_the_time_that_calls_waited),
      cmocka_unit_test(a_wait_for_the_disk_is_a_break),
      cmocka_unit_test(each_read_may_fail_once),
      cmocka_unit_test(a_chunk_is_cancelled_within_a_reads_time),
      cmocka_unit_test(a_runtime_ends_when_a_call_that_read_ahead_has_failed),
      cmocka_unit_test(without_a_thread_the_chunk_reads_itself),
      cmocka_unit_test(a_child_of_fork_waits_for_no_thread),
      cmocka_unit_test(reading_ahead_takes_no_memory_of_its_own),
      cmocka_unit_test(the_least_budget_is_enough_for_reading_ahead),
      cmocka_unit_test(a_segment_that_leaves_meanwhile_is_read_where_it_was),
      cmocka_unit_test(damage_in_a_saved_session_is_refused_and_costs_no_token),
      cmocka_unit_test(sessions_read_ahead_beside_each_other),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
