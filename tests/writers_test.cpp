// Tasks that write beside one that has no room for its next token: what the others do meanwhile, and what becomes of it.
#include <functional>
#include <thread>

#include "src/engine/engine.h"
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
    std::vector<std::shared_ptr<Session>> sessions;
    for (uint64_t i = 1; i <= kOthers; ++i) sessions.push_back(session_in(world, kInBlock, i));
    Writer holding = submitted(std::move(gate), 1, &wait);
    while (!held) std::this_thread::yield();
    for (auto& session : sessions) {
      if (others.size() == 1) full_one = submitted(full_session, full_ones_tokens, &full);
      others.push_back(submitted(std::move(session), others_tokens));
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

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(others_share_a_pass_beside_one_that_has_no_room),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
