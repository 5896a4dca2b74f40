// Sessions in one runtime whose keys and values are together larger than its memory: each has its part, a newcomer
// finds room, and all say what they say alone.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <regex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "src/engine/engine.h"
#include "src/kv_store.h"
#include "src/memory/host_memory.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"
#include "tests/support/in_time.h"
#include "tests/support/kernel_test.h"
#include "tests/support/random_model.h"
#include "tests/support/tiers.h"

using namespace wi;

namespace {

constexpr int kPrompt = 1500;
constexpr size_t kSlab = size_t{16} << 10;

test::ModelShape shape() {
  test::ModelShape shape;
  shape.name = "residency";
  shape.layers = 3;
  shape.hidden = shape.ffn = test::slow_or(64, 128);
  shape.query_heads = test::slow_or(2, 4);
  shape.kv_heads = 2;
  shape.head_dim = 64;
  return shape;
}

// budget 0: more than anybody needs.
struct World {
  explicit World(uint64_t budget, bool slow = true, uint64_t spill_bytes = 0,
                 std::shared_ptr<Memory> memory = nullptr) {
    RuntimeParams params;
    params.threads = 2;
    params.kv_budget_bytes = budget ? budget : uint64_t{256} << 20;
    if (slow) params.spill_folder = folder.path;
    params.spill_bytes = spill_bytes;
    params.slab_bytes = kSlab;
    params.kv_memory = std::move(memory);
    runtime = test::create_runtime(params);
    model = test::random_model(shape(), DType::f32, test::seed());
  }
  SessionParams params(const char* policy = "wave") const {
    SessionParams params;
    params.policy = find_policy(runtime->backend, policy);
    params.policy_params.segment_tokens = 256;
    params.policy_params.decode_segment_tokens = 64;
    params.policy_params.budget = 0.1f;
    params.prefix_reuse = false;
    return params;
  }
  std::shared_ptr<Session> session(const char* policy = "wave") {
    return Session::create(runtime, model, params(policy));
  }
  test::Folder folder;
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const Model> model;
};

std::vector<int32_t> prompt(size_t tokens, uint64_t salt) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<int32_t> ids(tokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

void read(Session& session, uint64_t salt, size_t tokens = kPrompt) {
  PrefillParams params;
  params.chunk_tokens = 128;
  session.prefill(prompt(tokens, salt), params, nullptr);
}

// Tokens whose keys and values are random numbers, which takes no time to compute.
void fill(Session& session, uint64_t salt, size_t tokens) {
  session.append_computed(
      prompt(tokens, salt),
      [&](int32_t layer, int64_t first, int64_t count, float* keys, float* values) {
        std::minstd_rand random(static_cast<uint32_t>(test::seed() + salt * 1'000'003 +
                                                      static_cast<uint64_t>(first) * 31 +
                                                      static_cast<uint64_t>(layer) + 1));
        const int64_t width = int64_t{shape().kv_heads} * shape().head_dim;
        for (float* of : {keys, values})
          for (int64_t i = 0; i < count * width; ++i)
            of[i] = static_cast<float>(random()) / static_cast<float>(std::minstd_rand::max()) - 0.5f;
      },
      nullptr);
}

std::vector<int32_t> write(Session& session, int steps) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < steps; ++i) tokens.push_back(session.decode(nullptr).token);
  return tokens;
}

// What a session has of the budget after its prompt, where nothing is short.
uint64_t bytes_of_one(size_t tokens = kPrompt) {
  World world(0, false);
  auto session = world.session();
  read(*session, 0, tokens);
  return session->stats().kv_bytes;
}

std::vector<int32_t> alone(uint64_t salt, int steps, size_t tokens = kPrompt) {
  World world(0, false);
  auto session = world.session();
  read(*session, salt, tokens);
  return write(*session, steps);
}

// Its prompt in the chunks that tasks have: others may round a logit otherwise.
std::vector<int32_t> alone_as_a_task(uint64_t salt, int steps) {
  World world(0, false);
  auto session = world.session();
  session->prefill(prompt(kPrompt, salt), {}, nullptr);
  return write(*session, steps);
}

uint64_t room_held(const Residency::Part& part) { return part.whole + part.frames; }

void parts_are_in_proportion_within_floors_and_limits(void**) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Demand> demands(random() % 9);
    uint64_t floors = 0, most = 0;
    for (Demand& of : demands) {
      of.kv = random() % 1'000'000;
      of.most = random() % 3 ? of.kv : random() % (of.kv + 1);
      of.floor = random() % (of.kv / 4 + 1);
      floors += std::min(of.floor, of.most);
      most += of.most;
    }
    const uint64_t room = random() % 4'000'000;
    std::vector<uint64_t> parts(demands.size());
    divide(room, demands, parts);
    const uint64_t sum = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
    assert_true(sum <= room);
    if (most > room && floors <= room) assert_true(sum + demands.size() >= room);  // each is rounded down
    double share = -1;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Demand& of = demands[i];
      assert_true(parts[i] <= of.most);
      if (most <= room) assert_int_equal(parts[i], of.most);
      if (floors > room) continue;
      assert_true(parts[i] >= std::min(of.floor, of.most));
      if (parts[i] == of.most || parts[i] <= of.floor || of.kv < 1000) continue;
      const double own = static_cast<double>(parts[i]) / static_cast<double>(of.kv);
      if (share < 0) share = own;
      assert_true(std::abs(own - share) < 2e-3);  // parts are whole bytes
    }
  }
}

