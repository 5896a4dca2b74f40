// The rules of src/engine/scheduler.h in a simulation: tasks of all sizes and priorities arrive at random, an
// engine on paper serves them, and nobody waits for ever, gets less than its share, or stalls who writes.
#include "src/engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>

#include "tests/support/in_time.h"
#include "tests/test.h"

namespace {

using namespace wi;
using Id = Scheduler::Id;

constexpr uint64_t kMs = 1'000'000;

const auto anybody = [](Id) { return true; };

// An engine on paper: a chunk of a prompt takes `chunk_ns`, a step of all writers `step_ns`.
struct Simulation {
  explicit Simulation(uint64_t bytes) : memory(bytes) {}

  struct Work {
    int32_t priority;
    uint64_t bytes, chunks, tokens;
    uint64_t submitted_ns, admitted_ns = 0, done_ns = 0, last_token_ns = 0, longest_gap_ns = 0, read_ns = 0;
    uint64_t last_chunk_ns = 0, longest_unread_ns = 0;  // between two chunks
  };
  uint64_t memory, chunk_ns = 40 * kMs, step_ns = 10 * kMs, now_ns = 0, used = 0;
  size_t batch = 8;
  Scheduler scheduler;
  std::map<Id, Work> work;
  Id next = 1;

  Id submit(int32_t priority, uint64_t bytes, uint64_t chunks, uint64_t tokens) {
    work[next] = {priority, bytes, chunks, tokens, now_ns};
    scheduler.submit(next, priority, now_ns);
    return next++;
  }
  // One turn of the engine's loop. False: nothing to do.
  bool turn() {
    scheduler.admit([&](Id id) { return used + work[id].bytes <= memory; },
                    [&](Id id) {
                      used += work[id].bytes;
                      work[id].admitted_ns = std::max<uint64_t>(now_ns, 1);
                      if (work[id].chunks == 0) scheduler.start_writing(id);
                    });
    std::vector<Id> ids;
    scheduler.next_batch(batch, &ids);
    if (!ids.empty()) now_ns += step_ns;
    for (Id id : ids) {
      Work& task = work[id];
      if (task.last_token_ns)
        task.longest_gap_ns = std::max(task.longest_gap_ns, now_ns - task.last_token_ns);
      task.last_token_ns = now_ns;
      scheduler.charge(id, step_ns / ids.size());
      if (--task.tokens == 0) end(id);
    }
    const Id reader = scheduler.next_reader(anybody);
    if (reader) {
      now_ns += chunk_ns;
      Work& task = work[reader];
      task.read_ns += chunk_ns;
      if (task.last_chunk_ns)
        task.longest_unread_ns = std::max(task.longest_unread_ns, now_ns - task.last_chunk_ns);
      task.last_chunk_ns = now_ns;
      scheduler.charge(reader, chunk_ns);
      if (--work[reader].chunks == 0) scheduler.start_writing(reader);
    }
    return reader || !ids.empty();
  }
  void end(Id id) {
    work[id].done_ns = now_ns;
    used -= work[id].bytes;
    scheduler.remove(id);
  }
};

void readers_share_the_time_by_their_weights(void**) {
  Simulation sim(100);
  const Id low = sim.submit(-1, 1, 1000000, 1), middle = sim.submit(0, 1, 1000000, 1),
           high = sim.submit(2, 1, 1000000, 1);
  for (int i = 0; i < 5000; ++i) assert_true(sim.turn());
  const double unit = static_cast<double>(sim.work[low].read_ns);
  // 2^-1 : 2^0 : 2^2; off by a chunk each
  assert_true(std::abs(static_cast<double>(sim.work[middle].read_ns) / unit - 2) < 0.02);
  assert_true(std::abs(static_cast<double>(sim.work[high].read_ns) / unit - 8) < 0.05);
}

// Beside one who has read for long.
void assert_a_newcomer_reads_half_the_time(Simulation& sim) {
  const Id old = sim.submit(0, 1, 1000000, 1);
  for (int i = 0; i < 1000; ++i) sim.turn();
  const uint64_t before = sim.work[old].read_ns;
  const Id fresh = sim.submit(0, 1, 1000000, 1);
  for (int i = 0; i < 100; ++i) sim.turn();
  assert_int_equal(sim.work[fresh].read_ns / sim.chunk_ns, 50);
  assert_int_equal((sim.work[old].read_ns - before) / sim.chunk_ns, 50);
}

void a_newcomer_neither_starves_others_nor_waits_for_them(void**) {
  Simulation sim(100);
  assert_a_newcomer_reads_half_the_time(sim);
}

void a_newcomer_has_no_advantage_where_others_write(void**) {
  Simulation sim(100);
  sim.submit(0, 1, 0, 1000000);
  assert_a_newcomer_reads_half_the_time(sim);
}

void the_lowest_reader_goes_on_beside_the_highest(void**) {
  Simulation sim(100);
  const Id low = sim.submit(-8, 1, 1000000, 1), high = sim.submit(8, 1, 1000000, 1);
  while (sim.now_ns < 600'000 * kMs) sim.turn();
  std::printf("at most %.1f s between two chunks\n",
              static_cast<double>(sim.work[low].longest_unread_ns) * 1e-9);
  assert_true(sim.work[low].longest_unread_ns <= 258 * sim.chunk_ns);  // ten seconds
  assert_true(sim.now_ns - sim.work[low].last_chunk_ns <= 258 * sim.chunk_ns);
  // and has no more than that
  assert_true(sim.work[high].read_ns >= 250 * sim.work[low].read_ns);
}

// They had the time to themselves, and one of them the last chunk.
void what_readers_had_alone_is_not_held_against_them(void**) {
  Simulation sim(100);
  const Id low[] = {sim.submit(-8, 1, 1000000, 1), sim.submit(-8, 1, 1000000, 1)};
  for (int i = 0; i < 101; ++i) sim.turn();
  sim.submit(8, 1, 1000000, 1);
  while (sim.now_ns < 600'000 * kMs) sim.turn();
  for (const Id id : low) {
    assert_true(sim.work[id].read_ns > 1000 * kMs);
    assert_true(sim.now_ns - sim.work[id].last_chunk_ns < 3 * 258 * sim.chunk_ns);
    assert_true(sim.work[id].longest_unread_ns < 3 * 258 * sim.chunk_ns);
  }
}

// There is always one that has read nothing yet.
void the_lowest_reader_goes_on_beside_newcomers_without_end(void**) {
  Simulation sim(100);
  const Id low = sim.submit(-8, 1, 1000000, 1);
  while (sim.now_ns < 600'000 * kMs) {
    while (sim.scheduler.readers() + sim.scheduler.queued() < 4) sim.submit(8, 1, 1, 1);
    sim.turn();
    std::erase_if(sim.work, [](const auto& one) { return one.second.done_ns > 0; });
  }
  assert_true(sim.work[low].read_ns > 100 * kMs);
  std::printf("at most %.1f s between two chunks\n",
              static_cast<double>(sim.work[low].longest_unread_ns) * 1e-9);
  const uint64_t turn_ns = sim.chunk_ns + sim.step_ns;
  assert_true(sim.work[low].longest_unread_ns < 4 * 258 * turn_ns);
  assert_true(sim.now_ns - sim.work[low].last_chunk_ns < 4 * 258 * turn_ns);
}

void the_lowest_writer_goes_on_beside_more_than_a_batch(void**) {
  Simulation sim(100);
  const Id low = sim.submit(-8, 1, 0, 1000000);
  for (int i = 0; i < 12; ++i) sim.submit(8, 1, 0, 1000000);
  while (sim.now_ns < 600'000 * kMs) sim.turn();
  std::printf("at most %.1f s between two tokens\n",
              static_cast<double>(sim.work[low].longest_gap_ns) * 1e-9);
  assert_true(sim.work[low].tokens < 1000000 - 100);
  assert_true(sim.work[low].longest_gap_ns < 2 * 258 * sim.step_ns);
}

// They took nothing from anybody then.
void what_writers_wrote_with_room_for_all_is_not_held_against_them(void**) {
  Simulation sim(100);
  const Id low = sim.submit(-8, 1, 0, 1000000);
  sim.submit(8, 1, 0, 1000000);
  for (int i = 0; i < 1000; ++i) sim.turn();
  assert_int_equal(sim.work[low].tokens, 1000000 - 1000);
  for (int i = 0; i < 12; ++i) sim.submit(8, 1, 0, 1000000);
  while (sim.now_ns < 600'000 * kMs) sim.turn();
  assert_true(sim.work[low].longest_gap_ns < 2 * 258 * sim.step_ns);
  assert_true(sim.now_ns - sim.work[low].last_token_ns < 2 * 258 * sim.step_ns);
}

void writers_beyond_a_batch_take_turns(void**) {
  Simulation sim(1000);
  std::vector<Id> ids;
  for (int i = 0; i < 24; ++i) ids.push_back(sim.submit(0, 1, 0, 1000000));
  for (int i = 0; i < 300; ++i) sim.turn();
  for (Id id : ids) assert_int_equal(1000000 - sim.work[id].tokens, 100);  // 8 of 24 a step
}

void the_queue_goes_by_priority_then_age_and_nobody_overtakes_the_first(void**) {
  Simulation sim(10);
  const Id holder = sim.submit(0, 8, 0, 100);
  sim.turn();
  const Id big = sim.submit(0, 10, 0, 1), small = sim.submit(0, 1, 0, 1), urgent = sim.submit(3, 5, 0, 1);
  assert_int_equal(sim.scheduler.position(urgent), 1);
  assert_int_equal(sim.scheduler.position(big), 2);
  assert_int_equal(sim.scheduler.position(small), 3);
  while (!sim.work[holder].done_ns) {
    sim.turn();
    assert_int_equal(sim.work[small].admitted_ns, 0);  // it would fit, but others are before it
  }
  while (sim.turn()) {
  }
  assert_true(sim.work[urgent].admitted_ns <= sim.work[big].admitted_ns);
  assert_true(sim.work[big].admitted_ns < sim.work[small].admitted_ns);
}

void waiting_counts_as_priority(void**) {
  Scheduler scheduler;
  scheduler.submit(1, -8, 0);
  scheduler.submit(2, 8, 15 * Scheduler::kAgingNs);
  assert_int_equal(scheduler.first_in_queue(), 2);
  Scheduler later;
  later.submit(1, -8, 0);
  later.submit(2, 8, 17 * Scheduler::kAgingNs);
  assert_int_equal(later.first_in_queue(), 1);
}

// An engine with more to do than it can, for a simulated hour: all of it is done in the end.
void everybody_is_served_in_a_random_hour(void**) {
  std::mt19937_64 random(test::seed());
  Simulation sim(64);
  std::exponential_distribution<double> gap(1 / 0.9);  // seconds; the load is about the capacity
  uint64_t next_arrival = 0;
  uint64_t worst_gap = 0;
  const uint64_t hour = 3600ull * 1000 * kMs;
  while (sim.now_ns < hour || !sim.work.empty()) {
    while (sim.now_ns < hour && next_arrival <= sim.now_ns) {
      const int32_t priority = static_cast<int32_t>(random() % 17) - 8;
      const bool document = random() % 8 == 0;
      sim.submit(priority, document ? 1 + random() % 60 : 1 + random() % 4,
                 document ? 20 + random() % 60 : random() % 4, 1 + random() % 40);
      next_arrival += static_cast<uint64_t>(gap(random) * 1e9);
    }
    if (!sim.turn()) {
      if (sim.now_ns >= hour) break;
      sim.now_ns = std::max(sim.now_ns, next_arrival);
    }
    for (auto at = sim.work.begin(); at != sim.work.end();) {
      worst_gap = std::max(worst_gap, at->second.longest_gap_ns);
      at = at->second.done_ns ? sim.work.erase(at) : std::next(at);
    }
  }
  assert_true(sim.work.empty());
  assert_int_equal(sim.used, 0);
  assert_int_equal(sim.scheduler.queued() + sim.scheduler.readers() + sim.scheduler.writers(), 0);
  // A writer waits for steps of other batches by its share of them, not for prompts: more than a few seconds
  // at the lowest priority would be starvation.
  std::printf("longest time between two tokens: %.2f s\n", static_cast<double>(worst_gap) * 1e-9);
  assert_true(worst_gap < 60ull * 1000 * kMs);
}

// What each of so many tasks takes to wait, a look at the queue included, to be admitted, to write and to go.
double seconds_of_each(Id tasks) {
  const auto begin = std::chrono::steady_clock::now();
  Scheduler scheduler;
  for (Id id = 1; id <= tasks; ++id) {
    scheduler.submit(id, static_cast<int32_t>(id % 3), id);
    scheduler.admit([](Id) { return false; }, [](Id) {});
  }
  scheduler.admit(anybody, [](Id) {});
  for (Id id = 1; id <= tasks; id += 2) scheduler.start_writing(id);
  for (Id id = 1; id <= tasks; ++id) scheduler.remove(id);
  assert_int_equal(scheduler.queued() + scheduler.readers() + scheduler.writers(), 0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(tasks);
}

// Lists that are gone through for each would make it 16 times as much; trees and caches make it twice.
void what_a_task_takes_is_the_same_beside_many_others(void**) {
  constexpr Id kFew = 500;
  constexpr double kMost = 6;
  const double ratio =
      test::least_of_tries(kMost, [] { return seconds_of_each(16 * kFew) / seconds_of_each(kFew); });
  std::printf("beside 16 times as many %.1f times as much\n", ratio);
  assert_in_time(ratio < kMost);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(readers_share_the_time_by_their_weights),
      cmocka_unit_test(a_newcomer_neither_starves_others_nor_waits_for_them),
      cmocka_unit_test(a_newcomer_has_no_advantage_where_others_write),
      cmocka_unit_test(the_lowest_reader_goes_on_beside_the_highest),
      cmocka_unit_test(what_readers_had_alone_is_not_held_against_them),
      cmocka_unit_test(the_lowest_reader_goes_on_beside_newcomers_without_end),
      cmocka_unit_test(the_lowest_writer_goes_on_beside_more_than_a_batch),
      cmocka_unit_test(what_writers_wrote_with_room_for_all_is_not_held_against_them),
      cmocka_unit_test(writers_beyond_a_batch_take_turns),
      cmocka_unit_test(the_queue_goes_by_priority_then_age_and_nobody_overtakes_the_first),
      cmocka_unit_test(waiting_counts_as_priority),
      cmocka_unit_test(everybody_is_served_in_a_random_hour),
      cmocka_unit_test(what_a_task_takes_is_the_same_beside_many_others),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
