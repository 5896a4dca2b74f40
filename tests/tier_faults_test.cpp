// Two tiers under faults: a disk that fails, fills up or is slow, and a manager that stalls. Each call ends in a
// status that says why or goes on, and what a session says is what it says with everything in memory.
#include <functional>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "src/cancel.h"
#include "src/memory_plan.h"
#include "tests/support/failing_calls.h"
#include "tests/support/fewer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tiers.h"

using namespace wi;
using namespace wi::test;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::shared_ptr<const Model>& model() {
  static const std::shared_ptr<const Model> shared = TiersWorld::make_model();
  return shared;
}
TiersWorld world_of(const Tiers& tiers = {}) { return TiersWorld(tiers, model()); }

std::vector<float> logits_of(Session& session) {
  const std::span<const float> logits = session.logits(nullptr);
  return {logits.begin(), logits.end()};
}

// ---- A disk that fails ----

struct FaultCase {
  Function function;
  int what;
  bool is_the_disks = false;  // and not to be got round: the call says so, and works the second time
};
constexpr FaultCase kFaults[] = {
    {kOpen, EOPNOTSUPP},
    {kOpen, EINTR},
    {kOpen, EIO},
    {kFcntl, EINVAL},
    {kStatx, ENOSYS},
    {kPread, EIO, true},
    {kPread, EINTR},
    {kPread, kShort},
    {kPread, kEnd},
    {kPwrite, EIO, true},
    {kPwrite, ENOSPC, true},
    {kPwrite, EINTR},
    {kPwrite, kShort},
    {kPwrite, kEnd},
    {kFallocate, ENOSPC, true},
    {kFallocate, EINTR},
    {kFallocate, EOPNOTSUPP},
    {kFallocate, EIO, true},
    {kPunch, EOPNOTSUPP},
    {kPunch, EIO},
    {kPunch, EINTR},
    {kTruncate, EIO},
    {kSync, EIO, true},
    {kSync, ENOSPC, true},
    {kAdvise, EINVAL},
    {kRing, ENOSYS},
    {kRing, EPERM},
    {kRing, ENOMEM},
    {kSubmit, EINTR},
    {kSubmit, EAGAIN},
    {kSubmit, EBUSY},
    {kSubmit, EBADF},
    {kCompletion, EIO},
    {kCompletion, EINTR},
    {kCompletion, EAGAIN},
    {kCompletion, ECANCELED},
    {kCompletion, kShort},
    {kCompletion, kEnd},
};

// A life, each call of which goes through attempt(call).
using Call = std::function<void()>;
using Life = std::function<std::vector<float>(const std::function<void(const Call&)>& attempt)>;

// One in which a call of the system fails once.
void live_with(const FaultCase& one, int64_t number, const Life& life, const std::vector<float>& wanted) {
  arm(one.function, one.what, number, number);
  const std::vector<float> got = life([&](const Call& call) {
    try {
      return call();
    } catch (const Error& error) {
      // A file that ends too early, or seems to, is damaged.
      const bool says_so = error.code() == WI_E_IO ? error.native_code() == std::max(one.what, 0)
                                                   : one.what < 0 && error.code() == WI_E_FORMAT;
      if (!fault.happened || !one.is_the_disks || !says_so)
        fail_because("%s %lld fails with %d: status %d (native %lld): %s", kNames[one.function],
                     static_cast<long long>(number), one.what, error.code(),
                     static_cast<long long>(error.native_code()), error.what());
    }
    call();
  });
  assert_true(got == wanted);
  disarm();
}

// The first call of each function and some by chance; WI_TEST_ALL=1: each.
void each_call_may_fail_once_in(const Life& life, const std::vector<float>& wanted,
                                std::span<const FaultCase> faults) {
  std::mt19937_64 random(test::seed());
  for (const bool ring : {true, false}) {
    without_rings = !ring;
    arm(kFunctions, 0);
    assert_true(life([](const Call& call) { call(); }) == wanted);
    std::array<int64_t, kFunctions> calls{};
    for (size_t i = 0; i < kFunctions; ++i) calls[i] = fault.calls[i];
    int lives = 0;
    for (const FaultCase& one : faults) {
      if (!ring && one.function != kPread) continue;  // the rest is the same
      const int64_t count = calls[one.function];
      std::set<int64_t> numbers;
      if (std::getenv("WI_TEST_ALL"))
        for (int64_t n = 0; n < count; ++n) numbers.insert(n);
      for (int i = 0; i < 2 && count > 0; ++i)
        numbers.insert(static_cast<int64_t>(i == 0 ? 0 : random() % static_cast<uint64_t>(count)));
      for (const int64_t number : numbers) live_with(one, number, life, wanted), ++lives;
    }
    std::printf("  %s: %d lives with a fault;", ring ? "ring" : "threads", lives);
    for (size_t i = 0; i < kFunctions; ++i)
      if (calls[i]) std::printf(" %s %lld", kNames[i], static_cast<long long>(calls[i]));
    std::printf("\n");
  }
  without_rings = false;
}

