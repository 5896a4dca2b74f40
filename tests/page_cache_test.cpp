// Frames under the hands of several steps at once, of a manager that evicts, and of a limit that goes up and down:
// what a step found or brought in is there, unchanged, until it ends; and frames are neither lost nor twice in
// use.
#include "src/buffer/page_cache.h"

#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/kernel_test.h"

using namespace wi;

namespace {

constexpr size_t kPageBytes = 256, kSlabBytes = 16 * kPageBytes;
constexpr int kClusters = 600, kStepThreads = 3;
#ifdef WI_SANITIZED
constexpr int kSteps = 1500;
#else
constexpr int kSteps = 20000;
#endif

int32_t pages_of(int cluster) { return 1 + cluster % 5; }

struct World {
  explicit World(PageCache::MakeReplacement make)
      : pool(HostPool::create(HostPool::kUnlimited, false)),
        cache(pool, epochs, kPageBytes, make, kSlabBytes),
        slots(kClusters) {
    for (EntrySlot& slot : slots) slot = kNoEntry;
  }
  std::shared_ptr<HostPool> pool;
  Epochs epochs;
  PageCache cache;
  std::vector<EntrySlot> slots;
};

// body(frame, its number in the chain)
template <class Body>
void each_frame(const PageCache& cache, int32_t entry, int32_t pages, Body&& body) {
  for (int32_t i = 0; i < pages; ++i, entry = cache.next(entry)) body(cache.frame(entry), i);
}

void fill(const PageCache& cache, int32_t entry, int cluster) {
  each_frame(cache, entry, pages_of(cluster),
             [&](std::byte* frame, int32_t i) { std::memset(frame, (cluster * 7 + i) & 255, kPageBytes); });
}

bool holds(const PageCache& cache, int32_t entry, int cluster) {
  bool right = true;
  each_frame(cache, entry, pages_of(cluster), [&](const std::byte* frame, int32_t i) {
    for (size_t at : {size_t{0}, kPageBytes / 2, kPageBytes - 1})
      right = right && frame[at] == static_cast<std::byte>((cluster * 7 + i) & 255);
  });
  return right;
}

struct Counts {
  int64_t hits = 0, misses = 0, refused = 0, wrong = 0;
};

// Clusters that a step wants: most of them near where it was.
void run_steps(World& world, uint64_t seed, int steps, Counts& counts) {
  std::mt19937_64 random(seed);
  std::vector<EntryUse> hits;
  std::vector<std::pair<int32_t, int>> held;  // entry, cluster
  int place = 0;
  for (int step = 0; step < steps; ++step) {
    world.cache.begin_step();
    const uint64_t number = world.epochs.enter();
    hits.clear();
    held.clear();
    for (int i = 0; i < 12; ++i) {
      if (random() % 40 == 0) place = static_cast<int>(random() % kClusters);
      const int cluster = static_cast<int>((static_cast<uint64_t>(place) + random() % 30) % kClusters);
      EntrySlot& slot = world.slots[static_cast<size_t>(cluster)];
      if (const int32_t entry = slot.load(std::memory_order_acquire); entry != kNoEntry) {
        ++counts.hits;
        hits.push_back(world.cache.use_of(entry));
        held.emplace_back(entry, cluster);
        continue;
      }
      ++counts.misses;
      const int32_t entry = world.cache.take(pages_of(cluster));
      if (entry == kNoEntry) {
        ++counts.refused;
        continue;
      }
      fill(world.cache, entry, cluster);
      held.emplace_back(entry, cluster);
      world.cache.publish(entry, slot);
    }
    for (const auto& [entry, cluster] : held) counts.wrong += !holds(world.cache, entry, cluster);
    world.epochs.leave(number);
    world.cache.used(hits, number);
    world.cache.manage();
  }
}

void run(PageCache::MakeReplacement make) {
  World world(make);
  world.cache.set_limit(40 * kSlabBytes);
  std::atomic<bool> done{false};
  std::vector<Counts> counts(kStepThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kStepThreads; ++i)
    threads.emplace_back([&, i] {
      run_steps(world, test::seed() + static_cast<uint64_t>(i), kSteps, counts[static_cast<size_t>(i)]);
    });
  std::thread limits([&] {
    std::mt19937_64 random(test::seed() + 100);
    while (!done) {
      world.cache.set_limit(random() % 60 * kSlabBytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  limits.join();
  Counts all;
  for (const Counts& one : counts)
    all = {all.hits + one.hits, all.misses + one.misses, all.refused + one.refused, all.wrong + one.wrong};
  std::printf("  %lld hits, %lld misses, %lld of them refused\n", static_cast<long long>(all.hits),
              static_cast<long long>(all.misses), static_cast<long long>(all.refused));
  assert_int_equal(all.wrong, 0);
  assert_true(all.hits > 0 && all.misses > all.refused);
  assert_true(world.cache.stats().evictions > 0);

  // All frames can be had again once nobody uses them, and all memory goes.
  world.cache.forget(world.slots);
  world.cache.set_limit(20 * kSlabBytes);
  world.cache.begin_step();
  world.cache.begin_step();
  int64_t taken = 0;
  std::vector<int32_t> entries;
  for (int32_t entry = world.cache.take(1); entry != kNoEntry; entry = world.cache.take(1)) {
    entries.push_back(entry);
    ++taken;
  }
  assert_int_equal(taken, 20 * 16);
  std::sort(entries.begin(), entries.end());
  assert_true(std::adjacent_find(entries.begin(), entries.end()) == entries.end());
  for (int32_t entry : entries) world.cache.give(entry);
  world.cache.set_limit(0);
  assert_int_equal(world.cache.stats().bytes, 0);
  assert_int_equal(world.pool->used(), 0);
}

void what_a_step_sees_stays_until_it_ends_lru(void**) { run(make_lru); }
void what_a_step_sees_stays_until_it_ends_bucketed(void**) { run(make_bucketed); }

// Without free frames a cluster is not kept, and nothing else happens; what was chosen leaves with the next step.
void a_full_cache_refuses_until_something_left(void**) {
  World world(make_lru);
  world.cache.set_limit(kSlabBytes);  // 16 frames
  world.cache.begin_step();
  uint64_t step = world.epochs.enter();
  for (int cluster : {0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75}) {  // a page each
    const int32_t entry = world.cache.take(pages_of(cluster));
    assert_true(entry != kNoEntry);
    fill(world.cache, entry, cluster);
    assert_true(world.cache.publish(entry, world.slots[static_cast<size_t>(cluster)]));
  }
  assert_int_equal(world.cache.take(1), kNoEntry);
  assert_int_equal(world.cache.stats().refusals, 1);
  world.epochs.leave(step);
  world.cache.used({}, step);
  world.cache.manage();
  assert_int_equal(world.cache.stats().admissions, 16);
  assert_int_equal(world.cache.take(1), kNoEntry);  // chosen, but still to be seen
  world.cache.begin_step();
  assert_true(world.cache.stats().evictions > 0);
  assert_true(world.cache.take(1) != kNoEntry);
}

// A manager that is held up in the middle of its work.
std::mutex hold;
std::atomic<bool> is_held{false};
class Held final : public Replacement {
 public:
  explicit Held(int32_t capacity) : inner_(make_lru(capacity)) {}
  void admit(int32_t entry, int32_t pages, uint64_t step) noexcept override {
    inner_->admit(entry, pages, step);
  }
  void use(std::span<const int32_t> entries, uint64_t step) noexcept override {
    is_held = true;
    { const std::lock_guard until_let_go(hold); }
    inner_->use(entries, step);
  }
  void remove(int32_t entry) noexcept override { inner_->remove(entry); }
  int64_t evict(int64_t pages, uint64_t before, std::vector<int32_t>& out) override {
    return inner_->evict(pages, before, out);
  }
  int64_t pages() const noexcept override { return inner_->pages(); }

 private:
  std::unique_ptr<Replacement> inner_;
};

// Every call but its own returns meanwhile, as often as one likes; what they asked for is done in the end.
void nobody_waits_for_a_manager_that_stalls(void**) {
  World world(
      [](int32_t capacity) -> std::unique_ptr<Replacement> { return std::make_unique<Held>(capacity); });
  world.cache.set_limit(40 * kSlabBytes);
  const auto publish = [&](int first, int last) {
    int published = 0;
    for (int cluster = first; cluster < last; ++cluster) {
      const int32_t entry = world.cache.take(pages_of(cluster));
      if (entry == kNoEntry) continue;
      fill(world.cache, entry, cluster);
      published += world.cache.publish(entry, world.slots[static_cast<size_t>(cluster)]);
    }
    return published;
  };
  world.cache.begin_step();
  assert_int_equal(publish(0, 100), 100);
  world.cache.used({}, 1);
  world.cache.manage();

  std::unique_lock held(hold);
  is_held = false;
  std::thread manager([&] {
    const EntryUse hit = world.cache.use_of(world.slots[0]);
    world.cache.used({&hit, 1}, 2);
    world.cache.manage();
  });
  while (!is_held) std::this_thread::yield();
  for (int round = 0; round < 3; ++round) {
    world.cache.begin_step();
    const uint64_t step = world.epochs.enter();
    const int first = 100 + 100 * round;
    const int published = publish(first, first + 100);
    assert_true(round > 0 || published > 0);
    for (int cluster = 1; cluster < first + 100; ++cluster)
      if (const int32_t entry = world.slots[static_cast<size_t>(cluster)]; entry != kNoEntry)
        assert_true(holds(world.cache, entry, cluster));
    // Some that the manager knows, some that it has not heard of.
    world.cache.forget({world.slots.data() + 1 + 20 * round, 20});
    world.cache.forget({world.slots.data() + first, 30});
    world.cache.set_limit((round == 0 ? 10 : 60) * kSlabBytes);
    assert_true(world.cache.stats().bytes > 0);
    world.epochs.leave(step);
  }
  held.unlock();
  manager.join();
  for (int cluster = 61; cluster < kClusters; ++cluster)
    if (const int32_t entry = world.slots[static_cast<size_t>(cluster)]; entry != kNoEntry)
      assert_true(holds(world.cache, entry, cluster));

  world.cache.forget(world.slots);
  world.cache.begin_step();
  int64_t taken = 0;
  for (int32_t entry = world.cache.take(1); entry != kNoEntry; entry = world.cache.take(1)) {
    assert_true(entry < 60 * 16);
    ++taken;
  }
  assert_int_equal(taken, 60 * 16);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_a_step_sees_stays_until_it_ends_lru),
      cmocka_unit_test(what_a_step_sees_stays_until_it_ends_bucketed),
      cmocka_unit_test(a_full_cache_refuses_until_something_left),
      cmocka_unit_test(nobody_waits_for_a_manager_that_stalls),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
