// Frames under the hands of several steps at once, of a manager that evicts, and of a limit that goes up and down:
// what a step found or brought in is there, unchanged, until it ends; and frames are neither lost nor twice in
// use.
#include "src/buffer/page_cache.h"

#include <cstring>
#include <thread>
#include <vector>

#include "src/memory/host_memory.h"
#include "tests/support/kernel_test.h"

using namespace wi;

namespace {

constexpr size_t kPageBytes = 256, kSlabBytes = 16 * kPageBytes;
constexpr int kClusters = 600, kStepThreads = 3;
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
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
  void end(uint64_t step) {
    epochs.leave(step);
    cache.step_ended();
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
    const uint64_t number = world.epochs.enter();
    hits.clear();
    held.clear();
    for (int i = 0; i < 12; ++i) {
      if (random() % 40 == 0) place = static_cast<int>(random() % kClusters);
      const int cluster = static_cast<int>((static_cast<uint64_t>(place) + random() % 30) % kClusters);
      EntrySlot& slot = world.slots[static_cast<size_t>(cluster)];
      if (const int32_t entry = world.cache.find(slot, number); entry != kNoEntry) {
        ++counts.hits;
        hits.push_back(world.cache.use_of(entry));
        held.emplace_back(entry, cluster);
        continue;
      }
      ++counts.misses;
      const int32_t entry = world.cache.take(pages_of(cluster), number);
      if (entry == kNoEntry) {
        ++counts.refused;
        continue;
      }
      fill(world.cache, entry, cluster);
      held.emplace_back(entry, cluster);
      world.cache.publish(entry, slot);
    }
    for (const auto& [entry, cluster] : held) counts.wrong += !holds(world.cache, entry, cluster);
    world.end(number);
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
  int64_t taken = 0;
  std::vector<int32_t> entries;
  for (int32_t entry = world.cache.take(1, 0); entry != kNoEntry; entry = world.cache.take(1, 0)) {
    entries.push_back(entry);
    ++taken;
  }
  assert_int_equal(taken, SlabSizes(16).whole(20 * 16));
  std::sort(entries.begin(), entries.end());
  assert_true(std::adjacent_find(entries.begin(), entries.end()) == entries.end());
  for (int32_t entry : entries) world.cache.give(entry);
  world.cache.set_limit(0);
  assert_int_equal(world.cache.stats().bytes, 0);
  assert_int_equal(world.pool->used(), 0);
}

void what_a_step_sees_stays_until_it_ends_lru(void**) { run(make_lru); }
void what_a_step_sees_stays_until_it_ends_bucketed(void**) { run(make_bucketed); }

// A page each.
constexpr int kSixteen[] = {0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75};
EntrySlot& slot_of(World& world, int cluster) { return world.slots[static_cast<size_t>(cluster)]; }

// A step that wants those: what it found is kept from the manager's eyes, which reads it later.
void want(World& world, std::span<const int> clusters, uint64_t step, std::vector<EntryUse>& hits) {
  for (int cluster : clusters) {
    if (const int32_t entry = world.cache.find(slot_of(world, cluster), step); entry != kNoEntry) {
      hits.push_back(world.cache.use_of(entry));
      continue;
    }
    const int32_t entry = world.cache.take(1, step);
    if (entry == kNoEntry) continue;
    fill(world.cache, entry, cluster);
    assert_true(world.cache.publish(entry, slot_of(world, cluster)));
  }
}

// Where the manager has named nothing a cluster is not kept, and nothing else happens. What it has named goes
// when its frames are needed, the longest unused first, and not while a step runs that has found it.
void what_goes_is_named_before_and_goes_when_it_must(void**) {
  World world(make_lru);
  world.cache.set_limit(kSlabBytes);  // 16 frames
  std::vector<EntryUse> hits;
  uint64_t step = world.epochs.enter();
  want(world, kSixteen, step, hits);
  assert_int_equal(world.cache.take(1, step), kNoEntry);
  assert_int_equal(world.cache.stats().refusals, 1);
  world.end(step);
  world.cache.used(hits, step);
  world.cache.manage();
  assert_int_equal(world.cache.stats().admissions, 16);
  assert_int_equal(world.cache.stats().evictions, 0);

  // All may have been named, and are there.
  step = world.epochs.enter();
  const int32_t kept = world.cache.find(slot_of(world, kSixteen[3]), step);
  assert_true(kept != kNoEntry);
  int evicted = 0;
  while (world.cache.take(1, step) != kNoEntry) ++evicted;
  assert_true(evicted > 0);
  assert_int_equal(world.cache.stats().evictions, evicted);
  assert_int_equal(slot_of(world, kSixteen[3]), kept);
  assert_true(holds(world.cache, kept, kSixteen[3]));
  for (int i = 0; i < 16; ++i)
    if (i != 3 && slot_of(world, kSixteen[i]) != kNoEntry)
      assert_true(i >= evicted);  // those before were used earlier
  world.end(step);
}

// What was named and is wanted again is among the last to go then.
void what_is_found_again_stays(void**) {
  for (PageCache::MakeReplacement make : {make_lru, make_bucketed}) {
    World world(make);
    world.cache.set_limit(kSlabBytes);
    std::vector<EntryUse> hits;
    uint64_t step = world.epochs.enter();
    want(world, kSixteen, step, hits);
    world.end(step);
    world.cache.used(hits, step);
    world.cache.manage();  // twice what was taken: names all

    step = world.epochs.enter();
    hits.clear();
    want(world, std::span(kSixteen).first(8), step, hits);
    assert_int_equal(hits.size(), 8);
    world.end(step);
    world.cache.used(hits, step);
    world.cache.manage();

    step = world.epochs.enter();
    for (int i = 0; i < 8; ++i) assert_true(world.cache.take(1, step) != kNoEntry);
    for (int i = 0; i < 16; ++i) assert_int_equal(slot_of(world, kSixteen[i]) != kNoEntry, i < 8);
    world.end(step);
  }
}

// As when its session was the last: no other step comes by.
void what_a_step_keeps_beyond_the_limit_goes_with_it(void**) {
  World world(make_lru);
  world.cache.set_limit(4 * kSlabBytes);
  std::vector<EntryUse> hits;
  uint64_t step = world.epochs.enter();
  want(world, kSixteen, step, hits);
  world.end(step);
  world.cache.manage();

  step = world.epochs.enter();
  want(world, kSixteen, step, hits);
  assert_int_equal(hits.size(), 16);
  world.cache.set_limit(0);
  world.cache.forget(world.slots);
  assert_true(world.cache.stats().bytes > 0);
  for (int i = 0; i < 16; ++i)
    assert_true(holds(world.cache, hits[static_cast<size_t>(i)].entry, kSixteen[i]));
  world.end(step);
  assert_int_equal(world.cache.stats().bytes, 0);

  world.cache.set_limit(kSlabBytes);
  step = world.epochs.enter();
  const int32_t unread = world.cache.take(1, step);
  world.cache.set_limit(0);
  assert_true(world.cache.stats().bytes > 0);
  world.cache.give(unread);
  world.end(step);
  assert_int_equal(world.cache.stats().bytes, 0);
  assert_int_equal(world.pool->used(), 0);
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
  int64_t evict(int64_t pages, std::vector<int32_t>& out) override { return inner_->evict(pages, out); }
  int64_t pages() const noexcept override { return inner_->pages(); }

 private:
  std::unique_ptr<Replacement> inner_;
};

// Every call but its own returns meanwhile, as often as one likes; what they asked for is done in the end.
void nobody_waits_for_a_manager_that_stalls(void**) {
  World world(
      [](int32_t capacity) -> std::unique_ptr<Replacement> { return std::make_unique<Held>(capacity); });
  world.cache.set_limit(40 * kSlabBytes);
  const auto publish = [&](int first, int last, uint64_t step) {
    int published = 0;
    for (int cluster = first; cluster < last; ++cluster) {
      const int32_t entry = world.cache.take(pages_of(cluster), step);
      if (entry == kNoEntry) continue;
      fill(world.cache, entry, cluster);
      published += world.cache.publish(entry, world.slots[static_cast<size_t>(cluster)]);
    }
    return published;
  };
  assert_int_equal(publish(0, 100, 0), 100);
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
    const uint64_t step = world.epochs.enter();
    const int first = 100 + 100 * round;
    const int published = publish(first, first + 100, step);
    assert_true(round > 0 || published > 0);
    for (int cluster = 1; cluster < first + 100; ++cluster)
      if (const int32_t entry = world.slots[static_cast<size_t>(cluster)]; entry != kNoEntry)
        assert_true(holds(world.cache, entry, cluster));
    // Some that the manager knows, some that it has not heard of.
    world.cache.forget({world.slots.data() + 1 + 20 * round, 20});
    world.cache.forget({world.slots.data() + first, 30});
    world.cache.set_limit((round == 0 ? 10 : 60) * kSlabBytes);
    assert_true(world.cache.stats().bytes > 0);
    world.end(step);
  }
  held.unlock();
  manager.join();
  for (int cluster = 61; cluster < kClusters; ++cluster)
    if (const int32_t entry = world.slots[static_cast<size_t>(cluster)]; entry != kNoEntry)
      assert_true(holds(world.cache, entry, cluster));

