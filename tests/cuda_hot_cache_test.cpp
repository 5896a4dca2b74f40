// Sessions whose keys and values are in pinned memory, with a cache of hot pages in the device's: whatever is in it, the
// bits are those of a session that has all in the device's memory; what a step brings is there for the next, and for
// forks; and no budget is exceeded.
#include <algorithm>
#include <cuda_runtime.h>
#include <future>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "src/buffer/hot_page_cache.h"
#include "tests/support/device_world.h"
#include "tests/support/fewer.h"

using namespace wi;
using namespace wi::test;

namespace {

constexpr size_t kSmallSlabs = 256;  // bytes: 16 times that are a few frames

PrefillParams chunks_of(int32_t tokens) {
  PrefillParams params;
  params.chunk_tokens = tokens;
  return params;
}

struct Counts {
  uint64_t hits = 0, misses = 0;
  Counts() = default;
  explicit Counts(const Session& session)
      : hits(session.stats().buffer_hits), misses(session.stats().buffer_misses) {}
  Counts operator-(const Counts& before) const {
    Counts since;
    since.hits = hits - before.hits;
    since.misses = misses - before.misses;
    return since;
  }
};

struct Life {
  std::vector<float> logits;
  uint64_t lookups = 0, misses = 0, most_frame_bytes = 0;
};

// What a host does, over a past of which some is sealed, and all logits that come of it.
Life life(World& world) {
  Life all;
  const auto add = [&](Session& session) {
    const std::vector<float> logits = logits_of(session);
    all.logits.insert(all.logits.end(), logits.begin(), logits.end());
    all.most_frame_bytes = std::max(all.most_frame_bytes, world.runtime->buffer->stats().frame_bytes);
  };
  const auto session = world.session();
  session->prefill(prompt(350), chunks_of(200), nullptr);
  add(*session);
  for (int i = 0; i < 2; ++i) session->accept(i, nullptr);
  add(*session);
  settle(world);
  for (int i = 0; i < 6; ++i) {
    session->accept(i * 7 % 5, nullptr);
    add(*session);
  }
  const auto fork = session->fork();
  fork->prefill(prompt(40, 1), {}, nullptr);
  Session* const both[] = {session.get(), fork.get()};
  Event events[2];
  for (int i = 0; i < 2; ++i) {
    Session::decode_batch(both, nullptr, events);
    for (Session* one : both) add(*one);
  }
  fork->truncate(300);  // within a segment
  add(*fork);
  for (int i = 0; i < 3; ++i) {
    fork->accept(i, nullptr);
    add(*fork);
  }
  for (const Session* one : both) {
    all.lookups += Counts(*one).hits + Counts(*one).misses;
    all.misses += Counts(*one).misses;
  }
  return all;
}

void a_cache_changes_no_bit(void**) {
  const Shape shapes[] = {{"wave", DType::f16, DType::f16, 2},
                          {"wave", DType::f16, DType::f32, 1},
                          {"full", DType::f16, DType::bf16, 2}};
  for (const Shape& shape : std::span(shapes).first(few_or(1u, 3u))) {
    World fast(cuda_backend(), shape);
    const Life wanted = life(fast);
    assert_int_equal(wanted.misses, 0);
    uint64_t last_misses = UINT64_MAX;
    const std::vector<float> all_shares = {0.01f, 0.1f, 0.6f}, one_share = {0.3f};
    for (const float share : &shape == shapes ? all_shares : one_share) {
      Shape of = shape;
      of.fast_share = share;
      of.slab_bytes = kSmallSlabs;
      World world(cuda_backend(), of);
      const Life cached = life(world);
      std::printf("  %s, %.2f: %zu of %zu lookups missed, %zu bytes of frames\n", shape.policy,
                  static_cast<double>(share), size_t{cached.misses}, size_t{cached.lookups},
                  size_t{cached.most_frame_bytes});
      assert_true(cached.logits == wanted.logits);
      assert_int_equal(cached.lookups, wanted.lookups);
      assert_true(cached.misses > 0 && cached.misses <= last_misses);
      last_misses = cached.misses;
      const bool has_frames = share > 0.05f && shape.policy == std::string("wave");
      assert_true((cached.most_frame_bytes > 0) == has_frames);
    }
    cuda_emulation::reset(seed());
  }
}

// A step brings what it misses, and the same step again, of the session's or of a fork's, finds all of it.
void what_a_step_brought_is_there_for_the_next_and_for_forks(void**) {
  World world(cuda_backend(), {.fast_share = 0.9f, .slab_bytes = kSmallSlabs});  // of which each has half
  const auto session = world.session();
  session->prefill(prompt(350), {}, nullptr);
  leave_the_device(world, *session);
  session->logits(nullptr);
  const auto fork = session->fork();
  const auto step = [](Session& of) {
    const Counts before(of);
    of.accept(11, nullptr);
    of.logits(nullptr);
    return Counts(of) - before;
  };
  const Counts cold = step(*session), warm = step(*fork);
  assert_true(cold.hits + cold.misses > 0 && Counts(*session).misses > 0);
  assert_int_equal(warm.misses, 0);
  assert_int_equal(warm.hits, cold.hits + cold.misses);
}

void a_session_that_fits_has_no_frames(void**) {
  World world(cuda_backend(), {.slab_bytes = kSmallSlabs});
  const auto session = world.session();
  session->prefill(prompt(350), {}, nullptr);
  leave_the_device(world, *session);
  assert_int_equal(world.runtime->buffer->stats().frame_bytes, 0);
  assert_int_equal(session->residency().frames, 0);
  assert_int_equal(session->stats().buffer_misses, 0);
}

// Frames are of the budget: a session that outgrows it has some, and never more than there is.
void the_budget_is_never_exceeded(void**) {
  const std::vector<int32_t> ids = prompt(900);
  const Shape small{"wave", DType::f16, DType::f32, 2};
  uint64_t whole = 0;
  std::vector<int32_t> wanted;
  {
    World wide(cuda_backend(), small);
    const auto session = wide.session();
    session->prefill(ids, chunks_of(128), nullptr);
    wanted = answer(*session, 8);
    whole = wide.runtime->pool->peak();
  }
  Shape of = small;
  of.budget_bytes = whole * 2 / 3;
  of.slab_bytes = kSmallSlabs;
  World world(cuda_backend(), of);
  auto session = world.session();
  session->prefill(ids, chunks_of(128), nullptr);
  assert_true(answer(*session, 4) == std::vector<int32_t>(wanted.begin(), wanted.begin() + 4));
  settle(world);
  assert_true(answer(*session, 4) == std::vector<int32_t>(wanted.begin() + 4, wanted.end()));
  const uint64_t frames = world.runtime->buffer->stats().frame_bytes;
  std::printf("  %zu KB at most of %zu, %zu KB pinned, %zu bytes of frames of %zu allowed\n",
              size_t{world.runtime->pool->peak() >> 10}, size_t{of.budget_bytes >> 10},
              size_t{session->stats().slow_bytes >> 10}, size_t{frames}, size_t{session->residency().frames});
  assert_true(world.runtime->pool->peak() <= of.budget_bytes);
  assert_true(frames > 0 && frames <= session->residency().frames);
  assert_true(session->stats().buffer_hits > 0);
  session.reset();  // and with the last one they go, though nobody else comes
  assert_int_equal(world.runtime->buffer->stats().frame_bytes, 0);
}

// Steps of two threads, each in a queue of its own, use one cache.
void sessions_of_two_threads_share_a_cache(void**) {
  const Shape shape{.fast_share = 0.1f, .slab_bytes = kSmallSlabs};
  World fast(cuda_backend()), world(cuda_backend(), shape);
  std::vector<int32_t> wanted[2];
  for (uint64_t i = 0; i < 2; ++i) {
    const auto session = fast.session();
    session->prefill(prompt(250, i), {}, nullptr);
    wanted[i] = answer(*session, 8);
  }
  std::vector<int32_t> got[2];
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      const auto session = world.session();
      session->prefill(prompt(250, i), {}, nullptr);
      got[i] = answer(*session, 8);
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) assert_true(got[i] == wanted[i]);
}

