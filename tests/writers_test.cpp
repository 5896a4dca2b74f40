// Tasks that write beside one that has no room for its next token: what the others do meanwhile, and what becomes of it.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <thread>

#include "src/engine/engine.h"
#include "tests/support/failing_calls.h"
#include "tests/support/in_time.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tiers.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr size_t kAtBrim = kSinkTokens + kBlockTokens;  // whose second token wants another block
constexpr size_t kInBlock = kAtBrim + 10;
constexpr int kOthers = 3;

// Rows of each pass over the weights; on the engine's thread.
std::vector<int64_t> passes;

const Backend& counting_backend() {
  static const Backend backend = [] {
    Backend counting = cpu_backend();
    counting.embed = [](const Stream& stream, const EmbedArgs& args) {
      passes.push_back(args.rows);
      cpu_backend().embed(stream, args);
    };
    return counting;
  }();
  return backend;
}

const std::shared_ptr<const Model>& model() {
  static const std::shared_ptr<const Model> shared = [] {
    ModelShape shape;
    shape.name = "writers";
    shape.layers = 8;  // a write each, of each of two heads, for a segment that leaves
    shape.head_dim = 32;
    return random_model(shape, DType::f32, seed());
  }();
  return shared;
}

std::shared_ptr<Session> session_in(const TiersWorld& world, size_t tokens, uint64_t salt) {
  SessionParams params = world.params(0);
  params.policy_params.decode_segment_tokens = 256;  // more than it will have: nothing is made of them
  const auto session = Session::create(world.runtime, world.model, params);
  session->prefill(random_prompt(tokens, salt), {}, nullptr);
  return session;
}

// What it says where there is room.
std::vector<int32_t> alone(size_t tokens, uint64_t salt, size_t count) {
  const TiersWorld world({.slow = false}, model());
  const auto session = session_in(world, tokens, salt);
  std::vector<int32_t> written;
  while (written.size() < count) written.push_back(session->decode(nullptr).token);
  return written;
}

// Does something of the test's on the engine's thread, with a session's first token.
struct Then {
  explicit Then(std::function<void()> given) : what(std::move(given)) {}
  std::function<void()> what;
  SamplingParams sampling() {
    SamplingParams sampling;
    sampling.logits_callback = [](void* user, float*, uint64_t) {
      auto& self = *static_cast<Then*>(user);
      if (self.what) std::exchange(self.what, {})();
      return 0;
    };
    sampling.logits_user = this;
    return sampling;
  }
};

struct Writer {
  std::shared_ptr<Task> task;
  std::vector<int32_t> written;
  void take() {
    task->poll(100, [&](size_t, const Event& event) {
      if (event.kind == WI_EVENT_TOKEN) written.push_back(event.token);
    });
  }
  void take_until(size_t tokens) {
    for (take(); written.size() < tokens && !task->ended(); take()) task->wait(-1);
    take();
  }
};

Writer submitted(std::shared_ptr<Session> session, uint64_t most_tokens, Then* then = nullptr) {
  TaskParams params;
  params.max_tokens = most_tokens;
  if (then) params.sampling = then->sampling();
  Writer writer{std::make_shared<Task>(std::move(session), std::move(params)), {}};
  submit_task(writer.task);
  return writer;
}

// Some tasks in one step from the first one on, one of which has no room for its second token: others have it, a buffer
// of the test's, and whoever may leave.
struct Company {
  Company(const TiersWorld& of, uint64_t full_ones_tokens, uint64_t others_tokens,
          std::function<void()> and_then = {})
      : world(of), full([this, then = std::move(and_then)] {
          HostPool& pool = *world.runtime->pool;
          const uint64_t block = kBlockTokens * kv_shape_of(*world.model, DType::f16).token_bytes();
          hog = pool.allocate(pool.budget() - pool.used() - block / 2, "a test");
          passes.clear();
          if (then) then();
        }) {
    auto gate = session_in(world, 20, 99);
    std::atomic<bool> held{false}, open{false};
    Then wait([&] {
      held = true;
      while (!open) std::this_thread::yield();
    });
    const auto full_session = session_in(world, kAtBrim, 0);
    for (uint64_t i = 1; i <= kOthers; ++i) sessions.push_back(session_in(world, kInBlock, i));
    Writer holding = submitted(std::move(gate), 1, &wait);
    while (!held) std::this_thread::yield();
    for (const auto& session : sessions) {
      if (others.size() == 1) full_one = submitted(full_session, full_ones_tokens, &full);
      others.push_back(submitted(session, others_tokens));
    }
    open = true;
    holding.take_until(2);
  }
  Company(const Company&) = delete;
  ~Company() {
    for (const Writer& other : others) other.task->abandon();
    full_one.task->abandon();
    full_one.take_until(SIZE_MAX);
    for (Writer& other : others) other.take_until(SIZE_MAX);
  }
  const TiersWorld& world;
  HostBuffer hog;
  Then full;
  std::vector<std::shared_ptr<Session>> sessions;  // of the others: what they have stays theirs
  Writer full_one;
  std::vector<Writer> others;
};

