// Keys and values are read by kernels and by copies alone: a session and a KV store live their whole lives in
// memory that is closed to everything else, and do what they do in the host's, to the bit.
#include "tests/support/guarded_memory.h"

#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "src/kv_store.h"
#include "src/pipeline/building.h"
#include "src/session.h"
#include "src/store/byte_stream.h"
#include "tests/support/policies.h"
#include "tests/support/random_model.h"
#include "tests/support/tiers.h"
#include "tests/test.h"

using namespace wi;

namespace {

std::shared_ptr<Runtime> runtime_with(int32_t threads, bool guarded) {
  RuntimeParams params;
  params.threads = threads;
  params.kv_budget_bytes = uint64_t{1} << 28;
  if (guarded) {
    params.backend = &test::guarded_backend();
    params.kv_memory = std::make_shared<test::GuardedMemory>();
  }
  return Runtime::create(params);
}

struct Bytes final : ByteSink, ByteSource {
  void write(const void* data, size_t count) override { held.append(static_cast<const char*>(data), count); }
  uint64_t bytes() const override { return held.size(); }
  void read(uint64_t offset, void* to, size_t count) override {
    std::memcpy(to, held.data() + offset, count);
  }
  std::string held;
};

// What a life leaves behind: equal if it was the same.
struct Record {
  std::vector<int32_t> tokens;
  std::vector<float> numbers;
  std::vector<std::string> files;

  void decode(Session& session, int steps) {
    for (int i = 0; i < steps; ++i) tokens.push_back(session.decode(nullptr).token);
    const auto logits = session.logits(nullptr);
    numbers.insert(numbers.end(), logits.begin(), logits.end());
  }
};

void assert_same(const Record& a, const Record& b) {
  assert_true(a.tokens == b.tokens);
  assert_int_equal(a.numbers.size(), b.numbers.size());
  assert_memory_equal(a.numbers.data(), b.numbers.data(), a.numbers.size() * sizeof(float));
  assert_true(a.files == b.files);
}

template <class Params>
void small_segments(Params& params) {
  params.policy_params.segment_tokens = 256;
  params.policy_params.decode_segment_tokens = 64;
}

Record life_of_a_session(const std::shared_ptr<Runtime>& runtime, const std::shared_ptr<const Model>& model,
                         const char* policy, DType kv) {
  SessionParams params;
  params.policy = find_policy(runtime->backend, policy);
  params.kv = kv;
  params.sparse_read_tokens = 8;
  params.any_prefix = true;
  small_segments(params);
  std::mt19937_64 random(test::seed());
  std::vector<int32_t> ids(900);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  const std::span<const int32_t> prompt(ids);

  // In pieces, some of them sealed again as parts of longer segments, one read through the policy.
  Record record;
  const auto session = Session::create(runtime, model, params);
  for (size_t done = 0; done < 700;) {
    const size_t count = std::min<size_t>(done == 300 ? 5 : 300 - done % 300, 700 - done);
    session->prefill(prompt.subspan(done, count), {}, nullptr);
    done += count;
  }
  record.decode(*session, 20);

  // Together until segments were made while decoding.
  const auto fork = session->fork();
  record.decode(*fork, 7);
  const size_t segments = session->sequence().segments().size();
  Session* const both[] = {session.get(), fork.get()};
  for (int i = 0; i < kBuildTokens + 150; ++i) {
    Event events[2];
    Session::decode_batch(both, nullptr, events);
    record.tokens.push_back(events[0].token);
    record.tokens.push_back(events[1].token);
  }
  assert_true(session->sequence().segments().size() > segments);

  // Back into segments, to borders and between them.
  for (const int64_t kept : {1100, 701, 560, 300, 70, 2}) {
    const auto cut = fork->fork();
    cut->truncate(kept);
    record.decode(*cut, 12);
    cut->prefill(prompt.last(200), {}, nullptr);
    record.decode(*cut, 3);
  }
  fork->truncate(700);  // its prompt's end
  record.decode(*fork, 10);

  for (Session* const saved : both) {
    Bytes file;
    saved->save(file, nullptr);
    record.files.push_back(file.held);
    const auto loaded = Session::load(
        runtime, model, file, [](const SessionParams& as_saved) { return as_saved; }, nullptr);
    record.decode(*loaded, 10);
    for (const char* other : {"full", "wave"}) {
      SessionParams changed = params;
      changed.policy = find_policy(runtime->backend, other);
      changed.policy_params.segment_tokens = 512;
      record.decode(*loaded->fork_as(changed, nullptr), 5);
    }
  }

  // What others have of the prompt, and keys and values from elsewhere.
  const auto reader = Session::create(runtime, model, params);
  reader->prefill(prompt.first(800), {}, nullptr);
  assert_true(reader->stats().prefix_tokens > 0);
  record.decode(*reader, 5);
  const auto filled = Session::create(runtime, model, params);
  const int64_t width = int64_t{model->config.kv_heads} * model->config.head_dim;
  const auto fill = [&](int32_t layer, int64_t first, int64_t count, float* keys, float* values) {
    std::mt19937_64 own(test::seed() + static_cast<uint64_t>(layer * 1000 + first));
    for (int64_t i = 0; i < count * width; ++i) {
      keys[i] = static_cast<float>(own() % 1000) * 0.002f - 1;
      values[i] = static_cast<float>(own() % 1000) * 0.002f - 1;
    }
  };
  filled->append_computed(prompt, fill, nullptr);
  record.decode(*filled, 5);
  return record;
}

Record life_of_a_store(const std::shared_ptr<Runtime>& runtime, const char* policy) {
  constexpr int32_t kHeads = 2, kGroup = 2, kDim = 32, kTokens = 900;
  KvStoreParams params;
  params.shape = {2, kHeads, kDim, DType::bf16};
  params.query_heads = kHeads * kGroup;
  params.policy = find_policy(runtime->backend, policy);
  small_segments(params);
  std::mt19937_64 random(test::seed());
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(kTokens * kHeads * kDim)), query(kHeads * kGroup * kDim);
  for (float& number : rows) number = normal(random);
  for (float& number : query) number = normal(random);

