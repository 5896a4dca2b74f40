#include "src/engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace wi {
namespace {

template <class T>
void make_room(std::vector<T>& list, size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

}  // namespace

// Older by kAgingNs is as good as one priority more.
bool Scheduler::Before::operator()(const Task* one, const Task* other) const {
  const auto ahead_ns = [](const Task* task) {
    return static_cast<int64_t>(kAgingNs) * task->priority - static_cast<int64_t>(task->since_ns);
  };
  const int64_t ones = ahead_ns(one), others = ahead_ns(other);
  return ones != others ? ones > others : one->number < other->number;
}

void Scheduler::submit(Id id, int32_t priority, uint64_t now_ns) {
  const size_t all = queue_.size() + running_.size() + 1;
  make_room(running_, all);
  make_room(choice_, all);
  const double weight = std::exp2(priority);
  const auto task =
      tasks_.try_emplace(id, Task{id, priority, now_ns, submitted_, weight, weight, 0, false, kQueued}).first;
  try {
    queue_.insert(&task->second);
  } catch (...) {
    tasks_.erase(task);
    throw;
  }
  ++submitted_;
}

void Scheduler::admit(const std::function<bool(Id)>& fits, const std::function<void(Id)>& admitted) {
  while (!queue_.empty()) {
    Task& task = tasks_.find((*queue_.begin())->id)->second;
    if (!fits(task.id)) return;
    queue_.erase(queue_.begin());
    task.place = running_.size();
    running_.push_back(&task);
    join(task, false);
    admitted(task.id);
  }
}

Scheduler::Id Scheduler::first_in_queue() const { return queue_.empty() ? 0 : (*queue_.begin())->id; }

size_t Scheduler::position(Id id) const {
  const auto found = tasks_.find(id);
  if (found == tasks_.end() || found->second.place != kQueued) return 0;
  const auto own = queue_.find(&found->second);
  return static_cast<size_t>(std::distance(queue_.begin(), own)) + 1;
}

void Scheduler::start_writing(Id id) {
  Task* task = find_running(id);
  if (!task || task->writing) return;
  leave(*task);
  join(*task, true);
}

void Scheduler::remove(Id id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  Task& task = found->second;
  if (task.place == kQueued) {
    queue_.erase(&task);
  } else {
    running_[task.place] = nullptr;
    ++gaps_;
    leave(task);
  }
  tasks_.erase(found);
  if (2 * gaps_ > running_.size()) close_gaps();
}

Scheduler::Id Scheduler::next_reader(const std::function<bool(Id)>& may) const {
  const Task* best = nullptr;
  for (const Task* task : running_)
    if (task && !task->writing && (!best || task->clock < best->clock) && may(task->id)) best = task;
  return best ? best->id : 0;
}

void Scheduler::next_batch(size_t most, std::vector<Id>* batch) {
  std::vector<Task*>& writers = choice_;
  writers.clear();
  for (Task* task : running_)
    if (task && task->writing) writers.push_back(task);
  if (!left_out_)  // nobody was until now, and nobody owes anybody anything
    for (Task* task : writers) task->clock = phase(true).clock;
  left_out_ = writers.size() > most;
  if (left_out_) {
    std::stable_sort(writers.begin(), writers.end(), [](auto* a, auto* b) { return a->clock < b->clock; });
    writers.resize(most);
  }
  batch->clear();
  for (const Task* task : writers) batch->push_back(task->id);
}

// A phase's clock is where newcomers start: where all its tasks would be if each had its share at every moment, or the
// one furthest behind is if that is later. Earlier, they would have everything to themselves until they had caught up,
// and one after another for ever; later, they would wait for the others to.
void Scheduler::charge(Id id, uint64_t ns) {
  Task* task = find_running(id);
  if (!task) return;
  Phase& of = phase(task->writing);
  task->clock += static_cast<double>(ns) / task->weight;
  const double shared = of.clock + static_cast<double>(ns) / of.weight;
  double least = task->clock;
  for (auto other = running_.begin(); other != running_.end() && least > shared; ++other)
    if (*other && (*other)->writing == task->writing) least = std::min(least, (*other)->clock);
  of.clock = std::max(shared, least);
}

void Scheduler::join(Task& task, bool writing) {
  Phase& of = phase(writing);
  task.writing = writing;
  task.clock = of.clock;
  ++of.tasks;
  ++of.by_priority[static_cast<size_t>(task.priority - kLowestPriority)];
  weigh(writing);
  task.weight = std::max(task.own_weight, of.least_weight);
}

void Scheduler::leave(const Task& task) {
  Phase& of = phase(task.writing);
  --of.tasks;
  --of.by_priority[static_cast<size_t>(task.priority - kLowestPriority)];
  weigh(task.writing);
}

// Who is in a phase has changed, and with it perhaps what the lightest count as. What a task has had too much or too
// little of is time, which stays the same. Weights are powers of two, and their sums exact.
void Scheduler::weigh(bool writing) {
  Phase& of = phase(writing);
  size_t heaviest = of.by_priority.size();
  while (heaviest && !of.by_priority[heaviest - 1]) --heaviest;
  const double lowest = std::exp2(kLowestPriority);
  const double least = heaviest ? std::ldexp(lowest, static_cast<int>(heaviest) - 1) / kMostRatio : 0;
  of.weight = 0;
  double weight = lowest;
  for (size_t i = 0; i < heaviest; ++i, weight *= 2)
    of.weight += static_cast<double>(of.by_priority[i]) * std::max(weight, least);
  if (least == std::exchange(of.least_weight, least)) return;
  for (Task* task : running_) {
    if (!task || task->writing != writing) continue;
    const double now = std::max(task->own_weight, least);
    if (now == task->weight) continue;
    task->clock = of.clock + (task->clock - of.clock) * task->weight / now;
    task->weight = now;
  }
}

void Scheduler::close_gaps() {
  std::erase(running_, nullptr);
  gaps_ = 0;
  for (size_t place = 0; place < running_.size(); ++place) running_[place]->place = place;
}

Scheduler::Task* Scheduler::find_running(Id id) {
  const auto found = tasks_.find(id);
  return found == tasks_.end() || found->second.place == kQueued ? nullptr : &found->second;
}

}  // namespace wi