void each_call_of_the_system_may_fail_once(void**) {
  const std::vector<float> wanted = life_of(world_of({.slow = false}), 0);
  each_call_may_fail_once_in(
      [](const auto& attempt) {
        std::optional<TiersWorld> world;
        attempt([&] { world.emplace(Tiers{}, model()); });
        return life_of(*world, 0.3f, attempt);
      },
      wanted, kFaults);
}

void each_call_may_fail_once_below_a_store(void**) {
  const auto plainly = [](const auto& call) { call(); };
  for (const char* policy : {"wave", "full"}) {
    const uint64_t little = little_for_a_store(model(), policy, plainly);
    each_call_may_fail_once_in(
        [&](const auto& attempt) {
          std::optional<TiersWorld> world;
          attempt([&] { world.emplace(Tiers{.kv_budget_bytes = little}, model()); });
          return life_of_a_store(*world, policy, attempt);
        },
        life_of_a_store(world_of({.slow = false}), policy, plainly), kFaults);
  }
}

// Of a session that is loaded in place: what it reads at first, and what its steps read.
void each_call_on_a_saved_file_may_fail_once(void**) {
  constexpr FaultCase kOfReading[] = {
      {kOpen, EIO, true},   {kOpen, EMFILE, true}, {kOpen, EINTR},      {kFcntl, EINVAL},
      {kStatx, ENOSYS},     {kPread, EIO, true},   {kPread, EINTR},     {kPread, kShort, true},
      {kPread, kEnd, true}, {kAdvise, EINVAL},     {kRing, ENOMEM},     {kSubmit, EBADF},
      {kCompletion, EIO},   {kCompletion, kShort}, {kCompletion, kEnd},
  };
  const Folder folder;
  const std::string path = folder.file("saved");
  {
    const TiersWorld fast = world_of({.slow = false});
    const auto session = fast.session(0);
    session->prefill(random_prompt(900), chunks_of(150), nullptr);
    session->save(path, nullptr);
  }
  const auto life = [&](bool slow, const auto& attempt) {
    std::optional<TiersWorld> world;
    attempt([&] { world.emplace(Tiers{.slow = slow}, model()); });
    std::vector<float> all;
    std::shared_ptr<Session> session;
    const auto as_saved = [&](SessionParams params) {
      params.kv_fast_share = slow ? 0.1f : 0;
      return params;
    };
    attempt([&] { session = Session::load(world->runtime, world->model, path, as_saved, nullptr); });
    assert_int_equal(session->sequence().slow_segments() > 0, slow);
    const auto look = [&] {
      attempt([&] { session->logits(nullptr); });
      const std::vector<float> logits = logits_of(*session);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    for (int32_t i = 0; i < 5; ++i) {
      attempt([&] { session->accept(i, nullptr); });
      look();
    }
    attempt([&] { session->prefill(random_prompt(200, 1), chunks_of(100), nullptr); });
    look();
    attempt([&] { session->truncate(600); });
    look();
    SavedBytes saved;
    attempt([&] {
      saved.of.clear();
      session->save(saved, nullptr);
    });
    return all;
  };
  const std::vector<float> wanted = life(false, [](const auto& call) { call(); });
  saved_files_too = true;
  each_call_may_fail_once_in([&](const auto& attempt) { return life(true, attempt); }, wanted, kOfReading);
  saved_files_too = false;
}

// ---- A disk that fills up ----

// What comes after so many of its calls fails, until there is room again.
void fill_the_disk(Function function, int64_t after) { arm(function, ENOSPC, after); }

void a_disk_that_fills_up_while_a_prompt_is_read_costs_nothing(void**) {
  const std::vector<int32_t> ids = random_prompt(1500);
  const TiersWorld fast = world_of({.slow = false});
  const auto expected = fast.session(0);
  expected->prefill({ids.data(), 500}, chunks_of(150), nullptr);
  expected->prefill({ids.data() + 500, 1000}, chunks_of(150), nullptr);
  const std::vector<float> wanted = logits_of(*expected);
  for (const Function function : {kFallocate, kPwrite}) {
    for (const int64_t after : {0, 1, 3}) {
      const TiersWorld world = world_of();
      const auto session = world.session(0.05f);
      session->prefill({ids.data(), 500}, chunks_of(150), nullptr);
      const std::vector<float> before = logits_of(*session);
      fill_the_disk(function, after);
      for (int tries = 0; tries < 2; ++tries) {
        assert_error(WI_E_IO, "No space left on device",
                     session->prefill({ids.data() + 500, 1000}, chunks_of(150), nullptr));
        assert_int_equal(session->stats().tokens, 500);
        assert_true(logits_of(*session) == before);
      }
      disarm();
      session->prefill({ids.data() + 500, 1000}, chunks_of(150), nullptr);
      assert_true(logits_of(*session) == wanted);
    }
  }
}

// It costs nothing either where memory has room for all, and where it has not the call says why.
void what_a_full_disk_refuses_stays_in_memory(void**) {
  const std::vector<int32_t> ids = random_prompt(1500);
  const TiersWorld fast = world_of({.slow = false});
  const auto expected = fast.session(0);
  expected->prefill(ids, chunks_of(150), nullptr);
  const std::vector<float> wanted = logits_of(*expected);
  const uint64_t needed = fast.runtime->pool->peak();
  for (const Function function : {kFallocate, kPwrite}) {
    for (const int64_t after : {0, 1, 3}) {
      for (const bool enough : {true, false}) {
        if (!enough && after > 0) continue;
        const TiersWorld world = world_of({.kv_budget_bytes = enough ? needed : needed / 2});
        const auto session = world.session(0);
        fill_the_disk(function, after);
        if (enough) {
          session->prefill(ids, chunks_of(150), nullptr);
          assert_true(fault.happened);
        } else {
          assert_error(WI_E_IO, "No space left on device", session->prefill(ids, chunks_of(150), nullptr));
          assert_int_equal(session->stats().tokens, 0);
          disarm();
          session->prefill(ids, chunks_of(150), nullptr);
        }
        assert_true(logits_of(*session) == wanted);
        disarm();
      }
    }
  }
}

// While decoding, segments leave beside the steps, which go on without it as long as memory has room.
void a_disk_that_fills_up_while_decoding_stops_no_step(void**) {
  const std::vector<int32_t> ids = random_prompt(500);
  const TiersWorld fast = world_of({.slow = false}), world = world_of();
  const auto expected = fast.session(0), session = world.session(0.05f);
  for (Session* one : {expected.get(), session.get()}) one->prefill(ids, chunks_of(150), nullptr);
  for (const Function function : {kFallocate, kPwrite}) {
    const size_t slow_before = session->sequence().slow_segments();
    fill_the_disk(function, 0);
    const auto decode = [&](int steps) {
      for (int i = 0; i < steps; ++i) {
        for (Session* one : {expected.get(), session.get()}) one->accept(i % 100, nullptr);
        assert_true(logits_of(*session) == logits_of(*expected));
      }
    };
    const auto decode_until = [&](auto&& holds) {  // the manager has done its part
      for (int tries = 0; !holds(); ++tries) {
        assert_true(tries < 2000);
        decode(1);
        std::this_thread::sleep_for(milliseconds(1));
      }
    };
    decode(150);
    decode_until([] { return fault.happened.load(); });
    assert_int_equal(session->sequence().slow_segments(), slow_before);
    disarm();
    decode_until([&] { return session->sequence().slow_segments() > slow_before; });
  }
}

// Where memory is what the session must have, a step that gets none says so.
void a_full_disk_and_a_full_memory_are_a_status(void**) {
  const std::vector<int32_t> ids = random_prompt(900);
  const TiersWorld fast = world_of({.slow = false}), world = world_of();
  const auto expected = fast.session(0);
  expected->prefill(ids, chunks_of(150), nullptr);
  SessionParams params = world.params(0);
  params.kv_budget_bytes = expected->stats().kv_bytes * 3 / 4;
  const auto session = Session::create(world.runtime, world.model, params);
  session->prefill(ids, chunks_of(150), nullptr);
  fill_the_disk(kFallocate, 0);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    for (Session* one : {expected.get(), session.get()}) one->accept(i % 100, nullptr);
    const std::vector<float> wanted = logits_of(*expected);
    try {
      session->logits(nullptr);
    } catch (const Error& error) {
      assert_int_equal(error.code(), WI_E_IO);
      assert_int_equal(error.native_code(), ENOSPC);
      const uint64_t tokens = session->stats().tokens;
      assert_error(WI_E_IO, "No space left on device", session->logits(nullptr));
      assert_int_equal(session->stats().tokens, tokens);
      ++refused;
      disarm();
    }
    assert_true(logits_of(*session) == wanted);
    if (refused && i % 100 == 0) fill_the_disk(kFallocate, 0);
  }
  disarm();
  std::printf("  %d steps had to be asked for again\n", refused);
  assert_true(refused > 0);
}