  world.cache.forget(world.slots);
  int64_t taken = 0;
  for (int32_t entry = world.cache.take(1, 0); entry != kNoEntry; entry = world.cache.take(1, 0)) {
    assert_true(entry < 60 * 16);
    ++taken;
  }
  assert_int_equal(taken, SlabSizes(16).whole(60 * 16));
}

// What has slots from the first to the last is cleared while another thread takes frames and gives them back: it gets
// its turns in the middle, when the first has gone and the last has not.
template <class Clear>
int turns_during(Clear&& clear) {
  constexpr size_t kEntries = 30'000, kSlab = 1024 * kPageBytes;
  Epochs epochs;
  PageCache cache(HostPool::create(HostPool::kUnlimited, false), epochs, kPageBytes, make_lru, kSlab);
  cache.set_limit((kEntries + 2 * 1024) * kPageBytes);
  std::vector<EntrySlot> slots(kEntries);
  const uint64_t step = epochs.enter();
  for (EntrySlot& slot : slots) {
    slot = kNoEntry;
    assert_true(cache.publish(cache.take(1, step), slot));
  }
  const int32_t spare = cache.take(1, step);
  epochs.leave(step);
  cache.manage();
  cache.give(spare);
  std::atomic<bool> done{false};
  std::thread clearing([&] {
    clear(cache, slots);
    done = true;
  });
  int turns = 0;
  while (!done) {
    const bool begun = slots.front() == kNoEntry;
    const int32_t entry = cache.take(1, UINT64_MAX);
    turns += begun && slots.back() != kNoEntry;
    if (entry != kNoEntry) cache.give(entry);
  }
  clearing.join();
  for (const EntrySlot& slot : slots) assert_int_equal(slot, kNoEntry);
  return turns;
}