void others_share_a_pass_beside_one_that_has_no_room(void**) {
  constexpr size_t kTokens = 8;
  for (const bool slow : {false, true}) {
    const TiersWorld world(
        {.slow = slow, .kv_budget_bytes = uint64_t{64} << 20, .backend = &counting_backend()}, model());
    Company company(world, kTokens, kTokens);
    for (uint64_t i = 0; i < kOthers; ++i) {
      company.others[i].take_until(kTokens);
      assert_true(company.others[i].written == alone(kInBlock, i + 1, kTokens));
    }
    company.full_one.take_until(kTokens);
    assert_int_equal(company.full_one.task->info().status, WI_E_BUDGET);
    assert_int_equal(company.full_one.written.size(), 1);
    assert_int_equal(company.full_one.written[0], alone(kAtBrim, 0, 1)[0]);
    assert_true(passes == std::vector<int64_t>(kTokens - 1, kOthers));
  }
}

// ---- While its room is on its way ----

constexpr size_t kFullOnes = 5, kOthersTokens = 40;  // less than wants another block

// With a session whose segments are whole, which has to make way, each in 16 writes.
struct Filled {
  TiersWorld world{{.kv_budget_bytes = uint64_t{64} << 20, .backend = &counting_backend()}, model()};
  std::shared_ptr<Session> idle = world.session(0);
  Filled() { idle->prefill(random_prompt(900, 50), {}, nullptr); }
  std::span<const std::shared_ptr<const Segment>> segments() const { return idle->sequence().segments(); }
  bool some_left() const {
    return std::any_of(segments().begin(), segments().end(), [](const auto& of) { return of->is_slow(); });
  }
};

void check_others(Company& company) {
  for (uint64_t i = 0; i < kOthers; ++i) {
    company.others[i].take_until(kOthersTokens);
    assert_int_equal(company.others[i].task->info().status, WI_OK);
    assert_true(company.others[i].written == alone(kInBlock, i + 1, kOthersTokens));
  }
}

void check_full_one(Company& company) {
  company.full_one.take_until(kFullOnes);
  assert_string_equal(company.full_one.task->info().message.c_str(), "");
  assert_true(company.full_one.written == alone(kAtBrim, 0, kFullOnes));
}

void others_write_while_its_room_is_written_to_a_slow_disk(void**) {
  const Filled filled;
  assert_true(filled.segments().size() >= 2 && !filled.some_left());
  Company company(filled.world, kFullOnes, kOthersTokens, [] { arm(kPwrite, kSlow); });
  check_others(company);
  const bool in_time = !filled.some_left();
  disarm();
  assert_in_time(in_time);
  check_full_one(company);
  assert_true(filled.some_left());
}

void it_is_cancelled_while_its_room_is_written_to_a_slow_disk(void**) {
  const Filled filled;
  Company company(filled.world, kFullOnes, kOthersTokens, [] { arm(kPwrite, kSlow); });
  company.full_one.take_until(1);
  while (fault.calls[kPwrite] == 0) std::this_thread::yield();
  company.full_one.task->cancel();
  company.full_one.take_until(kFullOnes);
  const bool in_time = !filled.some_left();
  disarm();
  assert_in_time(in_time);
  assert_int_equal(company.full_one.task->info().status, WI_E_CANCELLED);
  assert_int_equal(company.full_one.written.size(), 1);
  check_others(company);
}

// What has left is read on by somebody, and its memory not free until then.
void others_write_while_a_reader_keeps_its_room(void**) {
  const Filled filled;
  WaveBuffer& buffer = filled.world.buffer();
  WaveBuffer::Reading reading(&buffer);
  Company company(filled.world, kFullOnes, kOthersTokens);
  check_others(company);
  company.full_one.take();
  assert_int_equal(company.full_one.written.size(), 1);
  const clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double share = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC / 0.5;
  std::printf("  a task that waits alone takes %.0f %% of a processor\n", 100 * share);
  assert_in_time(share < 0.5);
  assert_true(buffer.memory().retired > 0);
  assert_false(company.full_one.task->ended());
  reading.end();
  check_full_one(company);
}

// For ten seconds, as calls do.
void it_does_not_wait_for_ever(void**) {
  const Filled filled;
  const WaveBuffer::Reading reading(&filled.world.buffer());
  Company company(filled.world, kFullOnes, kOthersTokens);
  check_others(company);
  const auto start = std::chrono::steady_clock::now();
  company.full_one.take_until(kFullOnes);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  assert_int_equal(company.full_one.task->info().status, WI_E_BUDGET);
  assert_int_equal(company.full_one.written.size(), 1);
  std::printf("  it waited %.1f s\n", seconds);
  assert_true(seconds > 5);
  assert_in_time(seconds < 20);
}

// Whoever writes it there is another thread, and the reason the task's all the same.
void it_says_why_the_slow_tier_refuses_what_is_to_leave(void**) {
  const Filled filled;
  Company company(filled.world, kFullOnes, kOthersTokens, [] { arm(kPwrite, EIO); });
  check_others(company);
  company.full_one.take_until(kFullOnes);
  disarm();
  const TaskInfo info = company.full_one.task->info();
  assert_int_equal(info.status, WI_E_IO);
  assert_int_equal(info.native_code, EIO);
  assert_int_equal(company.full_one.written.size(), 1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(others_share_a_pass_beside_one_that_has_no_room),
      cmocka_unit_test(others_write_while_its_room_is_written_to_a_slow_disk),
      cmocka_unit_test(it_is_cancelled_while_its_room_is_written_to_a_slow_disk),
      cmocka_unit_test(others_write_while_a_reader_keeps_its_room),
      cmocka_unit_test(it_does_not_wait_for_ever),
      cmocka_unit_test(it_says_why_the_slow_tier_refuses_what_is_to_leave),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