// ---- A slow disk ----

// Reading by the ring, where there is one to be had, and by threads.
std::vector<bool> with_ring_or_not() {
  if (rings_are_to_be_had()) return {true, false};
  std::printf("  by threads only: there is no io_uring to be had\n");
  return {false};
}

double milliseconds_of(const std::function<void()>& call) {
  const Clock::time_point start = Clock::now();
  call();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Reads by threads or by the ring take 100 ms each from now on.
void slow_down(bool ring) { arm(ring ? kSubmit : kPread, kSlow); }

// A world whose readers are made, and a session in it of which next to nothing is in memory.
struct SlowDisk {
  explicit SlowDisk(bool ring) : world((without_rings = !ring, world_of())), session(world.session(0.01f)) {
    session->prefill(ids, chunks_of(150), nullptr);
    expected->prefill(ids, chunks_of(150), nullptr);
    step(3);
  }
  ~SlowDisk() {
    disarm();
    without_rings = false;
  }
  void step(int32_t token) const {
    for (Session* one : {expected.get(), session.get()}) one->accept(token, nullptr);
    assert_true(logits_of(*session) == logits_of(*expected));
  }
  const std::vector<int32_t> ids = random_prompt(900);
  TiersWorld world;
  const TiersWorld fast = world_of({.slow = false});
  std::shared_ptr<Session> session, expected = fast.session(0);
};

void a_slow_disk_changes_no_token(void**) {
  for (const bool ring : with_ring_or_not()) {
    SlowDisk disk(ring);
    slow_down(ring);
    for (int32_t token = 10; token < 13; ++token) disk.step(token);
    const std::vector<int32_t> more = random_prompt(100, 1);
    for (Session* one : {disk.session.get(), disk.expected.get()}) one->prefill(more, {}, nullptr);
    assert_true(fault.happened);
    disk.step(13);
  }
}

// Threads that wait for nobody's reads but their own.
void sessions_that_miss_nothing_do_not_wait_for_others_reads(void**) {
  for (const bool ring : with_ring_or_not()) {
    SlowDisk disk(ring);
    const auto other = disk.world.session(0);
    other->prefill(disk.ids, chunks_of(150), nullptr);
    slow_down(ring);
    std::atomic<bool> done{false};
    std::thread slow([&] {
      for (int32_t token = 10; token < 13; ++token) {
        disk.session->accept(token, nullptr);
        disk.session->logits(nullptr);
      }
      done = true;
    });
    std::vector<double> times;
    while (!done && times.size() < 10000)
      times.push_back(milliseconds_of([&] {
        other->accept(static_cast<int32_t>(times.size() % 100), nullptr);
        other->logits(nullptr);
      }));
    slow.join();
    std::sort(times.begin(), times.end());
    std::printf("  %s: %zu steps beside 3, %.2f ms each\n", ring ? "ring" : "threads", times.size(),
                times[times.size() / 2]);
    assert_true(times.size() > 10);  // of waiting ones there would be a few
    assert_in_time(times[times.size() / 2] < 50);
  }
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

// Two sessions whose prompts leave the fast tier at 100 ms a write, which go one at a time.
void a_call_is_cancelled_while_it_writes_or_waits_for_others_writes(void**) {
  constexpr double kLimit = 260;  // a write of one's own, and the block that it shares with the next
  const TiersWorld world = world_of(), fast = world_of({.slow = false});
  const std::vector<int32_t> ids[] = {random_prompt(3000), random_prompt(900, 1)};
  const std::shared_ptr<Session> sessions[] = {world.session(0.01f), world.session(0.01f)};
  arm(kPwrite, kSlow);
  std::atomic<bool> done{false};
  std::thread other([&] {
    sessions[0]->prefill(ids[0], chunks_of(150), nullptr);
    done = true;
  });
  double longest = 0;
  for (int after = 200; after <= 600; after += 100) {
    longest = std::max(longest, least_of_tries(kLimit, [&] {
                         const double took =
                             milliseconds_to_end(milliseconds(after), [&](const CancelToken* cancel) {
                               sessions[1]->prefill(ids[1], chunks_of(150), cancel);
                             });
                         assert_int_equal(sessions[1]->stats().tokens, 0);
                         return took;
                       }));
  }
  const bool beside = !done;
  other.join();
  assert_true(fault.happened);
  disarm();
  std::printf("  cancelled within %.0f ms\n", longest);
  assert_in_time(beside && longest < kLimit);
  for (size_t i = 0; i < 2; ++i) {
    const auto expected = fast.session(0);
    expected->prefill(ids[i], chunks_of(150), nullptr);
    if (i) sessions[i]->prefill(ids[i], chunks_of(150), nullptr);
    assert_true(logits_of(*sessions[i]) == logits_of(*expected));
  }
}

// What leaves the fast tier at 100 ms a write does so beside the steps, which go on with what is in memory.
void steps_do_not_wait_for_what_is_written_beside_them(void**) {
  constexpr double kLimit = 300;  // with one segment's writes in it a step would take 400
  const std::vector<int32_t> ids = random_prompt(500);
  const TiersWorld fast = world_of({.slow = false});
  const double longest = least_of_tries(kLimit, [&] {
    const TiersWorld world = world_of();
    const auto expected = fast.session(0), session = world.session(0.05f);
    for (Session* one : {expected.get(), session.get()}) one->prefill(ids, chunks_of(150), nullptr);
    world.settle();
    const auto segments = [&] { return session->sequence().segments().size(); };
    const size_t before = segments();
    arm(kPwrite, kSlow);
    double longest_step = 0;
    for (int i = 0; segments() < before + 6; ++i) {
      assert_true(i < 1000);
      expected->accept(i % 100, nullptr);
      const std::vector<float> wanted = logits_of(*expected);
      longest_step = std::max(longest_step, milliseconds_of([&] {
                                session->accept(i % 100, nullptr);
                                session->logits(nullptr);
                              }));
      assert_true(logits_of(*session) == wanted);
    }
    world.settle();
    const int64_t writes = fault.calls[kPwrite];
    disarm();
    std::printf("  %lld writes, the longest step took %.1f ms\n", static_cast<long long>(writes),
                longest_step);
    assert_true(writes >= 20);  // some segments, of four planes each
    return longest_step;
  });
  assert_in_time(longest < kLimit);
}

// A segment that leaves at 100 ms a write, and beside it a session that misses in each of its steps: the manager hears
// of them between two writes, and so what they miss finds frames.
void what_steps_miss_beside_a_write_is_kept(void**) {
  ModelShape shape;
  shape.layers = shape.query_heads = shape.kv_heads = 4;
  shape.head_dim = 32;
  const int64_t planes = int64_t{shape.layers} * shape.kv_heads;  // each is written at once
  const auto several = random_model(shape, DType::f32, seed());
  for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
    const TiersWorld world({.manager = manager}, several), fast({.slow = false}, several);
    const auto leaving = world.session(0.05f), missing = world.session(0.15f), expected = fast.session(0);
    leaving->prefill(random_prompt(200), {}, nullptr);
    const std::vector<int32_t> ids = random_prompt(1500, 1);
    for (Session* one : {expected.get(), missing.get()}) one->prefill(ids, chunks_of(150), nullptr);
    auto step = [&, token = 0]() mutable {
      token = (token + 1) % 100;
      for (Session* one : {expected.get(), missing.get()}) one->accept(token, nullptr);
      assert_true(logits_of(*missing) == logits_of(*expected));
    };
    for (int i = 0; i < 20; ++i) {
      step();
      world.settle();
    }
    arm(kPwrite, kSlow);
    for (int i = 0; !fault.happened; ++i) {
      assert_true(i < 1000);
      leaving->accept(i % 100, nullptr);
      leaving->logits(nullptr);
    }
    const wi_session_stats before = missing->stats();
    int steps = 0;
    for (int64_t writes; (writes = fault.calls[kPwrite]) < planes - 2; ++steps) {
      step();
      while (fault.calls[kPwrite] < writes + 2) std::this_thread::sleep_for(milliseconds(1));
    }
    world.settle();
    disarm();
    const wi_session_stats after = missing->stats();
    const uint64_t missed = after.buffer_misses - before.buffer_misses,
                   refused = after.buffer_refusals - before.buffer_refusals;
    std::printf("  of %llu that %d steps missed beside it %llu were not kept\n",
                static_cast<unsigned long long>(missed), steps, static_cast<unsigned long long>(refused));
    assert_true(steps >= 5 && missed > 0 && refused < missed / 4);
  }
}

// Where memory is full of what is yet to be written, a step waits for it or says that there is no room.
void writes_that_memory_waits_for_change_no_token(void**) {
  const std::vector<int32_t> ids = random_prompt(500);
  const TiersWorld fast = world_of({.slow = false});
  const auto expected = fast.session(0);
  expected->prefill(ids, chunks_of(150), nullptr);
  // Recent tokens and the index of all take three quarters of it in the end.
  const TiersWorld world = world_of({.kv_budget_bytes = expected->stats().kv_bytes * 21 / 10});
  const auto session = world.session(0);
  session->prefill(ids, chunks_of(150), nullptr);
  arm(kPwrite, kSlow);
  int refused = 0;
  for (int i = 0; i < 700; ++i) {
    for (Session* one : {expected.get(), session.get()}) one->accept(i % 100, nullptr);
    const std::vector<float> wanted = logits_of(*expected);
    for (int tries = 0;; ++tries) {
      try {
        session->logits(nullptr);
        break;
      } catch (const Error& error) {
        if (error.code() != WI_E_BUDGET || tries == 100)
          fail_because("status %d: %s", error.code(), error.what());
        ++refused;
        std::this_thread::sleep_for(milliseconds(50));
      }
    }
    assert_true(logits_of(*session) == wanted);
  }
  assert_true(fault.happened);
  disarm();
  std::printf("  %d steps were refused\n", refused);
  assert_in_range(world.runtime->pool->peak(), 1, world.runtime->pool->budget());
}

#ifdef WI_SANITIZED
void a_call_is_cancelled_within_a_reads_time(void**) { skip(); }  // whose threads are not to be refused
#else
// Without threads that read: a caller's reads come one after the other, a dozen in each layer.
void a_call_is_cancelled_within_a_reads_time(void**) {
  threads_allowed = 3;  // two worlds' helpers and the manager
  SlowDisk disk(false);
  threads_allowed = INT32_MAX;
  arm(kFunctions, 0);
  for (int tries = 0; fault.calls[kPread] <= 10; ++tries) {  // until the manager has moved what it was to
    assert_true(tries < 1000);
    std::this_thread::sleep_for(milliseconds(1));
    arm(kFunctions, 0);
    disk.step(9);
  }
  disk.session->accept(10, nullptr);
  disk.expected->accept(10, nullptr);
  const std::vector<int32_t> more = random_prompt(100, 1);
  for (const milliseconds after : {milliseconds(20), milliseconds(150)}) {
    constexpr double kLimit = 160;  // of several seconds
    slow_down(false);
    const double decoding = least_of_tries(kLimit, [&] {
      return milliseconds_to_end(after, [&](const CancelToken* cancel) { disk.session->logits(cancel); });
    });
    const double reading = least_of_tries(kLimit, [&] {
      return milliseconds_to_end(after,
                                 [&](const CancelToken* cancel) { disk.session->prefill(more, {}, cancel); });
    });
    disarm();
    std::printf("  cancelled within %.0f and %.0f ms\n", decoding, reading);
    assert_in_time(decoding < kLimit && reading < kLimit);
  }
  assert_true(logits_of(*disk.session) == logits_of(*disk.expected));
  disk.step(11);
}
#endif

// ---- A manager that stalls ----

// Keeps the manager's thread until it goes, or ten seconds, which nobody should wait for.
class Stall {
 public:
  explicit Stall(WaveBuffer& buffer) {
    assert_true(buffer.later([this](const auto&) {
      stalled_.set_value();
      // Longer than a busy machine takes for all that comes in between, some 10 s where threads are looked at.
      kept_ = end_.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
      over_.set_value();
    }));
    stalled_.get_future().wait();
  }
  // Whether it lasted until then.
  bool end() {
    end_.set_value();
    over_.get_future().wait();
    return kept_;
  }

 private:
  std::promise<void> stalled_, end_, over_;
  bool kept_ = false;
};

void a_stalled_manager_costs_hits_and_nothing_else(void**) {
  for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
    const std::vector<int32_t> ids = random_prompt(1500);
    const TiersWorld fast = world_of({.slow = false}), world = world_of({.manager = manager});
    const auto expected = fast.session(0), session = world.session(0.3f);
    for (Session* one : {expected.get(), session.get()}) one->prefill(ids, chunks_of(150), nullptr);
    const auto steps = [&](int count) {
      double most = 0, all = 0;
      for (int i = 0; i < count; ++i) {
        expected->accept(i % 100, nullptr);
        const std::vector<float> wanted = logits_of(*expected);
        const double time = milliseconds_of([&] {
          session->accept(i % 100, nullptr);
          session->logits(nullptr);
        });
        assert_true(logits_of(*session) == wanted);
        most = std::max(most, time), all += time;
      }
      return std::pair(all / count, most);
    };
    // In turns: what else the machine does is the same for both. Each stall is longer than the manager's queue, and
    // segments are sealed meanwhile.
    double free = std::numeric_limits<double>::infinity(), stalled = free, longest = 0;
    for (int turn = 0; turn < test::few_or(1, 3); ++turn) {
      steps(60);
      free = std::min(free, steps(150).first);
      Stall stall(world.buffer());
      const auto [each, most] = steps(150);
      stalled = std::min(stalled, each);
      longest = std::max(longest, most);
      if (turn == 0) {  // all else that a host may do
        auto fork = session->fork();
        fork->prefill(random_prompt(300, 1), chunks_of(150), nullptr);
        fork->truncate(700);
        fork->accept(3, nullptr);
        fork->logits(nullptr);
        fork.reset();
        const auto another = world.session(0.1f);
        another->prefill(ids, chunks_of(150), nullptr);
        for (int i = 0; i < 10; ++i) another->decode(nullptr);
        world.buffer().stats();
        SavedBytes saved;
        session->save(saved, nullptr);
      }
      assert_true(stall.end());
    }
    std::printf("  a step takes %.2f ms, %.2f while the manager stalls, %.2f at most\n", free, stalled,
                longest);
    // What is not admitted is read from the disk again, which is some of a step.
    assert_in_time(stalled < 1.5 * free && longest < 1000);
    steps(100);
  }
}