// A busy system may let nobody else run while it lasts.
template <class Clear>
void others_have_turns(Clear&& clear) {
  int turns = 0;
  for (int attempt = 0; attempt < 500 && turns == 0; ++attempt) turns = turns_during(clear);
  assert_true(turns > 0);
}

void others_have_turns_while_a_session_ends(void**) {
  others_have_turns([](PageCache& cache, std::span<EntrySlot> slots) { cache.forget(slots); });
}

void others_have_turns_while_a_limit_falls(void**) {
  others_have_turns([](PageCache& cache, std::span<EntrySlot>) { cache.set_limit(0); });
}

// Slabs follow each other without a gap; what a limit is rounded down by is a fifth of it at most.
void frames_are_numbered_slab_by_slab(void**) {
  for (size_t most : {1, 16, 100, 2048}) {
    const SlabSizes sizes(most);
    int64_t frame = 0;
    for (int32_t slab = 0; slab < 200; ++slab) {
      assert_int_equal(sizes.first(slab), frame);
      assert_true(sizes.frames(slab) > 0 && (most < 16 || sizes.frames(slab) <= static_cast<int32_t>(most)));
      for (int32_t index = 0; index < sizes.frames(slab); ++index, ++frame) {
        const SlabSizes::Place at = sizes.place(static_cast<int32_t>(frame));
        assert_true(at.slab == slab && at.index == index);
        const int64_t whole = sizes.whole(static_cast<int32_t>(frame));
        assert_true(whole <= frame && (slab < 8 || (frame - whole) * 5 <= frame));
      }
    }
  }
}

// Or the allocator's, which keeps what another thread has given back.
void most_slabs_are_mappings_whatever_a_pages_size(void**) {
  for (size_t head_dim = 8; head_dim <= 512; head_dim += 8) {
    for (const size_t number_bytes : {2, 4}) {
      const size_t page = 2 * kFrameTokens * head_dim * number_bytes;
      const SlabSizes sizes(wi::kSlabBytes / page);
      assert_true(static_cast<size_t>(sizes.frames(32)) * page >= HostMemory::kMappedBytes);
    }
  }
}

// With as many slabs as there may be, and a limit beyond them, what is used least goes as ever.
void a_limit_beyond_all_slabs_is_all_slabs(void**) {
  Epochs epochs;
  const auto pool = HostPool::create(HostPool::kUnlimited, false);
  constexpr int32_t kSlabs = 40;
  PageCache cache(pool, epochs, kPageBytes, make_lru, kSlabBytes, kSlabs);
  cache.set_limit(1000 * kSlabBytes);
  std::vector<EntrySlot> slots(1000);
  for (EntrySlot& slot : slots) slot = kNoEntry;
  int taken = 0;
  for (EntrySlot& slot : slots) {
    const uint64_t step = epochs.enter();
    if (const int32_t entry = cache.take(1, step); entry != kNoEntry) taken += cache.publish(entry, slot);
    epochs.leave(step);
    cache.step_ended();
    cache.used({}, step);
    cache.manage();
  }
  const PageCacheStats stats = cache.stats();
  assert_int_equal(stats.bytes, static_cast<uint64_t>(SlabSizes(16).first(kSlabs)) * kPageBytes);
  assert_true(taken > 900);
  assert_true(stats.evictions > 500);
  cache.forget(slots);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_a_step_sees_stays_until_it_ends_lru),
      cmocka_unit_test(what_a_step_sees_stays_until_it_ends_bucketed),
      cmocka_unit_test(what_goes_is_named_before_and_goes_when_it_must),
      cmocka_unit_test(what_is_found_again_stays),
      cmocka_unit_test(what_a_step_keeps_beyond_the_limit_goes_with_it),
      cmocka_unit_test(others_have_turns_while_a_session_ends),
      cmocka_unit_test(others_have_turns_while_a_limit_falls),
      cmocka_unit_test(frames_are_numbered_slab_by_slab),
      cmocka_unit_test(most_slabs_are_mappings_whatever_a_pages_size),
      cmocka_unit_test(a_limit_beyond_all_slabs_is_all_slabs),
      cmocka_unit_test(nobody_waits_for_a_manager_that_stalls),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
