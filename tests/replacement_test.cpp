// Both replacement managers of the wave buffer against one plain model of what each must do: the same random
// steps on both, and the same entries chosen every time.
#include "src/buffer/replacement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/test.h"

using namespace wi;

namespace {

struct Manager {
  const char* name;
  std::unique_ptr<Replacement> (*make)(int32_t capacity);
  bool bucketed;
};
constexpr Manager kManagers[] = {{"lru", make_lru, false}, {"bucketed", make_bucketed, true}};

// Every entry has a rank and the lowest ranks go first. Exact: which use of all uses was its last. Bucketed:
// SPIN's stamp, 63 at a use and one less in every step that begins, by a pass over all. Ties go by number.
class Model {
 public:
  Model(int32_t capacity, bool bucketed) : held_(static_cast<size_t>(capacity)), bucketed_(bucketed) {}

  void admit(int32_t entry, int32_t pages, uint64_t step) {
    advance(step);
    held_[entry] = {pages, next_rank()};
  }
  void use(std::span<const int32_t> entries, uint64_t step) {
    advance(step);
    for (const int32_t entry : entries) held_[entry] = {held_[entry].pages, next_rank()};
  }
  void remove(int32_t entry) { held_[entry].pages = 0; }

  // In the order of the manager's own out: by rank, or by number.
  std::vector<int32_t> evict(int64_t pages) {
    std::vector<std::pair<uint64_t, int32_t>> candidates;
    for (size_t entry = 0; entry < held_.size(); ++entry)
      if (held_[entry].pages > 0) candidates.emplace_back(held_[entry].rank, static_cast<int32_t>(entry));
    // A page each at least, so that many are enough.
    const auto enough = std::min(pages, static_cast<int64_t>(candidates.size()));
    std::partial_sort(candidates.begin(), candidates.begin() + enough, candidates.end());
    std::vector<int32_t> chosen;
    for (int64_t i = 0, sum = 0; i < enough && sum < pages; ++i) {
      chosen.push_back(candidates[i].second);
      sum += held_[candidates[i].second].pages;
      remove(candidates[i].second);
    }
    if (bucketed_) std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  struct Held {
    int32_t pages = 0;
    uint64_t rank = 0;
  };
  uint64_t next_rank() { return bucketed_ ? 63 : ++uses_; }
  void advance(uint64_t step) {
    if (step <= newest_) return;
    if (bucketed_)
      for (Held& held : held_) held.rank -= std::min(held.rank, step - newest_);
    newest_ = step;
  }
  std::vector<Held> held_;  // by entry; no pages: not held
  const bool bucketed_;
  uint64_t newest_ = 0, uses_ = 0;
};

struct Pattern {
  const char* name;
  int32_t (*thing)(std::mt19937_64& random, int64_t access, int32_t things);
};
constexpr Pattern kPatterns[] = {
    // Zipf with exponent 1: log-uniform ranks.
    {"zipf",
     [](std::mt19937_64& random, int64_t, int32_t things) {
       const double u = static_cast<double>(random() >> 11) * 0x1p-53;
       return std::min(static_cast<int32_t>(std::exp(u * std::log(things))), things) - 1;
     }},
    {"scan",
     [](std::mt19937_64&, int64_t access, int32_t things) { return static_cast<int32_t>(access % things); }},
    // A tenth of all is in use, another one every 20,000 accesses, and now and then anything.
    {"phases",
     [](std::mt19937_64& random, int64_t access, int32_t things) {
       const uint64_t drawn = random(), width = drawn % 16 == 0 ? things : things / 10 + 1;
       return static_cast<int32_t>((access / 20'000 * 7919 + (drawn >> 4) % width) % things);
     }},
};

// A cache of so many frames over twice as many things of one to six pages, with a manager and its model.
class Cache {
 public:
  Cache(const Manager& manager, int32_t frames, uint64_t salt)
      : things_(2 * frames),
        random_(test::seed() + salt),
        manager_(manager.make(frames)),
        model_(frames, manager.bucketed),
        free_frames_(frames),
        thing_of_(frames, -1),
        entry_of_(things_, -1) {
    for (int32_t entry = frames; entry-- > 0;) free_entries_.push_back(entry);
  }

  // False where manager and model differ.
  bool run(const Pattern& pattern, int64_t accesses) {
    for (int64_t access = 0; access < accesses;) {
      step_ = next_step();
      hits_.clear();
      misses_.clear();
      int64_t demand = 0;
      for (auto batch = static_cast<int64_t>(1 + random_() % 128); batch-- > 0; ++access) {
        const int32_t thing = pattern.thing(random_, access, things_);
        if (entry_of_[thing] >= 0)
          hits_.push_back(entry_of_[thing]);
        else if (std::find(misses_.begin(), misses_.end(), thing) == misses_.end())
          misses_.push_back(thing), demand += pages_of(thing);
      }
      manager_->use(hits_, step_);
      model_.use(hits_, step_);
      if (random_() % 64 == 0) drop_some();
      if (demand > free_frames_ && !evict(demand - free_frames_)) return false;
      for (const int32_t thing : misses_)
        if (pages_of(thing) <= free_frames_) admit(thing);
      if (manager_->pages() != frames() - free_frames_) return false;
    }
    return evict(2 * frames()) && manager_->pages() == 0;
  }

 private:
  int32_t pages_of(int32_t thing) const { return 1 + thing % 6; }
  int64_t frames() const { return static_cast<int64_t>(thing_of_.size()); }

  // Mostly the next one; the same again, a crosswise older one, and jumps of all sizes.
  uint64_t next_step() {
    const uint64_t kind = random_() % 1000;
    if (kind < 900) return step_ + 1;
    if (kind < 950) return step_;
    if (kind < 980) return step_ - std::min<uint64_t>(step_, random_() % 4);
    return step_ + (kind < 999 ? random_() % 200 : uint64_t{1} << random_() % 40);
  }

  void admit(int32_t thing) {
    const int32_t entry = free_entries_.back();
    free_entries_.pop_back();
    manager_->admit(entry, pages_of(thing), step_);
    model_.admit(entry, pages_of(thing), step_);
    free_frames_ -= pages_of(thing);
    thing_of_[entry] = thing;
    entry_of_[thing] = entry;
  }

  void release(int32_t entry) {
    free_frames_ += pages_of(thing_of_[entry]);
    entry_of_[std::exchange(thing_of_[entry], -1)] = -1;
    free_entries_.push_back(entry);
  }

  // A segment goes: some numbers in a row, held or not. Late hits of its entries follow.
  void drop_some() {
    const auto first = static_cast<int32_t>(random_() % frames());
    const auto end = static_cast<int32_t>(std::min<int64_t>(first + 10, frames()));
    std::vector<int32_t> gone;
    for (int32_t entry = first; entry < end; ++entry) {
      manager_->remove(entry);
      model_.remove(entry);
      if (thing_of_[entry] >= 0) release(entry);
      gone.push_back(entry);
    }
    manager_->use(gone, step_);
    model_.use(gone, step_);
  }

  bool evict(int64_t pages) {
    out_.clear();
    const int64_t held = manager_->pages(), chosen = manager_->evict(pages, out_);
    if (out_ != model_.evict(pages) || manager_->pages() != held - chosen) return false;
    const int64_t free_before = free_frames_;
    for (const int32_t entry : out_) release(entry);
    return free_frames_ - free_before == chosen;
  }

  const int32_t things_;
  std::mt19937_64 random_;
  std::unique_ptr<Replacement> manager_;
  Model model_;
  uint64_t step_ = 0;
  int64_t free_frames_;
  std::vector<int32_t> thing_of_, entry_of_, free_entries_;
  std::vector<int32_t> hits_, misses_, out_;
};

using Entries = std::vector<int32_t>;

Entries evict(Replacement& manager, int64_t pages) {
  Entries out;
  const int64_t held = manager.pages(), chosen = manager.evict(pages, out);
  assert_int_equal(manager.pages(), held - chosen);
  return out;
}

// The group's manager is its tests' state.
template <int kManager>
int choose(void** state) {
  std::printf("of %s:\n", kManagers[kManager].name);
  *state = const_cast<Manager*>(&kManagers[kManager]);
  return 0;
}
const Manager& kind_of(void** state) { return *static_cast<const Manager*>(*state); }

// Entries 0, 1, 2 … of one page, each in a step of its own from 1 on.
void admit_in_turn(Replacement& manager, int32_t count) {
  for (int32_t entry = 0; entry < count; ++entry) manager.admit(entry, 1, static_cast<uint64_t>(entry) + 1);
}

void random_steps_choose_what_the_model_chooses(void** state) {
#if defined(WI_SANITIZED) || defined(WI_EMULATED)
  constexpr int64_t kAccesses = 50'000;
#else
  constexpr int64_t kAccesses = 1'000'000;
#endif
  uint64_t salt = 0;
  for (const Pattern& pattern : kPatterns)
    for (const int32_t frames : {20, 400, 2000}) {
      if (Cache(kind_of(state), frames, ++salt).run(pattern, kAccesses)) continue;
      std::printf("%s, %d frames\n", pattern.name, frames);
      assert_true(false);
    }
}

void evict_gives_what_there_is_when_asked_for_more(void** state) {
  const auto manager = kind_of(state).make(100);
  assert_true(evict(*manager, 5).empty());
  manager->admit(7, 3, 1);
  manager->admit(2, 4, 2);
  Entries out = {99};
  assert_int_equal(manager->evict(1000, out), 7);
  assert_true((out == Entries{99, 7, 2} || out == Entries{99, 2, 7}));
  assert_int_equal(manager->pages(), 0);
  assert_true(evict(*manager, 5).empty());
}

void evict_of_no_pages_chooses_nothing(void** state) {
  const auto manager = kind_of(state).make(100);
  admit_in_turn(*manager, 10);
  assert_true(evict(*manager, 0).empty());
  assert_true(evict(*manager, -3).empty());
}

void whole_entries_go_and_no_more_than_it_takes(void** state) {
  const auto manager = kind_of(state).make(100);
  for (int32_t entry = 0; entry < 5; ++entry) manager->admit(entry, 3, static_cast<uint64_t>(entry) + 1);
  assert_true((evict(*manager, 4) == Entries{0, 1}));
  assert_true((evict(*manager, 3) == Entries{2}));
  assert_int_equal(manager->pages(), 6);
}

void hits_keep_an_entry_longer(void** state) {
  const auto manager = kind_of(state).make(100);
  admit_in_turn(*manager, 4);
  manager->use(Entries{0, 2, 0}, 5);
  assert_true((evict(*manager, 2) == Entries{1, 3}));
}

void what_was_removed_is_never_chosen(void** state) {
  const auto manager = kind_of(state).make(100);
  admit_in_turn(*manager, 4);
  manager->remove(0);
  manager->remove(3);
  assert_int_equal(manager->pages(), 2);
  manager->use(Entries{0, 3}, 9);  // reported late
  manager->remove(3);
  assert_int_equal(manager->pages(), 2);
  assert_true((evict(*manager, 100) == Entries{1, 2}));
}

void a_number_used_again_is_a_new_entry(void** state) {
  const auto manager = kind_of(state).make(100);
  admit_in_turn(*manager, 3);
  assert_true((evict(*manager, 1) == Entries{0}));
  manager->remove(1);
  manager->admit(0, 5, 4);
  manager->admit(1, 7, 5);
  assert_int_equal(manager->pages(), 13);
  assert_true((evict(*manager, 1) == Entries{2}));
  assert_true((evict(*manager, 5) == Entries{0}));
  assert_true((evict(*manager, 7) == Entries{1}));
}

void steps_may_jump_by_any_number(void** state) {
  for (const uint64_t jump : {uint64_t{64}, uint64_t{65}, uint64_t{1000}, (uint64_t{1} << 32) - 1,
                              uint64_t{1} << 32, uint64_t{1} << 60}) {
    const auto manager = kind_of(state).make(100);
    admit_in_turn(*manager, 5);
    manager->use(Entries{4}, jump);
    manager->use(Entries{3}, 2 * jump);
    manager->use(Entries{2}, 2 * jump + 1);
    assert_true((evict(*manager, 2) == Entries{0, 1}));
    for (const int32_t entry : {4, 3, 2}) assert_true(evict(*manager, 1) == Entries{entry});
  }
}

void an_older_step_counts_as_the_newest(void** state) {
  const auto manager = kind_of(state).make(100);
  admit_in_turn(*manager, 4);
  manager->use(Entries{0}, 8);
  manager->use(Entries{1}, 6);
  assert_true((evict(*manager, 2) == Entries{2, 3}));
  manager->admit(2, 1, 3);
  for (const int32_t entry : {0, 1, 2}) assert_true(evict(*manager, 1) == Entries{entry});
}

void lru_takes_a_step_s_hits_in_their_order(void**) {
  const auto manager = make_lru(10);
  for (int32_t entry = 0; entry < 4; ++entry) manager->admit(entry, 1, 1);
  manager->use(Entries{2, 0, 3, 0}, 1);
  assert_true((evict(*manager, 4) == Entries{1, 2, 3, 0}));
}

void bucketed_takes_a_step_s_hits_by_number_and_only_as_needed(void**) {
  const auto manager = make_bucketed(10);
  for (const int32_t entry : {3, 1, 2, 0}) manager->admit(entry, 2, 1);
  manager->admit(9, 2, 0);
  manager->use(Entries{2, 0, 3, 0}, 2);
  assert_true((evict(*manager, 3) == Entries{1, 9}));
  assert_true((evict(*manager, 3) == Entries{0, 2}));
}

void buckets_tell_the_last_64_steps_apart_and_no_more(void**) {
  std::mt19937_64 random(test::seed());
  std::array<int32_t, 66> order;
  for (int32_t i = 0; i < 66; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  const auto lru = make_lru(66), bucketed = make_bucketed(66);
  for (size_t i = 0; i < order.size(); ++i)
    for (Replacement* manager : {lru.get(), bucketed.get()}) manager->admit(order[i], 1, 100 + i);
  // Those of ages 65, 64 and 63 are one bucket.
  Entries oldest = evict(*lru, 3);
  std::sort(oldest.begin(), oldest.end());
  for (const int32_t entry : oldest) assert_true(evict(*bucketed, 1) == Entries{entry});
  for (int32_t i = 3; i < 66; ++i) assert_true(evict(*bucketed, 1) == evict(*lru, 1));
}

void nothing_is_allocated_once_out_has_room(void** state) {
  if (!test::kCounting) skip();
  const auto manager = kind_of(state).make(1000);
  Entries hits(1000), out;
  for (int32_t entry = 0; entry < 1000; ++entry) hits[entry] = entry;
  out.reserve(1000);
  const int64_t allocated = test::allocations;
  for (int32_t entry = 0; entry < 1000; ++entry) manager->admit(entry, 1 + entry % 3, 1);
  manager->use(hits, uint64_t{1} << 40);
  for (int32_t entry = 0; entry < 500; ++entry) manager->remove(entry);
  manager->evict(1 << 30, out);
  assert_int_equal(test::allocations, allocated);
  assert_int_equal(out.size(), 500);
}

}  // namespace

int main() {
  const CMUnitTest of_each[] = {
      cmocka_unit_test(random_steps_choose_what_the_model_chooses),
      cmocka_unit_test(evict_gives_what_there_is_when_asked_for_more),
      cmocka_unit_test(evict_of_no_pages_chooses_nothing),
      cmocka_unit_test(whole_entries_go_and_no_more_than_it_takes),
      cmocka_unit_test(hits_keep_an_entry_longer),
      cmocka_unit_test(what_was_removed_is_never_chosen),
      cmocka_unit_test(a_number_used_again_is_a_new_entry),
      cmocka_unit_test(steps_may_jump_by_any_number),
      cmocka_unit_test(an_older_step_counts_as_the_newest),
      cmocka_unit_test(nothing_is_allocated_once_out_has_room),
  };
  const CMUnitTest of_one[] = {
      cmocka_unit_test(lru_takes_a_step_s_hits_in_their_order),
      cmocka_unit_test(bucketed_takes_a_step_s_hits_by_number_and_only_as_needed),
      cmocka_unit_test(buckets_tell_the_last_64_steps_apart_and_no_more),
  };
  return cmocka_run_group_tests(of_each, choose<0>, nullptr) +
         cmocka_run_group_tests(of_each, choose<1>, nullptr) +
         cmocka_run_group_tests(of_one, nullptr, nullptr);
}