// ---- Sessions that evict each other ----

// What a thread does with its session; each has other tokens. All logits.
std::vector<float> visit(Session& session, int salt) {
  std::vector<float> all;
  const auto step = [&](int32_t token) {
    session.accept(token % 100, nullptr);
    const std::span<const float> logits = session.logits(nullptr);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  for (int i = 0; i < 40; ++i) step(i * (salt + 3));
  session.prefill(random_prompt(200, static_cast<uint64_t>(salt)), chunks_of(100), nullptr);
  for (int i = 0; i < 10; ++i) step(i);
  session.truncate(800 - 50 * salt);
  for (int i = 0; i < 70; ++i) step(i * 7);
  SavedBytes saved;
  session.save(saved, nullptr);
  return all;
}

#ifdef WI_THREAD_SANITIZED
constexpr double kEvictingSeconds = 60;
#else
constexpr double kEvictingSeconds = 2;
#endif

// Forks, on threads of their own, that share segments and frames, at shares of their own; again and again, for
// WI_TEST_SECONDS.
void sessions_that_evict_each_other_say_what_they_say_alone(void**) {
  constexpr int kThreads = 3;
  constexpr float kShares[] = {0.02f, 0.1f, 0.5f};
  const char* const text = std::getenv("WI_TEST_SECONDS");
  const auto time = std::chrono::duration<double>(text ? std::atof(text) : kEvictingSeconds);
  const std::vector<int32_t> ids = random_prompt(900);
  std::vector<std::vector<float>> wanted;
  {
    const TiersWorld fast = world_of({.slow = false});
    const auto session = fast.session(0);
    session->prefill(ids, chunks_of(150), nullptr);
    for (int i = 0; i < kThreads; ++i) wanted.push_back(visit(*session->fork(), i));
  }
  uint64_t rounds = 0;
  WaveBufferStats stats;
  for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
    const TiersWorld world = world_of({.manager = manager});
    const Clock::time_point start = Clock::now();
    do {
      const auto session = world.session(0.3f);
      session->prefill(ids, chunks_of(150), nullptr);
      std::atomic<int> wrong{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i, own = session->fork_as(world.params(kShares[i]), nullptr)] {
          wrong += visit(*own, i) != wanted[static_cast<size_t>(i)];
        });
      for (std::thread& thread : threads) thread.join();
      assert_int_equal(wrong, 0);
      ++rounds;
    } while (Clock::now() - start < time / 2);
    const WaveBufferStats more = world.buffer().stats();
    stats.admissions += more.admissions, stats.evictions += more.evictions;
    assert_true(more.evictions > 0);
  }
  std::printf("  %llu rounds, %llu admissions, %llu evictions\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(stats.admissions),
              static_cast<unsigned long long>(stats.evictions));
}