  Record record;
  const auto attend = [&](KvStore& store) {
    std::vector<float> out(query.size() + params.query_heads);
    for (int32_t layer = 0; layer < 2; ++layer) {
      store.attend(layer, 1, query.data(), nullptr, out.data(), out.data() + query.size());
      record.numbers.insert(record.numbers.end(), out.begin(), out.end());
    }
  };
  const auto store = std::make_shared<KvStore>(runtime, params);
  for (int64_t done = 0; done < kTokens; done += 300) {
    const float* const from = rows.data() + done * kHeads * kDim;
    for (int32_t layer = 0; layer < 2; ++layer) store->append(layer, 300, from, from);
    store->seal();
    attend(*store);
  }
  const auto fork = store->fork();
  fork->truncate(480);
  attend(*fork);
  for (int32_t layer = 0; layer < 2; ++layer) fork->append(layer, 1, rows.data(), rows.data());
  Bytes file;
  fork->save(file, nullptr);
  record.files.push_back(file.held);
  attend(*KvStore::load(
      runtime, file, [](const KvStoreParams& as_saved) { return as_saved; }, nullptr));
  return record;
}

void what_is_neither_copy_nor_kernel_is_a_fault(void**) {
  const auto pool =
      HostPool::create(std::make_shared<MemoryBudget>(1 << 20), std::make_shared<test::GuardedMemory>());
  const HostBuffer buffer = pool->allocate(5000, "keys");
  const auto reads = [&] { return *static_cast<const volatile std::byte*>(buffer.data() + 4999); };
  const uint8_t written = 7;
  buffer.copy_in(4999, &written, 1);
  {
    const test::GuardedMemory::Opening open;
    assert_true(reads() == std::byte{7});
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, [](int) { _exit(42); });
    reads();
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  uint8_t read = 0;
  buffer.copy_out(4999, &read, 1);
  assert_int_equal(read, 7);
}

void the_guard_stands_before_every_policy(void**) {
  assert_int_equal(test::guarded_backend().policy_count, cpu_backend().policy_count);
}

void sessions_live_the_same_in_guarded_memory(void**) {
  const test::ModelShape tiny = test::shape_named("tiny");
  test::ModelShape windowed = tiny;
  windowed.layers = 3;
  windowed.windows = {100, 0, 350};
  for (const test::ModelShape& shape : {tiny, windowed}) {
    const auto model = test::random_model(shape, DType::f32, 7);
    for (const char* policy : test::policies()) {
      for (const int32_t threads : {1, 2}) {
        const DType kv = threads == 1 ? DType::f16 : DType::f32;
        assert_same(life_of_a_session(runtime_with(threads, false), model, policy, kv),
                    life_of_a_session(runtime_with(threads, true), model, policy, kv));
      }
    }
  }
}

void stores_live_the_same_in_guarded_memory(void**) {
  for (const char* policy : test::policies())
    for (const int32_t threads : {1, 2})
      assert_same(life_of_a_store(runtime_with(threads, false), policy),
                  life_of_a_store(runtime_with(threads, true), policy));
}

