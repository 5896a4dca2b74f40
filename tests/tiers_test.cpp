// A session whose keys and values are for the most part in a file says what one says that has them all in memory:
// the same bits of every logit, whatever is done with it.
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <thread>
#include <unistd.h>
#include <vector>

#include "src/session.h"
#include "tests/support/fewer.h"
#include "tests/support/folder.h"
#include "tests/support/kernel_test.h"
#include "tests/support/policies.h"
#include "tests/support/random_model.h"
#include "tests/support/runtime.h"
#include "tests/support/session_bytes.h"

using namespace wi;

namespace {

constexpr int kPrompt = 3000, kOfALife = test::slow_or(2000, kPrompt);

test::ModelShape shape(const std::vector<int32_t>& windows) {
  test::ModelShape shape;
  shape.name = "tiers";
  shape.layers = windows.empty() ? test::emulated_or(2, 3) : 3;
  shape.hidden = shape.ffn = test::emulated_or(64, 128);
  shape.query_heads = test::emulated_or(2, 4);
  shape.kv_heads = test::emulated_or(1, 2);
  shape.head_dim = test::emulated_or(32, 64);
  shape.windows = windows;
  return shape;
}

struct World {
  explicit World(bool slow, BufferManager manager = BufferManager::lru,
                 const std::vector<int32_t>& windows = {}) {
    RuntimeParams params;
    params.threads = 2;
    params.kv_budget_bytes = uint64_t{256} << 20;
    if (slow) params.spill_folder = folder.path;
    params.buffer_manager = manager;
    params.slab_bytes = size_t{64} << 10;
    runtime = test::create_runtime(params);
    model = test::random_model(shape(windows), DType::f32, test::seed());
  }
  SessionParams params(const char* policy, float share) const {
    SessionParams params;
    params.policy = find_policy(runtime->backend, policy);
    params.policy_params.segment_tokens = 512;
    params.policy_params.decode_segment_tokens = 128;
    params.policy_params.budget = 0.1f;
    params.kv_fast_share = share;
    params.prefix_reuse = false;
    return params;
  }
  std::shared_ptr<Session> session(const char* policy, float share, DType kv = DType::f16) {
    SessionParams params = this->params(policy, share);
    params.kv = kv;
    return Session::create(runtime, model, params);
  }
  test::Folder folder;
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const Model> model;
};

std::vector<int32_t> prompt(size_t tokens, uint64_t salt = 0) {
  std::mt19937_64 random(test::seed() + salt);
  std::vector<int32_t> ids(tokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

void add_logits(Session& session, std::vector<float>& all) {
  const std::span<const float> logits = session.logits(nullptr);
  all.insert(all.end(), logits.begin(), logits.end());
}

// Everything that a host does with a session, and all logits that come of it.
std::vector<float> life(World& world, const char* policy, float share, DType kv = DType::f16) {
  std::vector<float> all;
  auto session = world.session(policy, share, kv);
  const std::vector<int32_t> ids = prompt(kOfALife);
  for (size_t at = 0; at < ids.size(); at += 700) {
    PrefillParams params;
    params.chunk_tokens = 256;
    session->prefill({ids.data() + at, std::min<size_t>(700, ids.size() - at)}, params, nullptr);
    add_logits(*session, all);
  }
  for (int i = 0; i < 40; ++i) {
    session->accept(ids[static_cast<size_t>(i * 7)], nullptr);
    add_logits(*session, all);
  }
  auto fork = session->fork();
  Session* both[] = {session.get(), fork.get()};
  fork->accept(3, nullptr);
  session->accept(5, nullptr);
  for (int i = 0; i < 10; ++i) {
    Event events[2];
    Session::decode_batch(both, nullptr, events);
    add_logits(*session, all);
    add_logits(*fork, all);
  }
  fork->truncate(1700);
  add_logits(*fork, all);
  fork->prefill(prompt(300, 1), {}, nullptr);
  add_logits(*fork, all);
  const std::string path = world.folder.file("saved");
  session->save(path, nullptr);
  const auto loaded = Session::load(
      world.runtime, world.model, path, [](const SessionParams& saved) { return saved; }, nullptr);
  for (int i = 0; i < 5; ++i) {
    loaded->accept(i, nullptr);
    add_logits(*loaded, all);
  }
  return all;
}

void what_lies_in_a_file_changes_no_bit(void**) {
  for (const char* policy : test::policies()) {
    World fast(false);
    const std::vector<float> wanted = life(fast, policy, 0);
    for (const float share : test::fast_shares()) {
      for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
        World slow(true, manager);
        const std::vector<float> got = life(slow, policy, share);
        assert_int_equal(got.size(), wanted.size());
        assert_memory_equal(got.data(), wanted.data(), got.size() * sizeof(float));
        assert_true(slow.runtime->buffer->stats().file.requests > 0);
        if (share > 0.05f) assert_true(slow.runtime->buffer->stats().admissions > 0);
      }
    }
  }
}

void keys_and_values_of_any_kind_lie_there(void**) {
  for (const DType kv : {DType::bf16, DType::f32}) {
    World fast(false), slow(true);
    const std::vector<float> wanted = life(fast, "wave", 0, kv), got = life(slow, "wave", 0.3f, kv);
    assert_true(got == wanted);
    assert_true(slow.runtime->buffer->stats().admissions > 0);
  }
}

// Pages of 16 and of 32 bits are in caches of their own.
void a_step_uses_several_caches(void**) {
  const std::vector<DType> kinds = {DType::f16, DType::f32, DType::bf16, DType::f32};
  const auto life = [&](World& world, float share) {
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<Session*> all;
    for (size_t i = 0; i < kinds.size(); ++i) {
      sessions.push_back(world.session("wave", i == 1 ? share / 10 : share, kinds[i]));
      sessions.back()->prefill(prompt(i == 0 ? 2500 : 1200, i), {}, nullptr);
      all.push_back(sessions.back().get());
    }
    std::vector<float> logits;
    std::vector<Event> events(all.size());
    for (int i = 0; i < 60; ++i) {
      Session::decode_batch(all, nullptr, events.data());
      for (Session* one : all) add_logits(*one, logits);
    }
    return logits;
  };
  World fast(false);
  const std::vector<float> wanted = life(fast, 0);
  for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
    World slow(true, manager);
    assert_true(life(slow, 0.4f) == wanted);
    assert_true(slow.runtime->buffer->stats().evictions > 0);
  }
}

// Forks in a batch that look up the same have it read once, and leave in the cache what one of them would.
void what_sessions_share_is_read_once(void**) {
  const auto admitted = [](size_t count) {
    World world(true);
    const auto session = world.session("wave", 0.2f);
    session->prefill(prompt(kPrompt), {}, nullptr);
    std::vector<std::shared_ptr<Session>> forks;
    std::vector<Session*> all;
    for (size_t i = 0; i < count; ++i) {
      forks.push_back(session->fork());
      all.push_back(forks.back().get());
    }
    std::vector<Event> events(count);
    for (int i = 0; i < 30; ++i) {
      Session::decode_batch(all, nullptr, events.data());
      std::promise<void> settled;
      if (world.runtime->buffer->later([&](const auto&) { settled.set_value(); }))
        settled.get_future().wait();
    }
    wi_session_stats sum{};
    for (const Session* one : all) {
      const wi_session_stats of = one->stats();
      assert_int_equal(of.buffer_admissions + of.buffer_refusals + of.buffer_late, of.buffer_misses);
      assert_int_equal(of.buffer_hits + of.buffer_misses,
                       all[0]->stats().buffer_hits + all[0]->stats().buffer_misses);
      sum.buffer_admissions += of.buffer_admissions, sum.buffer_refusals += of.buffer_refusals;
      sum.buffer_late += of.buffer_late;
    }
    assert_int_equal(sum.buffer_late, 0);
    return sum.buffer_admissions + sum.buffer_refusals;
  };
  assert_in_range(admitted(8), 1, admitted(1) * 5 / 4);  // what makes room comes in another order
}

// Of a model with windows, what its other layers attend to leaves; what a window shows is in memory.
void layers_with_a_window_stay_and_the_others_leave(void**) {
  const std::vector<int32_t> windows = {100, 0, 700};
  World fast(false, BufferManager::lru, windows);
  const std::vector<float> wanted = life(fast, "wave", 0);
  for (const float share : {0.01f, 0.6f}) {
    World slow(true, BufferManager::lru, windows);
    assert_true(life(slow, "wave", share) == wanted);
    assert_true(slow.runtime->buffer->stats().file.requests > 0);
  }
  World slow(true, BufferManager::lru, windows);
  const auto session = slow.session("wave", 0.01f), in_memory = fast.session("wave", 0);
  for (Session* one : {session.get(), in_memory.get()}) one->prefill(prompt(kPrompt), {}, nullptr);
  const Sequence& sequence = session->sequence();
  for (int tries = 0; sequence.slow_segments() < sequence.segments().size(); ++tries) {
    assert_true(tries < 1000);
    for (Session* one : {session.get(), in_memory.get()})
      one->accept(tries % 100, nullptr), one->logits(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the manager writes beside the steps
  }
  const auto sealed = static_cast<uint64_t>(sequence.indexed_tokens());
  assert_int_equal(session->stats().slow_bytes, sealed * sequence.shape().token_bytes() / 3);
  assert_int_equal(session->stats().slow_bytes + session->stats().kv_bytes, in_memory->stats().kv_bytes);
  assert_int_equal(slow.runtime->buffer->stats().slow_bytes, session->stats().slow_bytes);
}

// Each partition that was not there was admitted, refused or brought in by another step too, and of all sessions
// together that is what the cache itself counts.
void what_became_of_each_miss_is_in_the_sessions_statistics(void**) {
  for (const float share : {0.01f, 0.3f}) {
    World world(true);
    const auto session = world.session("wave", share);
    session->prefill(prompt(kPrompt), {}, nullptr);
    const auto fork = session->fork();
    std::thread beside([&] {
      for (int i = 0; i < 150; ++i) fork->accept(i % 100, nullptr), fork->logits(nullptr);
    });
    for (int i = 0; i < 150; ++i) session->accept(i * 7 % 100, nullptr), session->logits(nullptr);
    beside.join();
    wi_session_stats all{};
    for (const Session* one : {session.get(), fork.get()}) {
      const wi_session_stats of = one->stats();
      assert_int_equal(of.buffer_admissions + of.buffer_refusals + of.buffer_late, of.buffer_misses);
      assert_in_range(of.buffer_stalls, 1, of.buffer_misses);
      assert_true(of.buffer_hits > 0);
      all.buffer_admissions += of.buffer_admissions, all.buffer_refusals += of.buffer_refusals;
      all.buffer_late += of.buffer_late, all.buffer_evictions += of.buffer_evictions;
    }
    std::promise<void> settled;
    if (world.runtime->buffer->later([&](const auto&) { settled.set_value(); })) settled.get_future().wait();
    const WaveBufferStats buffer = world.runtime->buffer->stats();
    assert_int_equal(all.buffer_refusals, buffer.refusals);
    assert_int_equal(all.buffer_late, buffer.late);
    assert_true(all.buffer_admissions >= buffer.admissions);  // the manager has not heard of the last ones
    assert_true(all.buffer_evictions <= buffer.evictions);    // which a smaller share makes too
    if (share > 0.1f) assert_true(all.buffer_evictions > 0 && buffer.admissions > 0);
  }
}

// What queries want of segments that sessions share is in frames for all of them: a fork begins with what its origin
// used.
void a_forks_first_step_finds_what_its_origin_used(void**) {
  World world(true);
  const auto origin = world.session("wave", 0.3f);
  origin->prefill(prompt(kPrompt), {}, nullptr);
  wi_session_stats first{}, last{};
  for (int i = 0; i < 20; ++i) {
    const wi_session_stats before = origin->stats();
    origin->accept(7, nullptr);
    origin->logits(nullptr);
    const wi_session_stats after = origin->stats();
    last.buffer_hits = after.buffer_hits - before.buffer_hits;
    if (i == 0) first = after;
  }
  const auto fork = origin->fork();
  fork->accept(7, nullptr);
  fork->logits(nullptr);
  const wi_session_stats stats = fork->stats();
  std::printf(
      "  hits in the origin's first step %llu, its last %llu, the fork's first %llu, which missed %llu\n",
      static_cast<unsigned long long>(first.buffer_hits), static_cast<unsigned long long>(last.buffer_hits),
      static_cast<unsigned long long>(stats.buffer_hits),
      static_cast<unsigned long long>(stats.buffer_misses));
  assert_int_equal(stats.decode_steps, 1);
  assert_true(stats.buffer_hits > first.buffer_hits && stats.buffer_hits > stats.buffer_misses);
}

// It is no decode step, and the statistics that are of those are as before.
void what_a_sparse_read_looks_up_is_in_the_sessions_statistics(void**) {
  World world(true);
  SessionParams params = world.params("wave", 0.3f);
  params.sparse_read_tokens = 64;
  const auto session = Session::create(world.runtime, world.model, params);
  session->prefill(prompt(kPrompt), {}, nullptr);
  session->decode(nullptr);
  session->decode(nullptr);
  wi_session_stats before = session->stats();
  for (const int tokens : {50, 1}) {
    session->prefill(prompt(tokens), {}, nullptr);
    const wi_session_stats after = session->stats();
    assert_true(after.buffer_hits > before.buffer_hits && after.buffer_misses > before.buffer_misses);
    assert_true(after.buffer_stalls > before.buffer_stalls);
    assert_int_equal(after.buffer_admissions + after.buffer_refusals + after.buffer_late,
                     after.buffer_misses);
    assert_int_equal(after.decode_steps, before.decode_steps);
    assert_int_equal(after.kv_bytes_read, before.kv_bytes_read);
    assert_int_equal(after.retrieved_tokens, before.retrieved_tokens);
    assert_true(after.estimated_coverage == before.estimated_coverage);
    before = after;
  }
  assert_int_equal(before.buffer_refusals, world.runtime->buffer->stats().refusals);
  assert_int_equal(before.buffer_late, world.runtime->buffer->stats().late);
}

// Nothing is left in the file when the sessions are gone, and no frames.
void what_a_session_took_of_both_tiers_goes_with_it(void**) {
  World world(true);
  const uint64_t before = world.runtime->pool->used();
  {
    auto session = world.session("wave", 0.6f);
    session->prefill(prompt(kPrompt), {}, nullptr);
    auto fork = session->fork();
    for (int i = 0; i < 20; ++i) fork->decode(nullptr);
    const WaveBufferStats stats = world.runtime->buffer->stats();
    assert_true(stats.slow_bytes > 0 && stats.frame_bytes > 0);
    assert_true(session->sequence().slow_segments() > 0);
  }
  // The manager lets go of frames, and of a segment that it was writing, when it is done with what it was about.
  WaveBufferStats left = world.runtime->buffer->stats();
  for (int i = 0; i < 5000 && (left.frame_bytes > 0 || left.slow_bytes > 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    left = world.runtime->buffer->stats();
  }
  assert_int_equal(left.slow_bytes, 0);
  assert_int_equal(left.frame_bytes, 0);
  assert_in_range(world.runtime->pool->used(), before, before + (uint64_t{8} << 20));  // readers' buffers
}

// A session that outgrows what it may hold goes on.
void a_session_that_outgrows_its_budget_goes_on(void**) {
  World fast(false), slow(true);
  const std::vector<int32_t> ids = prompt(test::slow_or(3000, 6000));
  std::vector<float> wanted, got;
  auto free = fast.session("wave", 0);
  free->prefill(ids, {}, nullptr);
  SessionParams params = slow.session("wave", 0)->params();
  params.kv_budget_bytes = free->stats().kv_bytes / 2;
  auto bound = Session::create(slow.runtime, slow.model, params);
  PrefillParams chunks;
  chunks.chunk_tokens = 256;
  bound->prefill(ids, chunks, nullptr);
  assert_true(bound->sequence().slow_segments() > 0);
  assert_in_range(bound->sequence().bytes(), 1, params.kv_budget_bytes);
  auto again = fast.session("wave", 0);
  again->prefill(ids, chunks, nullptr);
  for (int i = 0; i < 20; ++i) {
    add_logits(*again, wanted);
    add_logits(*bound, got);
    again->accept(i, nullptr);
    bound->accept(i, nullptr);
  }
  assert_memory_equal(got.data(), wanted.data(), got.size() * sizeof(float));
}

// The descriptor of the slow tier's file, of which the runtime has just one that has no name.
int spill_descriptor(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with(folder) && target.ends_with("(deleted)"))
      return std::stoi(entry.path().filename().string());
  }
  return -1;
}

// A disk that is lost and comes back: the call says so, the session is as it was, the next call works.
void a_disk_that_fails_is_a_status_and_costs_no_token(void**) {
  World fast(false), slow(true);
  const std::vector<int32_t> ids = prompt(kPrompt);
  auto expected = fast.session("wave", 0), session = slow.session("wave", 0.01f);
  for (Session* one : {expected.get(), session.get()}) one->prefill(ids, {}, nullptr);
  const int file = spill_descriptor(slow.folder.path);
  assert_true(file >= 0);
  const int kept = dup(file), broken = open("/", O_RDONLY | O_CLOEXEC);
  std::vector<float> wanted, got;
  for (int i = 0; i < 20; ++i) {
    session->accept(i, nullptr);
    expected->accept(i, nullptr);
    assert_int_equal(dup2(broken, file), file);
    wi_status status = WI_OK;
    try {
      session->logits(nullptr);
    } catch (const Error& error) {
      status = error.code();
    }
    assert_int_equal(dup2(kept, file), file);
    assert_int_equal(status, WI_E_IO);
    add_logits(*session, got);
    add_logits(*expected, wanted);
  }
  close(kept);
  close(broken);
  assert_memory_equal(got.data(), wanted.data(), got.size() * sizeof(float));
}

// Forks, on threads of their own, take each other's frames, and each demotes what the others read.
void forks_that_evict_each_other_say_what_they_say_alone(void**) {
  constexpr int kForks = 3, kSteps = 60;
  World fast(false), slow(true, BufferManager::bucketed);
  const std::vector<int32_t> ids = prompt(kPrompt);
  std::vector<std::vector<float>> logits[2];
  for (World* world : {&fast, &slow}) {
    auto session = world->session("wave", world == &slow ? 0.08f : 0);
    session->prefill(ids, {}, nullptr);
    std::vector<std::shared_ptr<Session>> forks;
    for (int i = 0; i < kForks; ++i) forks.push_back(session->fork());
    auto& all = logits[world == &slow];
    all.resize(kForks);
    std::vector<std::thread> threads;
    for (int i = 0; i < kForks; ++i)
      threads.emplace_back([&, i] {
        Session& fork = *forks[static_cast<size_t>(i)];
        for (int step = 0; step < kSteps; ++step) {
          fork.accept((step * (i + 3)) % 100, nullptr);
          add_logits(fork, all[static_cast<size_t>(i)]);
          if (step == kSteps / 2) fork.prefill(prompt(400, static_cast<uint64_t>(i)), {}, nullptr);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  for (int i = 0; i < kForks; ++i)
    assert_true(logits[0][static_cast<size_t>(i)] == logits[1][static_cast<size_t>(i)]);
  assert_true(slow.runtime->buffer->stats().evictions > 0);
}

void a_folder_that_is_not_there_is_named(void**) {
  RuntimeParams params;
  params.spill_folder = "/nowhere/at/all";
  wi_status status = WI_OK;
  try {
    test::create_runtime(params);
  } catch (const Error& error) {
    status = error.code();
    assert_non_null(std::strstr(error.what(), "/nowhere/at/all"));
  }
  assert_int_equal(status, WI_E_IO);
}

// Frames come in slabs, the first of which are small: what a part has of them is near what it may, however small that
// is, never more, and does not come and go.
void a_part_of_less_than_a_slab_has_frames(void**) {
  constexpr double kLeast = double{uint32_t{64} << 10} / 16;  // of slabs, and of changes
  const std::vector<int32_t> ids = prompt(1500);
  for (const BufferManager manager : {BufferManager::lru, BufferManager::bucketed}) {
    for (const float share : {0.01f, 0.1f}) {
      World world(true, manager);
      const auto session = world.session("wave", share);
      session->prefill(ids, {}, nullptr);
      uint64_t before = 0;
      for (size_t step = 0; step < 60; ++step) {
        session->accept(ids[step * 7], nullptr);
        session->logits(nullptr);
        std::promise<void> managed;
        if (world.runtime->buffer->later([&](const auto&) { managed.set_value(); }))
          managed.get_future().wait();
        const uint64_t frames = world.runtime->buffer->stats().frame_bytes;
        uint64_t all = 0;
        for (const auto& segment : session->sequence().segments()) all += segment->leaving_bytes();
        const double most = static_cast<double>(share) * static_cast<double>(all);
        assert_true(static_cast<double>(frames) <= most);
        assert_true(frames >= before);
        if (step > 40) assert_true(static_cast<double>(frames) > most * 0.8 - 2 * kLeast);
        before = frames;
      }
      assert_true(session->stats().buffer_hits > 0);
    }
  }
}

// No room in the file: what does not fit anywhere is WI_E_BUDGET, and the session is as it was.
void a_full_slow_tier_is_a_status(void**) {
  test::Folder folder;
  RuntimeParams params;
  params.threads = 2;
  params.kv_budget_bytes = uint64_t{64} << 20;
  params.spill_folder = folder.path;
  World world(false);
  params.spill_bytes = kPrompt * kv_shape_of(*world.model, DType::f16).token_bytes() / 4;
  world.runtime = test::create_runtime(params);
  auto session = world.session("wave", 0.1f);
  const std::vector<int32_t> ids = prompt(kPrompt);
  session->prefill({ids.data(), 400}, {}, nullptr);
  wi_status status = WI_OK;
  try {
    session->prefill({ids.data() + 400, ids.size() - 400}, {}, nullptr);
  } catch (const Error& error) {
    status = error.code();
  }
  assert_int_equal(status, WI_E_BUDGET);
  assert_int_equal(session->stats().tokens, 400);
  std::vector<float> logits;
  add_logits(*session, logits);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_lies_in_a_file_changes_no_bit),
      cmocka_unit_test(keys_and_values_of_any_kind_lie_there),
      cmocka_unit_test(a_step_uses_several_caches),
      cmocka_unit_test(what_sessions_share_is_read_once),
      cmocka_unit_test(layers_with_a_window_stay_and_the_others_leave),
      cmocka_unit_test(what_became_of_each_miss_is_in_the_sessions_statistics),
      cmocka_unit_test(a_forks_first_step_finds_what_its_origin_used),
      cmocka_unit_test(what_a_sparse_read_looks_up_is_in_the_sessions_statistics),
      cmocka_unit_test(what_a_session_took_of_both_tiers_goes_with_it),
      cmocka_unit_test(a_session_that_outgrows_its_budget_goes_on),
      cmocka_unit_test(a_disk_that_fails_is_a_status_and_costs_no_token),
      cmocka_unit_test(forks_that_evict_each_other_say_what_they_say_alone),
      cmocka_unit_test(a_folder_that_is_not_there_is_named),
      cmocka_unit_test(a_full_slow_tier_is_a_status),
      cmocka_unit_test(a_part_of_less_than_a_slab_has_frames),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