// ---- Budgets of almost nothing ----

// From less than anything needs to more than all needs: a status, and the session is as it was, or the same logits;
// never a status where the plan says that it fits.
void any_budget_is_a_status_or_changes_no_token(void**) {
  const std::vector<int32_t> ids = random_prompt(700);
  constexpr int kSteps = 150;
  const TiersWorld fast = world_of({.slow = false});
  const auto expected = fast.session(0);
  expected->prefill(ids, chunks_of(150), nullptr);
  std::vector<std::vector<float>> wanted{logits_of(*expected)};
  for (int i = 0; i < kSteps; ++i) {
    expected->accept(i % 100, nullptr);
    wanted.push_back(logits_of(*expected));
  }
  for (const bool whole_runtime : {true, false}) {
    int tried = 0, prompts = 0, lives = 0;
    for (double budget = 1; budget < 4e6; budget *= budget < 1e5 ? 2 : test::few_or(1.3, 1.2), ++tried) {
      const auto bytes = static_cast<uint64_t>(budget);
      const TiersWorld world = world_of({.kv_budget_bytes = whole_runtime ? bytes : uint64_t{256} << 20});
      SessionParams params = world.params(0);
      if (!whole_runtime) params.kv_budget_bytes = bytes;
      const bool fits = plan_memory(*world.runtime, *world.model, params, 700 + kSteps + 1).fits;
      const auto session = Session::create(world.runtime, world.model, params);
      int steps = -1;  // that it could make; -1: not even the prompt
      try {
        session->prefill(ids, chunks_of(150), nullptr);
        for (steps = 0; steps < kSteps; ++steps) {
          assert_true(logits_of(*session) == wanted[static_cast<size_t>(steps)]);
          session->accept(steps % 100, nullptr);
          session->logits(nullptr);
        }
      } catch (const Error& error) {
        if (error.code() != WI_E_BUDGET || fits)
          fail_because("budget %llu, fits %d, after %d steps: status %d: %s",
                       static_cast<unsigned long long>(bytes), fits, steps, error.code(), error.what());
        assert_true(std::strlen(error.what()) > 20);
        assert_int_equal(session->stats().tokens, steps < 0 ? 0 : 700 + steps + 1);
      }
      prompts += steps >= 0;
      lives += steps == kSteps;
    }
    std::printf("  of %d budgets of the %s, %d were enough for the prompt, %d for all\n", tried,
                whole_runtime ? "runtime" : "session", prompts, lives);
    assert_true(lives > 5 && prompts < tried);
  }
}