// Two sessions fill a runtime; a third one reads and writes as if it were alone, and then all have parts in
// proportion to their keys and values.
void a_newcomer_in_a_full_runtime_takes_its_part(void**) {
  const uint64_t one = bytes_of_one();
  World world(2 * one + one / 8);
  const size_t tokens[] = {kPrompt, kPrompt, kPrompt / 2};
  std::vector<std::shared_ptr<Session>> sessions;
  for (size_t i = 0; i < 3; ++i) {
    sessions.push_back(world.session());
    read(*sessions[i], i, tokens[i]);
  }
  std::vector<std::vector<int32_t>> written(3);
  for (int step = 0; step < 30; ++step)
    for (size_t i = 0; i < 3; ++i)
      for (int32_t token : write(*sessions[i], 1)) written[i].push_back(token);
  for (size_t i = 0; i < 3; ++i) assert_true(written[i] == alone(i, 30, tokens[i]));
  assert_true(world.runtime->pool->peak() <= world.runtime->pool->budget());

  uint64_t held = 0;
  double least = 1, most = 0;
  for (const auto& session : sessions) {
    const Residency::Part part = session->residency();
    held += room_held(part);
    assert_true(part.part >= part.floor);
    assert_true(room_held(part) + kSlab >= part.floor);
    const double share = static_cast<double>(room_held(part)) / static_cast<double>(part.kv);
    least = std::min(least, share), most = std::max(most, share);
  }
  assert_true(most < 1);
  assert_true(most - least < 0.1);  // a share grows by a sixteenth at least, and by a slab
  assert_true(held <= world.runtime->pool->budget());
}

void the_others_grow_back_when_one_ends(void**) {
  const uint64_t one = bytes_of_one();
  World world(2 * one);
  auto first = world.session(), second = world.session(), third = world.session();
  read(*first, 1);
  read(*second, 2);
  read(*third, 3);
  for (int step = 0; step < 5; ++step)
    for (Session* session : {first.get(), second.get(), third.get()}) write(*session, 1);
  const uint64_t before = room_held(first->residency());
  third.reset();
  second.reset();
  write(*first, 2);
  const Residency::Part after = first->residency();
  assert_true(room_held(after) > before);
  assert_int_equal(room_held(after), after.kv);
}

// Long enough for segments to be sealed while all of them write.
void sessions_of_five_times_the_budget_all_go_on(void**) {
  constexpr size_t kLong = test::slow_or(2500, 4000);
  constexpr int kSteps = test::slow_or(80, 220);
  std::vector<std::vector<int32_t>> wanted;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    World world(0, false);
    auto session = world.session();
    fill(*session, i, kLong);
    wanted.push_back(write(*session, kSteps));
    bytes += session->stats().kv_bytes;
  }
  World world(bytes / test::slow_or(3, 5));  // of shorter ones more must stay
  std::vector<std::shared_ptr<Session>> sessions;
  for (uint64_t i = 0; i < 4; ++i) {
    sessions.push_back(world.session());
    fill(*sessions.back(), i, kLong);
  }
  std::vector<Session*> batch;
  for (const auto& session : sessions) batch.push_back(session.get());
  std::vector<std::vector<int32_t>> written(4);
  for (int step = 0; step < kSteps; ++step) {
    Event events[4];
    Session::decode_batch(batch, nullptr, events);
    for (size_t i = 0; i < 4; ++i) written[i].push_back(events[i].token);
  }
  for (size_t i = 0; i < 4; ++i) assert_true(written[i] == wanted[i]);
  assert_true(world.runtime->pool->peak() <= world.runtime->pool->budget());
}