// ---- the frames themselves ----

struct Frames {
  explicit Frames(uint64_t budget_bytes = uint64_t{1} << 20)
      : device(std::make_shared<const Device>(*cuda_backend().device, 0)),
        pool(HostPool::create(std::make_shared<MemoryBudget>(budget_bytes),
                              std::make_shared<DeviceMemory>(device))),
        cache(std::make_shared<HotPageCache>(pool, 512, 4096)) {}

  template <class T>
  std::vector<T> read(const T* from, int32_t count) const {
    std::vector<T> host(static_cast<size_t>(count));
    if (count) pool->memory().copy(host.data(), from, host.size() * sizeof(T));
    return host;
  }
  // A step that uses the cache in two passes; work(pages) looks at it.
  template <class Work>
  void step(Work&& work) const {
    Queue queue(device);
    HotPageCache::Use use;
    const HotPages* const pages = use.begin_pass(cache, queue);
    assert_true(use.begin_pass(cache, queue) == pages);
    queue.finish();
    work(pages);
  }

  std::shared_ptr<const Device> device;
  std::shared_ptr<HostPool> pool;
  std::shared_ptr<HotPageCache> cache;
};

void frames_come_and_go_with_the_limit(void**) {
  Frames of;
  of.step([](const HotPages* pages) { assert_null(pages); });
  assert_int_equal(of.pool->used(), 0);
  std::vector<std::byte*> before;
  for (const uint64_t limit : {40'000, 200'000, 200'000, 90'000, 10, 60'000}) {
    of.cache->set_limit(limit);
    of.cache->trim();
    assert_int_equal(of.cache->leaving_bytes(), 0);
    of.step([&](const HotPages* pages) {
      assert_true((pages != nullptr) == (limit > 10));
      if (!pages) return before.clear();
      assert_true(static_cast<uint64_t>(pages->frames) * 512 > limit / 2);
      const std::vector<std::byte*> memory = of.read(pages->memory, pages->frames);
      const size_t both = std::min(before.size(), memory.size());
      assert_true(
          std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(both), memory.begin()));
      std::vector<std::byte*> sorted = memory;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 1; i < sorted.size(); ++i) assert_true(sorted[i] - sorted[i - 1] >= 512);
      for (size_t i = both; i < memory.size(); ++i) {
        assert_int_equal(of.read(pages->pages + i, 1)[0], 0);
        assert_int_equal(of.read(pages->last_use + i, 1)[0], 0);
      }
      before = memory;
    });
    assert_true(of.cache->bytes() <= limit);
    assert_int_equal(of.pool->used(), of.cache->bytes());
  }
}