// ---- A demotion at any moment ----

// How many segments a sequence takes for slow is how many its views show so, whatever leaves meanwhile: a step
// that knows of none reads through no view of such.
void views_show_the_tiers_of_one_moment(void**) {
  for (int round = 0; round < test::few_or(2, 5); ++round) {
    const TiersWorld world = world_of();
    const auto session = world.session(0);
    session->prefill(random_prompt(200), {}, nullptr);
    for (int i = 0; i < 1500; ++i) session->accept(i % 100, nullptr);
    const Sequence& all_fast = session->sequence();
    const size_t count = all_fast.segments().size();
    assert_int_equal(all_fast.slow_segments(), 0);
    std::thread demoting([&] {
      for (const auto& segment : all_fast.segments()) segment->demote(world.buffer());
    });
    for (size_t slow = 0; slow < count;) {
      Sequence copy = all_fast;
      const WaveBuffer::Reading reading(&world.buffer());
      copy.refresh();
      slow = copy.slow_segments();
      for (int32_t layer = 0; layer < all_fast.shape().layers; ++layer) {
        for (int32_t head = 0; head < all_fast.shape().kv_heads; ++head) {
          size_t shown = 0;
          for (size_t i = 0; i < count; ++i) shown += copy.views(layer, head)[i].slow != nullptr;
          if (shown != slow) fail_because("%zu segments are slow, %zu of the views", slow, shown);
        }
      }
    }
    demoting.join();
  }
}