// Segments leave for a file after they were made, or go there straight, blocks of the tail before them; what steps and
// chunks want of them is read back, from that file and from a saved one.
void what_leaves_guarded_memory_says_the_same(void**) {
  const auto model = test::TiersWorld::make_model();
  uint64_t peak = 0;
  const auto life = [&](const test::Tiers& tiers, bool guarded, const char* policy, DType kv, float share) {
    const test::TiersWorld world(tiers, model);
    RuntimeParams runtime_params = world.runtime_params(tiers);
    if (guarded) {
      runtime_params.backend = &test::guarded_backend();
      runtime_params.kv_memory = std::make_shared<test::GuardedMemory>();
    }
    const auto runtime = Runtime::create(runtime_params);
    SessionParams params = world.params(share);
    params.policy = find_policy(runtime->backend, policy);
    params.kv = kv;
    Record record;
    const auto session = Session::create(runtime, model, params);
    session->prefill(test::random_prompt(900), test::chunks_of(150), nullptr);
    record.decode(*session, 20);
    const auto fork = session->fork();
    fork->truncate(600);
    record.decode(*fork, 3);
    fork->prefill(test::random_prompt(300, 1), test::chunks_of(100), nullptr);
    record.decode(*fork, 3);
    Bytes saved;
    session->save(saved, nullptr);
    record.files.push_back(saved.held);
    const std::string path = world.folder.file("saved");
    session->save(path, nullptr);
    const auto as_saved = [](const SessionParams& own) { return own; };
    record.decode(*Session::load(runtime, model, saved, as_saved, nullptr), 3);
    record.decode(*Session::load(runtime, model, path, as_saved, nullptr), 3);
    peak = runtime->pool->peak();
    if (tiers.slow) assert_true(runtime->buffer->stats().file.written_bytes > 0);
    return record;
  };
  for (const char* policy : {"wave", "full"}) {
    for (const DType kv : {DType::f16, DType::f32}) {
      const Record wanted = life({.slow = false, .threads = 1}, false, policy, kv, 0);
      const uint64_t little = peak / 2;
      for (const float share : {0.02f, 0.3f})
        assert_same(wanted, life({.threads = 1}, true, policy, kv, share));
      assert_same(wanted, life({.kv_budget_bytes = little, .threads = 1}, true, policy, kv, 0));
    }
  }
}

// A copy from or to a device takes a few microseconds, however small: they are planes and blocks, and not tokens of
// which a partition's neighbours lie apart.
void copies_are_few(void**) {
  const auto runtime = runtime_with(1, true);
  const auto model = test::random_model(test::shape_named("tiny"), DType::f32, 7);
  SessionParams params;
  params.policy = find_policy(runtime->backend, "wave");
  params.prefix_reuse = false;
  small_segments(params);
  std::mt19937_64 random(test::seed());
  std::vector<int32_t> ids(1500);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  const auto session = Session::create(runtime, model, params);
  session->prefill(ids, {}, nullptr);
  const Sequence& sequence = session->sequence();
  assert_true(sequence.segments().size() > 4);

  const uint64_t planes = static_cast<uint64_t>(sequence.shape().layers * sequence.shape().kv_heads),
                 blocks = 1500 / kBlockTokens + 2;
  const auto few = [&](const char* what, const auto& work) {
    const uint64_t before = test::GuardedMemory::copied;
    work();
    const uint64_t copies = test::GuardedMemory::copied - before;
    std::printf("  %s: %zu copies for %zu blocks of %zu planes\n", what, size_t{copies}, size_t{blocks},
                size_t{planes});
    assert_true(copies <= 3 * blocks * planes);
  };
  Bytes file;
  few("save", [&] { session->save(file, nullptr); });
  const auto as_saved = [](const SessionParams& saved) { return saved; };
  few("load", [&] { Session::load(runtime, model, file, as_saved, nullptr); });
  SessionParams other = params;
  other.policy = find_policy(runtime->backend, "full");
  few("fork_as", [&] { session->fork_as(other, nullptr); });
  few("truncate", [&] { session->truncate(600); });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_neither_copy_nor_kernel_is_a_fault),
      cmocka_unit_test(the_guard_stands_before_every_policy),
      cmocka_unit_test(sessions_live_the_same_in_guarded_memory),
      cmocka_unit_test(stores_live_the_same_in_guarded_memory),
      cmocka_unit_test(what_leaves_guarded_memory_says_the_same),
      cmocka_unit_test(copies_are_few),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
