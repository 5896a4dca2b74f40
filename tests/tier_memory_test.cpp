// Two tiers while the system refuses memory (support/refusal.h): each allocation once, alone and with all that
// follow, in a prompt that outgrows its memory, in steps that read what has left it, in the manager beside them,
// and in all else that is done with such a session. A call then says so or does without; in the end every logit
// is that of a session which has everything in memory.
#include "tests/support/tiers.h"
// After it: names of a host's are in it.
#include "tests/support/refusal.h"

// The shared library's, of which this test has the inside alone.
const char* wi_status_name(wi_status) { return "status"; }

namespace {

using namespace wi::test;

// Worlds have no helpers: what other libraries keep for a thread stays with its stack for the next one, and whether a
// helper came to work at all is chance.

// As the ABI's guard() has it.
template <class Body>
wi_status status_of(wi_error* error, const Body& body) {
  try {
    body();
    return WI_OK;
  } catch (const wi::Error& thrown) {
    error->code = thrown.code();
    error->native_code = thrown.native_code();
    std::snprintf(error->message, sizeof error->message, "%s", thrown.what());
  } catch (const std::bad_alloc&) {
    error->code = WI_E_MEMORY;
  }
  return error->code;
}
template <class Body>
void attempt_to(const Attempt& attempt, const Body& body) {
  attempt([&](wi_error* error) { return status_of(error, body); });
}

std::shared_ptr<const wi::Model> model;

std::vector<float> logits_of(wi::Session& session) {
  const std::span<const float> logits = session.logits(nullptr);
  return {logits.begin(), logits.end()};
}

// The tokens that a step is given, up to so many in all; called again it goes on where it was.
void accept_until(wi::Session& session, uint64_t tokens) {
  while (session.stats().tokens < tokens) {
    session.accept(static_cast<int32_t>(session.stats().tokens % 100), nullptr);
    session.logits(nullptr);
  }
}

const std::vector<int32_t> kPrompt = random_prompt(700);

// What sessions say that have everything in memory.
struct Expected {
  Expected() {
    const auto session = fast.session(0);
    session->prefill(kPrompt, chunks_of(150), nullptr);
    prompt = logits_of(*session);
    accept_until(*session, 770);
    decoded = logits_of(*session);
    accept_until(*session, 771);
    session->truncate(770);
    again = logits_of(*session);
    session->truncate(500);
    cut = logits_of(*session);
  }
  const TiersWorld fast{{.slow = false}, model};
  std::vector<float> prompt, decoded, again, cut;  // again: computed anew from what is kept
};

void sweep_few(const char* name, const std::function<void(const Attempt&)>& body) { sweep(name, body, 3, 9); }

void sweep_opening() {
  const TiersWorld world({.threads = 1}, model);
  sweep_few("opening a slow tier", [&](const Attempt& attempt) {
    const wi::RuntimeParams params = world.runtime_params({.threads = 2});
    std::shared_ptr<wi::Runtime> runtime;
    attempt_to(attempt, [&] { runtime = wi::Runtime::create(params); });
    require(runtime->buffer->stats().slow_bytes == 0);
  });
}

void sweep_reading() {
  const Expected expected;
  sweep_few("a prompt that outgrows its memory", [&](const Attempt& attempt) {
    const TiersWorld world({.threads = 1}, model);
    const auto session = world.session(0.05f);
    attempt_to(attempt, [&] { session->prefill(kPrompt, chunks_of(150), nullptr); });
    require(session->sequence().slow_segments() > 0);
    require(logits_of(*session) == expected.prompt);
  });
}

void sweep_decoding() {
  const Expected expected;
  for (const wi::BufferManager manager : {wi::BufferManager::lru, wi::BufferManager::bucketed}) {
    sweep_few("steps, and the manager beside them", [&](const Attempt& attempt) {
      const TiersWorld world({.manager = manager, .threads = 1}, model);
      const auto session = world.session(0.3f);
      session->prefill(kPrompt, chunks_of(150), nullptr);
      attempt_to(attempt, [&] { accept_until(*session, 770); });
      require(logits_of(*session) == expected.decoded);
      // What the manager was not told, or could not do, it does later.
      const wi::Sequence& sequence = session->sequence();
      for (int tries = 0; sequence.slow_segments() < sequence.segments().size(); ++tries) {
        require(tries < 1000);
        accept_until(*session, session->stats().tokens + 1);
        usleep(500);
      }
    });
  }
}

void sweep_saving() {
  const Expected expected;
  sweep_few("saving and loading", [&](const Attempt& attempt) {
    const TiersWorld world({.threads = 1}, model);
    const auto session = world.session(0.1f);
    session->prefill(kPrompt, chunks_of(150), nullptr);
    accept_until(*session, 770);
    SavedBytes saved;
    attempt_to(attempt, [&] {
      saved.of.clear();
      session->save(saved, nullptr);
    });
    std::shared_ptr<wi::Session> loaded;
    attempt_to(attempt, [&] {
      loaded = wi::Session::load(
          world.runtime, world.model, saved, [](const wi::SessionParams& params) { return params; }, nullptr);
    });
    for (wi::Session* one : {session.get(), loaded.get()}) {
      accept_until(*one, 771);
      one->truncate(770);
      require(logits_of(*one) == expected.again);
    }
  });
}

void sweep_cutting() {
  const Expected expected;
  sweep_few("cutting and forking", [&](const Attempt& attempt) {
    const TiersWorld world({.threads = 1}, model);
    const auto session = world.session(0.1f);
    session->prefill(kPrompt, chunks_of(150), nullptr);
    accept_until(*session, 770);
    std::shared_ptr<wi::Session> fork, other;
    attempt_to(attempt, [&] { fork = session->fork(); });
    attempt_to(attempt, [&] { fork->truncate(500); });
    require(logits_of(*fork) == expected.cut);
    wi::SessionParams params = world.params(0.1f);
    params.policy_params.segment_tokens = 128;
    attempt_to(attempt, [&] { other = session->fork_as(params, nullptr); });
    require(logits_of(*other) == expected.decoded);
    require(logits_of(*session) == expected.decoded);
  });
}

// Two that want more than there is: the second one's prompt takes from the first, then both write.
void sweep_sharing() {
  const Expected expected;
  const std::vector<int32_t> second = random_prompt(700, 1);
  std::vector<float> wanted;
  uint64_t bytes = 0;
  {
    const auto session = expected.fast.session(0);
    session->prefill(second, chunks_of(150), nullptr);
    accept_until(*session, 770);
    wanted = logits_of(*session);
    bytes = session->stats().kv_bytes;
  }
  sweep_few("two sessions in the memory of one", [&](const Attempt& attempt) {
    const TiersWorld world({.kv_budget_bytes = bytes * 3 / 2, .threads = 1}, model);
    const auto one = world.session(0), other = world.session(0);
    one->prefill(kPrompt, chunks_of(150), nullptr);
    attempt_to(attempt, [&] { other->prefill(second, chunks_of(150), nullptr); });
    attempt_to(attempt, [&] { accept_until(*one, 770); });
    attempt_to(attempt, [&] { accept_until(*other, 770); });
    require(one->sequence().slow_segments() > 0);
    require(logits_of(*one) == expected.decoded);
    require(logits_of(*other) == wanted);
  });
}

// Of a KV store, in half of the memory that it takes.
void sweep_store() {
  const auto plainly = [](const auto& call) { call(); };
  const uint64_t little = little_for_a_store(model, "wave", plainly);
  const std::vector<float> wanted = life_of_a_store(TiersWorld({.slow = false}, model), "wave", plainly);
  sweep_few("a KV store in two tiers", [&](const Attempt& attempt) {
    const TiersWorld world({.kv_budget_bytes = little, .threads = 1}, model);
    require(life_of_a_store(world, "wave", [&](const auto& call) { attempt_to(attempt, call); }) == wanted);
    require(world.buffer().stats().file.written_bytes > 0);
  });
}

// However little memory there is, what a step may be reading is there until it has ended.
void what_steps_read_is_not_freed_for_want_of_memory(void**) {
  const TiersWorld world({.threads = 1}, model);
  wi::WaveBuffer& buffer = world.buffer();
  constexpr size_t kBytes = 1 << 20;
  const auto used = [&] { return world.runtime->pool->used(); };
  const uint64_t before = used();
  {
    const wi::WaveBuffer::Reading reading(&buffer);
    std::vector<wi::HostBuffer> pages(20);
    for (wi::HostBuffer& of : pages) of = world.runtime->pool->allocate(kBytes, "pages");
    for (wi::HostBuffer& of : pages) {
      const wi::WaveBuffer::Retiring retiring(buffer);
      choose(0, true);
      armed = true;
      buffer.retire(std::move(of));
      armed = false;
    }
    assert_int_equal(used(), before + pages.size() * kBytes);
  }
  assert_int_equal(used(), before);
}

}  // namespace

int main() {
  shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  model = TiersWorld::make_model();
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_steps_read_is_not_freed_for_want_of_memory),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_opening>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_reading>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_decoding>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_saving>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_cutting>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_sharing>),
      cmocka_unit_test(each_allocation_may_be_refused_in<sweep_store>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