// What leaves the fast tier while a chunk attends to it is read where it was: nobody else has it yet.
void a_past_that_leaves_while_it_is_read_is_where_it_was(void**) {
  const TiersWorld world = world_of();
  const auto session = world.session(0);
  session->prefill(random_prompt(900), {}, nullptr);
  Sequence sequence = session->sequence();
  const WaveBuffer::Reading reading(&world.buffer());
  sequence.refresh();
  const auto past = [&](int32_t layer, int32_t head) {
    std::vector<KvRun> runs(static_cast<size_t>(sequence.max_runs()));
    runs.resize(static_cast<size_t>(sequence.runs(layer, head, 0, sequence.tokens(), runs.data())));
    std::vector<std::byte> bytes;
    for (const KvRun& run : runs) {
      assert_non_null(run.keys);
      const size_t count = static_cast<size_t>(run.tokens) * sequence.shape().head_bytes();
      bytes.resize(bytes.size() + count);
      world.runtime->kv_pools.pages->memory().copy(bytes.data() + bytes.size() - count, run.keys, count);
    }
    return bytes;
  };
  const std::vector<std::byte> before = past(1, 1);
  for (const auto& segment : sequence.segments()) assert_true(segment->demote(world.buffer()));
  assert_true(past(1, 1) == before);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_call_of_the_system_may_fail_once),
      cmocka_unit_test(each_call_may_fail_once_below_a_store),
      cmocka_unit_test(each_call_on_a_saved_file_may_fail_once),
      cmocka_unit_test(a_disk_that_fills_up_while_a_prompt_is_read_costs_nothing),
      cmocka_unit_test(what_a_full_disk_refuses_stays_in_memory),
      cmocka_unit_test(a_disk_that_fills_up_while_decoding_stops_no_step),
      cmocka_unit_test(a_full_disk_and_a_full_memory_are_a_status),
      cmocka_unit_test(a_slow_disk_changes_no_token),
      cmocka_unit_test(sessions_that_miss_nothing_do_not_wait_for_others_reads),
      cmocka_unit_test(a_call_is_cancelled_while_it_writes_or_waits_for_others_writes),
      cmocka_unit_test(steps_do_not_wait_for_what_is_written_beside_them),
      cmocka_unit_test(what_steps_miss_beside_a_write_is_kept),
      cmocka_unit_test(writes_that_memory_waits_for_change_no_token),
      cmocka_unit_test(a_call_is_cancelled_within_a_reads_time),
      cmocka_unit_test(a_stalled_manager_costs_hits_and_nothing_else),
      cmocka_unit_test(sessions_that_evict_each_other_say_what_they_say_alone),
      cmocka_unit_test(any_budget_is_a_status_or_changes_no_token),
      cmocka_unit_test(views_show_the_tiers_of_one_moment),
      cmocka_unit_test(a_past_that_leaves_while_it_is_read_is_where_it_was),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
