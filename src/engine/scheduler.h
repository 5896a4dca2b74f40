// Whose turn it is: continuous batching for long requests (SPIN, section 5) as arithmetic on numbers, without
// threads, models or clocks, so that a simulation can run it (tests/scheduler_test.cpp).
//
// A task waits in a queue until its memory fits, reads its prompt a chunk at a time, and then writes one
// token in each step of the batch. Three rules:
//
//   queue    by priority and then by age; every kAgingNs of waiting counts as one priority more, and nobody
//            overtakes the first: so whatever is submitted later, a task is admitted in the end
//   reading  by stride: each reader's clock runs by the time it used over its weight, 2^priority, and the
//            one whose clock is furthest behind reads next. A reader gets its weight's share of the time, where
//            none counts as lighter than a kMostRatio-th of the heaviest: so whatever is submitted later, it goes on
//   writing  all writers are in each step; where they are more than a batch holds, those whose clocks are
//            furthest behind, by the same weights, of the time since they are so many
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <unordered_map>
#include <vector>

namespace wi {

constexpr int32_t kLowestPriority = -8, kHighestPriority = 8;

class Scheduler {
 public:
  using Id = uint64_t;
  static constexpr uint64_t kAgingNs = 10'000'000'000;
  static constexpr double kMostRatio = 256;

  // A task for the queue. priority: in [kLowestPriority, kHighestPriority]. now_ns: never earlier than before. Takes
  // memory for all that comes of the task later: what else there is here never fails, next_batch() as far as its list
  // has room.
  void submit(Id id, int32_t priority, uint64_t now_ns);
  // Moves tasks from the queue to the readers while the first one fits, and calls admitted for each.
  void admit(const std::function<bool(Id)>& fits, const std::function<void(Id)>& admitted);
  // The task that should be admitted next; 0: the queue is empty.
  Id first_in_queue() const;
  // Where a task is in the queue, from 1 on; 0: not in it.
  size_t position(Id id) const;
  // A reader has no prompt left.
  void start_writing(Id id);
  void remove(Id id);  // wherever it is; unknown ids are ignored

  // The reader whose turn it is, of those that may; 0: none.
  Id next_reader(const std::function<bool(Id)>& may) const;
  void next_batch(size_t most, std::vector<Id>* batch);  // writers of the next step
  // What a task has used: time of a chunk, or its share of a step.
  void charge(Id id, uint64_t ns);

  size_t queued() const { return queue_.size(); }
  size_t readers() const { return phases_[0].tasks; }
  size_t writers() const { return phases_[1].tasks; }
  // body(id), for all readers and writers in order of admission.
  template <class Body>
  void each_running(Body&& body) const {
    for (const Task* task : running_)
      if (task) body(task->id);
  }

 private:
  struct Task {
    Id id;
    int32_t priority;
    uint64_t since_ns, number;  // in the queue, and of its submission
    double own_weight, weight;  // by priority alone; as it counts beside the others
    double clock;
    bool writing;
    size_t place;  // in running_; kQueued: not there
  };
  // Who comes first in the queue. All age alike, so that time changes nothing about it.
  struct Before {
    bool operator()(const Task* one, const Task* other) const;
  };
  // A task reads or writes, and shares with its like.
  struct Phase {
    double clock = 0;
    size_t tasks = 0;
    std::array<size_t, kHighestPriority - kLowestPriority + 1> by_priority{};  // of these
    double weight = 0;                                                         // of all of them
    double least_weight = 0;                                                   // that one counts as
  };
  static constexpr size_t kQueued = SIZE_MAX;
  Task* find_running(Id id);  // null: it does not
  Phase& phase(bool writing) { return phases_[writing ? 1 : 0]; }
  void join(Task& task, bool writing);
  void leave(const Task& task);
  void weigh(bool writing);
  void close_gaps();

  std::unordered_map<Id, Task> tasks_;
  std::set<const Task*, Before> queue_;
  // In order of admission; null: it has gone. All that go at once leave so many gaps, and are not moved up to each time.
  std::vector<Task*> running_;
  size_t gaps_ = 0;
  std::vector<Task*> choice_;  // next_batch()'s
  uint64_t submitted_ = 0;
  bool left_out_ = false;  // some writer, of the last batch
  std::array<Phase, 2> phases_{};
};

}  // namespace wi