// While a step uses them none leave; when it has ended they do.
void a_step_keeps_its_frames(void**) {
  Frames of;
  of.cache->set_limit(100'000);
  of.step([&](const HotPages* pages) {
    const int32_t frames = pages->frames;
    of.cache->set_limit(20'000);
    const uint64_t held = of.cache->bytes();
    std::thread([&] { of.cache->trim(); }).join();
    of.cache->trim();
    assert_int_equal(pages->frames, frames);
    assert_int_equal(of.cache->bytes(), held);
    assert_true(of.cache->leaving_bytes() > 60'000);
  });
  assert_int_equal(of.cache->leaving_bytes(), 0);
  assert_true(of.cache->bytes() < 40'000);
}

// A step in the middle of another one of the same thread does without, and so does one that would wait for a second
// cache.
void nobody_waits_for_himself(void**) {
  Frames of;
  of.cache->set_limit(100'000);
  of.step([&](const HotPages* pages) {
    assert_non_null(pages);
    of.step([](const HotPages* inner) { assert_null(inner); });
  });
  of.step([](const HotPages* pages) { assert_non_null(pages); });
}

// Where the device has no more memory, or the budget, there are as many as there is room for.
void refused_memory_is_no_error(void**) {
  Frames small(50'000);
  small.cache->set_limit(100'000);
  small.step([](const HotPages* pages) { assert_true(pages && pages->frames > 50); });
  assert_true(small.pool->peak() <= 50'000);

  for (int64_t nth = 0; nth < 6; ++nth) {
    Frames of;
    of.cache->set_limit(40'000);
    Queue queue(of.device);
    HotPageCache::Use use;
    cuda_emulation::fail_allocations_from(nth);
    const HotPages* const pages = use.begin_pass(of.cache, queue);
    cuda_emulation::fail_allocations_from(-1);
    if (nth == 0) assert_null(pages);
    use.end();
    assert_int_equal(of.pool->used(), of.cache->bytes());
  }
}

// Whose pages were forgotten is as if it had never been there.
void frames_of_a_segment_that_is_gone_are_empty(void**) {
  Frames of;
  of.cache->set_limit(40'000);
  of.step([&](const HotPages* pages) {
    std::vector<uint64_t> in(static_cast<size_t>(pages->frames)), used(in.size(), 3);
    for (size_t i = 0; i < in.size(); ++i) in[i] = 100 + i;
    of.pool->memory().copy(pages->pages, in.data(), in.size() * sizeof(uint64_t));
    of.pool->memory().copy(pages->last_use, used.data(), used.size() * sizeof(uint64_t));
  });
  of.cache->forget({110, 120});
  of.cache->forget({5, 104});
  of.step([&](const HotPages* pages) {
    const std::vector<uint64_t> in = of.read(pages->pages, pages->frames);
    for (size_t i = 0; i < in.size(); ++i)
      assert_int_equal(in[i], i < 4 || (i >= 10 && i < 20) ? 0 : 100 + i);
  });
}

// So with sessions: pages in frames are of those that live.
void a_session_that_ends_leaves_no_page(void**) {
  World world(cuda_backend(), {.fast_share = 0.6f, .slab_bytes = kSmallSlabs});
  const auto cache = world.runtime->buffer->hot_pages(512);
  const auto pages_held = [&] {
    Queue queue(world.runtime->device);
    HotPageCache::Use use;
    const HotPages* const pages = use.begin_pass(cache, queue);
    queue.finish();
    if (!pages) return int64_t{0};
    std::vector<uint64_t> in(static_cast<size_t>(pages->frames));
    world.runtime->kv_pools.pages->memory().copy(in.data(), pages->pages, in.size() * sizeof(uint64_t));
    return static_cast<int64_t>(in.size()) - std::count(in.begin(), in.end(), 0);
  };
  auto session = world.session();
  session->prefill(prompt(350), {}, nullptr);
  leave_the_device(world, *session);
  answer(*session, 2);
  auto fork = session->fork();
  assert_true(pages_held() > 10);
  session.reset();
  fork->decode(nullptr);
  fork->decode(nullptr);
  assert_true(pages_held() > 10);  // the fork's, too
  fork.reset();
  settle(world);
  cache->set_limit(40'000);  // no session asks for any now
  assert_int_equal(pages_held(), 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_cache_changes_no_bit, reset),
      cmocka_unit_test_setup(what_a_step_brought_is_there_for_the_next_and_for_forks, reset),
      cmocka_unit_test_setup(a_session_that_fits_has_no_frames, reset),
      cmocka_unit_test_setup(the_budget_is_never_exceeded, reset),
      cmocka_unit_test_setup(sessions_of_two_threads_share_a_cache, reset),
      cmocka_unit_test_setup(frames_come_and_go_with_the_limit, reset),
      cmocka_unit_test_setup(a_step_keeps_its_frames, reset),
      cmocka_unit_test_setup(nobody_waits_for_himself, reset),
      cmocka_unit_test_setup(refused_memory_is_no_error, reset),
      cmocka_unit_test_setup(frames_of_a_segment_that_is_gone_are_empty, reset),
      cmocka_unit_test_setup(a_session_that_ends_leaves_no_page, reset),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