// On threads of their own, each again and again.
void sessions_that_come_and_go_say_what_they_say_alone(void**) {
  constexpr int kThreads = 3, kRounds = 2, kSteps = 25;
  std::vector<std::vector<int32_t>> wanted;
  for (uint64_t i = 0; i < kThreads; ++i) wanted.push_back(alone(i, kSteps));
  const uint64_t one = bytes_of_one();
  World world(3 * one / 2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        try {
          auto session = world.session();
          read(*session, i);
          auto fork = session->fork();
          if (write(*session, kSteps) != wanted[i]) ++wrong;
          session.reset();
          if (write(*fork, kSteps) != wanted[i]) ++wrong;
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          ++wrong;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(wrong, 0);
  assert_true(world.runtime->pool->peak() <= world.runtime->pool->budget());
  // What is on its way out holds its segment until it has arrived, and the manager ends what it is at.
  const auto held = [&] {
    const WaveBufferStats stats = world.runtime->buffer->stats();
    return stats.slow_bytes + stats.frame_bytes;
  };
  for (int i = 0; i < 5000 && held(); ++i) usleep(1000);
  assert_int_equal(held(), 0);
}

// Another's last call may have ended by then, and nobody comes who would ask for that room.
void frames_that_a_step_keeps_go_when_it_ends(void**) {
  constexpr size_t kPage = 1024;
  World world(1 << 20);
  WaveBuffer& buffer = *world.runtime->buffer;
  WaveBuffer::Share share(world.runtime->buffer, kPage);
  share.set(16 * kSlab);
  const std::shared_ptr<PageCache> cache = buffer.cache_of(kPage);
  const uint64_t step = buffer.begin_step();
  const int32_t entry = cache->take(1, step);
  assert_true(entry != kNoEntry);
  EntrySlot slot = kNoEntry;
  assert_true(cache->publish(entry, slot));
  share.set(0);
  buffer.catch_up();
  assert_true(buffer.stats().frame_bytes > 0);
  buffer.end_step(step);
  assert_int_equal(buffer.stats().frame_bytes, 0);
}

// One segment of a session that is large, and some of others.
std::shared_ptr<Session> with_a_large_segment(World& world) {
  constexpr int kLarge = test::slow_or(2048, 32768);
  SessionParams params = world.params("blocks");
  params.policy_params.segment_tokens = kLarge;
  auto session = Session::create(world.runtime, world.model, params);
  fill(*session, 1, kLarge + 2000);
  return session;
}

// A large segment is on its way out, which takes as long as the disk needs, when its session is closed.
void what_nobody_has_any_more_is_not_written_to_its_end(void**) {
  const double written = test::least_of_tries(0.5, [] {
    World world(uint64_t{256} << 20);
    auto session = with_a_large_segment(world);
    const Residency::Part part = session->residency();
    HostPool& pool = *world.runtime->pool;
    const HostBuffer others = pool.allocate(pool.budget() - pool.used() - part.kv / 128, "a test");
    write(*session, 1);  // enough is left for it, and less than is kept free beside the next steps
    const WaveBuffer& buffer = *world.runtime->buffer;
    while (buffer.stats().slow_bytes == 0) std::this_thread::yield();
    session.reset();
    while (buffer.stats().slow_bytes > 0) std::this_thread::yield();
    return static_cast<double>(buffer.stats().file.written_bytes) / static_cast<double>(part.whole);
  });
  std::printf("  %.2f of it\n", written);
  assert_in_time(written < 0.5);
}

// By whoever needs its room.
void nor_by_a_call_that_waits_for_its_room(void**) {
  World world(uint64_t{256} << 20);
  auto session = with_a_large_segment(world);
  const uint64_t whole = session->residency().whole;
  const WaveBuffer& buffer = *world.runtime->buffer;
  Residency::Member newcomer(world.runtime->residency, world.runtime->buffer, 1024);
  Residency::Wish wish;
  wish.coming = world.runtime->pool->budget() - world.runtime->pool->used() + whole / 2;
  std::exception_ptr refused;
  const auto close_it = [&] {
    if (buffer.stats().slow_bytes > 0) session.reset();
  };
  assert_true(newcomer.make_room(wish, close_it, refused));
  assert_true(session == nullptr);
  assert_true(!refused);
  assert_true(buffer.stats().file.written_bytes < whole / 2);
  assert_int_equal(buffer.stats().slow_bytes, 0);
}

// That many more are idle costs who goes on nothing, though all of them have segments: each pass over them would make it
// several times as much.
void a_step_does_not_look_at_idle_sessions(void**) {
  constexpr size_t kFew = test::kTries > 1 ? 100 : 20;  // where time is judged, and elsewhere
  constexpr double kMost = 3;
  World world(0);
  const auto first = world.session();
  fill(*first, 1, 700);
  assert_true(first->residency().whole > 0);
  std::vector<std::shared_ptr<Session>> idle;
  Residency::Member member(world.runtime->residency, world.runtime->buffer, 1024);
  const auto seconds_of_room = [&] {
    Residency::Wish wish;
    wish.coming = 1024;
    std::exception_ptr refused;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 500; ++i) {
      assert_true(member.make_room(wish, {}, refused));
      member.rest({});
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto least_with = [&](size_t sessions) {
    while (idle.size() < sessions) idle.push_back(first->fork());
    return test::least_of_tries(0, seconds_of_room);
  };
  const double few = least_with(kFew), many = least_with(16 * kFew);
  std::printf("  beside 16 times as many %.1f times as much\n", many / few);
  assert_in_time(many < kMost * few);
}

// The manager may be the last that has a segment, which takes a while to go.
void what_the_manager_lets_go_of_keeps_nobody(void**) {
  struct Slow {
    std::atomic<bool> is_going{false}, may_go{false};
  } slow;
  World world(1 << 20);  // whose end waits for the manager
  WaveBuffer& buffer = *world.runtime->buffer;
  struct Held {
    Slow& slow;
    ~Held() {
      slow.is_going = true;
      while (!slow.may_go) std::this_thread::yield();
    }
  };
  assert_true(buffer.later([held = std::shared_ptr<Held>(new Held{slow})](const auto&) {}));
  while (!slow.is_going) std::this_thread::yield();
  std::atomic<bool> posted{false};
  std::thread step([&] {
    StepUse use;
    use.cache = buffer.cache_of(1024).get();
    buffer.post(use);
    posted = true;
  });
  for (int i = 0; i < 5000 && !posted; ++i) usleep(1000);
  const bool in_time = posted;
  slow.may_go = true;
  step.join();
  assert_true(in_time);
}

// The first piece that is freed of many bytes waits until it may go, once it is told to.
class SlowToFree final : public Memory {
 public:
  std::byte* allocate(uint64_t bytes, HostPages pages) override { return memory_.allocate(bytes, pages); }
  void free(std::byte* data, uint64_t bytes) noexcept override {
    if (bytes >= 64 << 10 && is_slow.exchange(false)) {
      is_going = true;
      while (!may_go) usleep(1000);
    }
    memory_.free(data, bytes);
  }
  void copy(std::span<const CopyPiece> pieces) override { memory_.copy(pieces); }
  bool host_loads() const override { return true; }
  std::atomic<bool> is_slow{false}, is_going{false}, may_go{false};

 private:
  HostMemory memory_{false};
};

// It takes the system a while to take back what a large session had, and nobody else can make it leave.
void a_newcomer_waits_for_the_memory_of_one_that_is_being_closed(void**) {
  const auto memory = std::make_shared<SlowToFree>();
  World world(2 * bytes_of_one(), true, 0, memory);
  auto first = world.session(), second = world.session();
  read(*first, 1);
  assert_true(first->residency().whole > 0);
  HostPool& pool = *world.runtime->pool;
  const HostBuffer others = pool.allocate(pool.budget() - pool.used() - 1024, "a test");
  memory->is_slow = true;
  std::thread closing([&] { first.reset(); });
  while (!memory->is_going) std::this_thread::yield();
  std::thread later([&] {
    usleep(300'000);
    memory->may_go = true;
  });
  bool failed = false;
  try {
    read(*second, 2);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    failed = true;
  }
  closing.join();
  later.join();
  assert_false(failed);
}

// Whoever takes what is saved may be slow: a disk, or a host's callback.
void a_save_that_takes_long_keeps_nobody_from_room(void**) {
  struct Waits final : ByteSink {
    std::atomic<bool> has_begun{false}, may_end{false};
    uint64_t bytes = 0;
    void write(const void*, size_t more) override {
      bytes += more;
      if (bytes < 100'000) return;  // in the middle of a segment
      has_begun = true;
      while (!may_end) usleep(1000);
    }
  } sink;
  World world(bytes_of_one() * 5 / 4);
  auto first = world.session(), second = world.session();
  read(*first, 1);
  std::thread saving([&] { first->save(sink, nullptr); });
  while (!sink.has_begun) std::this_thread::yield();
  bool failed = false;
  const auto start = std::chrono::steady_clock::now();
  try {
    read(*second, 2);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    failed = true;
  }
  const auto took = std::chrono::steady_clock::now() - start;
  sink.may_end = true;
  saving.join();
  assert_false(failed);
  assert_in_time(took < std::chrono::seconds(5));
}

// Prompts beside it take all there is, one after the other.
void a_session_that_writes_does_not_wait_for_those_that_read(void**) {
  const uint64_t one = bytes_of_one();
  World world(3 * one / 2);
  const auto session = world.session();
  read(*session, 1);
  write(*session, 5);
  std::atomic<bool> stop{false};
  std::thread readers([&] {
    for (uint64_t i = 2; !stop; ++i) read(*world.session(), i);
  });
  std::vector<double> times;
  for (int step = 0; step < 300; ++step) {
    const auto start = std::chrono::steady_clock::now();
    write(*session, 1);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  stop = true;
  readers.join();
  std::sort(times.begin(), times.end());
  std::printf("  median %.2f ms, 99 %% within %.2f ms\n", times[150], times[297]);
  assert_true(session->sequence().slow_segments() > 0);
  assert_in_time(times[297] < 50);  // a chunk takes some, and whoever waited for others' claims 200
}

// Nor do many of them, one after the other.
void a_batch_that_writes_does_not_wait_for_those_that_read(void**) {
  constexpr size_t kSessions = 12;
  const uint64_t one = bytes_of_one();
  World world(kSessions * one);
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<Session*> batch;
  for (uint64_t i = 0; i < kSessions; ++i) {
    sessions.push_back(world.session());
    read(*sessions.back(), i);
    batch.push_back(sessions.back().get());
  }
  std::atomic<bool> stop{false};
  std::thread readers([&] {
    for (uint64_t i = kSessions; !stop; ++i) read(*world.session(), i, 4 * kPrompt);
  });
  std::vector<Event> events(kSessions);
  double longest = 0;
  for (int step = 0; step < test::slow_or(20, 200); ++step) {
    const auto start = std::chrono::steady_clock::now();
    Session::decode_batch(batch, nullptr, events.data());
    longest = std::max(
        longest, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  stop = true;
  readers.join();
  std::printf("  at most %.1f ms\n", longest);
  assert_in_time(longest < 600);  // once 200 for others' claims, where each waited for those
}

// Of what nobody can have nobody waits for the other to give it up, nor a batch for itself.
void calls_that_find_no_room_end_soon(void**) {
  World world(uint64_t{8} << 20);
  std::atomic<int> went{0};
  const auto step = [&](const std::vector<std::shared_ptr<Session>>& sessions) {
    std::vector<Session*> batch;
    for (const auto& session : sessions) batch.push_back(session.get());
    std::vector<Event> events(batch.size());
    try {
      Session::decode_batch(batch, nullptr, events.data());
      ++went;
    } catch (const Error& error) {
      if (error.code() != WI_E_BUDGET) throw;
    }
  };
  std::vector<std::vector<std::shared_ptr<Session>>> batches(2);
  for (uint64_t i = 0; i < 6; ++i) {
    batches[i % 2].push_back(world.session());
    read(*batches[i % 2].back(), i, kSinkTokens + kBlockTokens);  // the next token wants another block
    batches[i % 2].back()->decode(nullptr);
  }
  const uint64_t left = world.runtime->pool->budget() - world.runtime->pool->used();
  const uint64_t block = kBlockTokens * batches[0][0]->sequence().shape().token_bytes();
  const HostBuffer hog = world.runtime->pool->allocate(left - block - block / 2, "a test");
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 3; ++round) step(batches[0]);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (auto& batch : batches)
    threads.emplace_back([&] {
      try {
        for (int round = 0; round < test::slow_or(5, 100); ++round) step(batch);
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto took = std::chrono::steady_clock::now() - start;
  std::printf("  %.0f ms\n", std::chrono::duration<double, std::milli>(took).count());
  assert_int_equal(wrong, 0);
  assert_int_equal(went, 0);
  assert_in_time(took < std::chrono::seconds(5));  // one that waits for another or for itself waits for ten
}

// A fork, one under another policy, a cut and a load, each where others fill the runtime.
void whatever_makes_a_session_finds_room(void**) {
  const uint64_t one = bytes_of_one();
  World fast(0, false), slow(3 * one / 2);
  std::vector<std::vector<int32_t>> written[2];
  for (World* world : {&fast, &slow}) {
    auto& all = written[world == &slow];
    auto filler = world->session(), session = world->session();
    read(*session, 1);
    const std::string path = world->folder.file("saved");
    session->save(path, nullptr);
    read(*filler, 2);
    auto fork = session->fork();
    all.push_back(write(*fork, 10));
    auto loaded = Session::load(
        world->runtime, world->model, path, [](const SessionParams& saved) { return saved; }, nullptr);
    all.push_back(write(*loaded, 10));
    auto other = session->fork_as(world->params("blocks"), nullptr);
    all.push_back(write(*other, 10));
    filler->truncate(kPrompt - 350);
    all.push_back(write(*filler, 10));
    all.push_back(write(*session, 10));
  }
  assert_true(written[0] == written[1]);
  assert_true(slow.runtime->pool->peak() <= slow.runtime->pool->budget());
}

// What a call takes is known before, whatever its session has become: short segments that are made one after
// another, segments that are cut again and have more clusters than one of their length is made with, blocks that forks
// share. Others fill the memory to its brim before each call.
void whatever_a_session_has_become_finds_room(void**) {
  const auto params_in = [](const World& world) {
    SessionParams params = world.params();
    params.policy_params.tokens_per_centroid = 4;
    params.policy_params.segment_tokens = 512;
    return params;
  };
  struct Life {
    explicit Life(World& in) : world(in) {}
    World& world;
    std::mt19937_64 random{test::seed()};
    std::vector<std::shared_ptr<Session>> sessions, fillers;
    std::vector<int32_t> said;
    void call() {
      auto& session = sessions[random() % sessions.size()];
      const auto tokens = static_cast<int64_t>(session->stats().tokens);
      switch (random() % 8) {
        case 0:
          if (sessions.size() < 4) sessions.push_back(session->fork());
          break;
        case 1:
        case 2:
          if (tokens > 700) session->truncate(tokens - 1 - static_cast<int64_t>(random() % 400));
          break;
        case 3: {
          const std::string path = world.folder.file("saved");
          session->save(path, nullptr);
          session = Session::load(
              world.runtime, world.model, path, [](const SessionParams& saved) { return saved; }, nullptr);
          break;
        }
        case 4:
          read(*session, random() % 100, 1 + random() % 300);
          break;
        case 5:
          if (sessions.size() > 1) sessions.erase(sessions.begin());
          break;
        default: {
          const std::vector<int32_t> more = write(*session, 1 + static_cast<int>(random() % 150));
          said.insert(said.end(), more.begin(), more.end());
        }
      }
      if (static_cast<int64_t>(sessions.front()->stats().tokens) > 4000) sessions.front()->truncate(1000);
    }
  };
  const uint64_t one = bytes_of_one();
  World fast(0, false), slow(5 * one);
  std::vector<int32_t> said[2];
  for (World* world : {&fast, &slow}) {
    Life life(*world);
    life.sessions.push_back(Session::create(world->runtime, world->model, params_in(*world)));
    read(*life.sessions[0], 1);
    for (uint64_t i = 0; i < 3; ++i) {
      life.fillers.push_back(world->session());
      fill(*life.fillers.back(), i, 3 * kPrompt);
    }
    for (int i = 0; i < test::slow_or(20, 150); ++i) {
      life.call();
      for (auto& filler : life.fillers) write(*filler, 1);
    }
    said[world == &slow] = life.said;
  }
  assert_true(said[0] == said[1]);
  assert_true(slow.runtime->pool->peak() <= slow.runtime->pool->budget());
}

// Tasks are let in by what must be in fast memory, not by all that they will hold.
void tasks_of_more_than_the_budget_run_side_by_side(void**) {
  constexpr int kTasks = 4, kSteps = 40;
  World world(3 * bytes_of_one());
  std::vector<std::shared_ptr<Task>> tasks;
  for (uint64_t i = 0; i < kTasks; ++i) {
    TaskParams params;
    params.tokens = prompt(kPrompt, i);
    params.max_tokens = kSteps;
    tasks.push_back(std::make_shared<Task>(world.session(), params));
    submit_task(tasks.back());
  }
  for (uint64_t i = 0; i < kTasks; ++i) {
    std::vector<int32_t> written;
    while (written.size() < kSteps && tasks[i]->wait(-1)) {
      tasks[i]->poll(kSteps, [&](size_t, const Event& event) {
        if (event.token >= 0) written.push_back(event.token);
      });
      if (tasks[i]->ended() && tasks[i]->info().status != WI_OK) break;
    }
    assert_string_equal(tasks[i]->info().message.c_str(), "");
    assert_true(written == alone_as_a_task(i, kSteps));
  }
  assert_true(world.runtime->pool->peak() <= world.runtime->pool->budget());
}

// The first session fills the memory, and there is no room for what the second one would have to push out: that is
// the second one's status, and nobody else's.
void a_slow_tier_that_takes_nothing_is_the_newcomers_status(void**) {
  const uint64_t one = bytes_of_one();
  World world(one + one / 4, true, uint64_t{64} << 10);
  auto first = world.session(), second = world.session();
  read(*first, 1);
  wi_status status = WI_OK;
  try {
    read(*second, 2);
  } catch (const Error& error) {
    status = error.code();
  }
  assert_int_equal(status, WI_E_BUDGET);
  assert_int_equal(second->stats().tokens, 0);
  assert_true(write(*first, 20) == alone(1, 20));
  first.reset();
  read(*second, 2);
  assert_true(write(*second, 20) == alone(2, 20));
}

// What the slow tier does not take stays where it is, and with room for all of it a session says what it says without
// a slow tier; with less it is refused for the slow tier's reason.
void what_the_slow_tier_refuses_stays_in_memory(void**) {
  constexpr int kSteps = 100;  // a segment is made meanwhile
  std::vector<int32_t> wanted;
  uint64_t needed = 0;
  {
    World world(0, false);
    const auto session = world.session();
    read(*session, 1);
    wanted = write(*session, kSteps);
    needed = world.runtime->pool->peak();
  }
  const auto segment = static_cast<uint64_t>(256 * shape().layers * shape().kv_heads * shape().head_dim *
                                             4);  // keys and values
  for (const uint64_t spill_bytes : {uint64_t{1}, segment, 2 * segment + segment / 2}) {
    const World world(needed, true, spill_bytes);
    const auto session = Session::create(world.runtime, world.model, world.params());
    read(*session, 1);
    assert_true(write(*session, kSteps) == wanted);
    assert_true(session->stats().slow_bytes <= spill_bytes);
    const World less(needed * 3 / 4, true, spill_bytes);
    const auto refused = Session::create(less.runtime, less.model, less.params());
    if (spill_bytes == 1) assert_error(WI_E_BUDGET, "of the spill file", read(*refused, 1));
    SessionParams params = world.params();
    params.kv_budget_bytes = needed;  // its own, and the runtime has more
    const World roomy(0, true, spill_bytes);
    const auto own = Session::create(roomy.runtime, roomy.model, params);
    read(*own, 1);
    assert_true(write(*own, kSteps) == wanted);
  }
}

constexpr size_t kHeads = 2, kDim = 32;

KvStoreParams store_params(const World& world) {
  KvStoreParams params;
  params.shape = {2, kHeads, kDim, DType::f16};
  params.query_heads = 2 * kHeads;
  params.policy = find_policy(world.runtime->backend, "wave");
  params.policy_params.segment_tokens = 512;
  return params;
}

std::vector<float> numbers(size_t count, uint64_t salt) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<float> numbers(count);
  for (float& one : numbers) one = static_cast<float>(random() % 1000) * 0.002f - 1;
  return numbers;
}

std::vector<float> attended(KvStore& store) {
  std::vector<float> all, out(2 * kHeads * kDim);
  for (uint64_t i = 0; i < 60; ++i) {
    store.attend(static_cast<int32_t>(i % 2), 1, numbers(out.size(), i).data(), nullptr, out.data(), nullptr);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Everything that a host does with a store, and what it attends to in between.
std::vector<float> life_of_store(const World& world, size_t tokens) {
  constexpr size_t kPiece = 64, kWidth = kHeads * kDim;
  std::vector<float> all;
  const auto look_at = [&](KvStore& store) {
    const std::vector<float> more = attended(store);
    all.insert(all.end(), more.begin(), more.end());
  };
  KvStore store(world.runtime, store_params(world));
  for (size_t at = 0; at < tokens; at += kPiece) {
    for (int32_t layer = 0; layer < 2; ++layer)
      store.append(layer, kPiece, numbers(kPiece * kWidth, 2 * at + 1).data(),
                   numbers(kPiece * kWidth, 2 * at + 2).data());
    if (at % 512 == 0) store.seal();
    if (at % 1024 == 0) look_at(store);
  }
  const auto fork = store.fork();
  fork->truncate(static_cast<int64_t>(tokens) - 700);
  look_at(*fork);
  look_at(store);
  const std::string path = world.folder.file("store");
  store.save(path, nullptr);
  const auto choose = [](const KvStoreParams& saved) { return saved; };
  look_at(*KvStore::load(world.runtime, path, choose, nullptr));
  test::SavedBytes bytes;
  store.save(bytes, nullptr);
  look_at(*KvStore::load(world.runtime, bytes, choose, nullptr));
  return all;
}

// Which holds the memory whole, or, the budget being smaller, in frames.
void a_store_takes_room_from_an_idle_session(void**) {
  const uint64_t one = bytes_of_one();
  const std::vector<float> wanted = life_of_store(World(0, false), 3000);
  for (const uint64_t budget : {one + one / 4, one * 3 / 4}) {
    World world(budget);
    const auto session = world.session();
    read(*session, 1);
    write(*session, 5);
    assert_true(life_of_store(world, 3000) == wanted);
    assert_true(world.runtime->pool->peak() <= budget);
    assert_int_equal(session->stats().tokens, kPrompt + 5);
    write(*session, 15);
    assert_true(write(*session, 5) == [] {
      std::vector<int32_t> all = alone(1, 25);
      return std::vector<int32_t>(all.begin() + 20, all.end());
    }());
  }
}

void a_store_outgrows_memory_and_goes_on(void**) {
  constexpr size_t kTokens = 8000;
  const World fast(0, false);
  const std::vector<float> wanted = life_of_store(fast, kTokens);
  const World slow(fast.runtime->pool->peak() / 4);
  assert_true(life_of_store(slow, kTokens) == wanted);
  assert_true(slow.runtime->pool->peak() <= slow.runtime->pool->budget());
  const World full(fast.runtime->pool->peak() / 4, true, 1);
  assert_error(WI_E_BUDGET, "of the spill file", life_of_store(full, kTokens));
}

// Frames of a store that is read in place are a part like others'; what it says is the same with less of them.
void a_store_in_place_gives_frames_to_a_newcomer(void**) {
  World world(bytes_of_one());
  const KvStoreParams params = store_params(world);
  const std::string path = world.folder.file("store");
  std::vector<float> wanted;
  {
    KvStore store(world.runtime, params);
    for (int32_t layer = 0; layer < 2; ++layer)
      store.append(layer, 2000, numbers(2000 * kHeads * kDim, 1).data(),
                   numbers(2000 * kHeads * kDim, 2).data());
    store.seal();
    wanted = attended(store);
    store.save(path, nullptr);
  }
  const auto loaded = KvStore::load(
      world.runtime, path, [](const KvStoreParams& saved) { return saved; }, nullptr);
  assert_true(attended(*loaded) == wanted);
  const uint64_t before = world.runtime->buffer->stats().frame_bytes;
  assert_true(before > 0);
  auto session = world.session();
  read(*session, 1);
  assert_true(world.runtime->buffer->stats().frame_bytes < before);
  assert_true(attended(*loaded) == wanted);
  assert_true(write(*session, 20) == alone(1, 20));
  assert_true(attended(*loaded) == wanted);
  assert_true(world.runtime->pool->peak() <= world.runtime->pool->budget());
}

// What cannot leave is more than there is: the message says so, and the session is as it was.
void no_room_for_what_must_stay_is_a_status(void**) {
  World world(uint64_t{2} << 20);
  auto session = world.session();
  std::string message;
  wi_status status = WI_OK;
  try {
    for (uint64_t i = 0;; ++i) read(*session, i);
  } catch (const Error& error) {
    status = error.code();
    message = error.what();
  }
  assert_int_equal(status, WI_E_BUDGET);
  assert_non_null(std::strstr(message.c_str(), "must be in fast memory"));
  assert_true(session->stats().tokens > 0);
  assert_int_equal(session->stats().tokens % kPrompt, 0);
  const Residency::Part part = session->residency();
  assert_int_equal(part.part, 0);
  assert_int_equal(part.whole + part.frames, 0);
}

uint64_t said_to_be_needed(const std::string& message) {
  static const std::regex pattern("and ([0-9]+) bytes must be in fast memory");
  std::smatch found;
  if (!std::regex_search(message, found, pattern)) fail_because("%s", message.c_str());
  return std::stoull(found[1]);
}

// A budget of what the message says is enough for what was refused, segments in the making included.
void a_budget_as_the_message_says_gets_on(void**) {
  for (const bool store : {false, true}) {
    uint64_t budget = uint64_t{100} << 10;
    int tries = 0;
    for (bool done = false; !done; ++tries) {
      assert_true(tries < 60);
      World world(budget);
      try {
        if (store) {
          KvStoreParams params;
          params.shape = {2, 2, 64, DType::f16};
          params.query_heads = 2;
          params.policy = find_policy(world.runtime->backend, "wave");
          params.policy_params = world.params().policy_params;
          KvStore store(world.runtime, params);
          const std::vector<float> rows(size_t{700} * 2 * 64, 0.5f);
          for (int32_t layer = 0; layer < 2; ++layer) store.append(layer, 700, rows.data(), rows.data());
          store.seal();
        } else {
          auto session = world.session();
          read(*session, 0, 700);
          write(*session, 70);
        }
        done = true;
      } catch (const Error& error) {
        assert_int_equal(error.code(), WI_E_BUDGET);
        const uint64_t said = said_to_be_needed(error.what());
        if (said <= budget)
          fail_because("%s; %llu is the budget", error.what(), static_cast<unsigned long long>(budget));
        budget = said;
      }
    }
    std::printf("  %s: %llu bytes are enough, which took %d tries\n", store ? "store" : "session",
                static_cast<unsigned long long>(budget), tries);
    assert_true(tries > 1);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(parts_are_in_proportion_within_floors_and_limits),
      cmocka_unit_test(a_newcomer_in_a_full_runtime_takes_its_part),
      cmocka_unit_test(the_others_grow_back_when_one_ends),
      cmocka_unit_test(sessions_of_five_times_the_budget_all_go_on),
      cmocka_unit_test(sessions_that_come_and_go_say_what_they_say_alone),
      cmocka_unit_test(frames_that_a_step_keeps_go_when_it_ends),
      cmocka_unit_test(what_nobody_has_any_more_is_not_written_to_its_end),
      cmocka_unit_test(nor_by_a_call_that_waits_for_its_room),
      cmocka_unit_test(a_step_does_not_look_at_idle_sessions),
      cmocka_unit_test(what_the_manager_lets_go_of_keeps_nobody),
      cmocka_unit_test(a_newcomer_waits_for_the_memory_of_one_that_is_being_closed),
      cmocka_unit_test(a_save_that_takes_long_keeps_nobody_from_room),
      cmocka_unit_test(a_session_that_writes_does_not_wait_for_those_that_read),
      cmocka_unit_test(a_batch_that_writes_does_not_wait_for_those_that_read),
      cmocka_unit_test(calls_that_find_no_room_end_soon),
      cmocka_unit_test(whatever_makes_a_session_finds_room),
      cmocka_unit_test(whatever_a_session_has_become_finds_room),
      cmocka_unit_test(tasks_of_more_than_the_budget_run_side_by_side),
      cmocka_unit_test(a_slow_tier_that_takes_nothing_is_the_newcomers_status),
      cmocka_unit_test(what_the_slow_tier_refuses_stays_in_memory),
      cmocka_unit_test(a_store_takes_room_from_an_idle_session),
      cmocka_unit_test(a_store_outgrows_memory_and_goes_on),
      cmocka_unit_test(a_store_in_place_gives_frames_to_a_newcomer),
      cmocka_unit_test(no_room_for_what_must_stay_is_a_status),
      cmocka_unit_test(a_budget_as_the_message_says_gets_on),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
