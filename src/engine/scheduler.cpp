#include "src/engine/scheduler.h"

#include <algorithm>
#include <cmath>

namespace wi {
namespace {

double aged_priority(int32_t priority, uint64_t since_ns, uint64_t now_ns) {
  const uint64_t waited = now_ns > since_ns ? now_ns - since_ns : 0;
  return priority + static_cast<double>(waited) / static_cast<double>(Scheduler::kAgingNs);
}

template <class T>
void make_room(std::vector<T>& list, size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

}  // namespace

void Scheduler::submit(Id id, int32_t priority, uint64_t now_ns) {
  const size_t all = queue_.size() + running_.size() + 1;
  make_room(running_, all);
  make_room(choice_, all);
  queue_.push_back({id, priority, now_ns});
}

void Scheduler::admit(uint64_t now_ns, const std::function<bool(Id)>& fits,
                      const std::function<void(Id)>& admitted) {
  while (!queue_.empty()) {
    const size_t at = first(now_ns);
    const Waiting task = queue_[at];
    if (!fits(task.id)) return;
    const double weight = std::exp2(task.priority);
    running_.push_back({task.id, weight, weight, phase(false).clock, false});
    weigh(false);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
    admitted(task.id);
  }
}

Scheduler::Id Scheduler::first_in_queue(uint64_t now_ns) const {
  return queue_.empty() ? 0 : queue_[first(now_ns)].id;
}

size_t Scheduler::position(Id id, uint64_t now_ns) const {
  const auto own = std::find_if(queue_.begin(), queue_.end(), [&](const Waiting& w) { return w.id == id; });
  if (own == queue_.end()) return 0;
  const double priority = aged_priority(own->priority, own->since_ns, now_ns);
  size_t before = 0;
  for (auto other = queue_.begin(); other != queue_.end(); ++other) {
    const double theirs = aged_priority(other->priority, other->since_ns, now_ns);
    before += theirs > priority || (theirs == priority && other < own);
  }
  return before + 1;
}

void Scheduler::start_writing(Id id) {
  Running* task = find(id);
  if (!task || task->writing) return;
  task->writing = true;
  task->clock = phase(true).clock;
  ++writers_;
  weigh(false);
  weigh(true);
}

void Scheduler::remove(Id id) {
  std::erase_if(queue_, [&](const Waiting& w) { return w.id == id; });
  std::erase_if(running_, [&](const Running& r) {
    if (r.id == id && r.writing) --writers_;
    return r.id == id;
  });
  weigh(false);
  weigh(true);
}

Scheduler::Id Scheduler::next_reader(const std::function<bool(Id)>& may) const {
  const Running* best = nullptr;
  for (const Running& task : running_)
    if (!task.writing && (!best || task.clock < best->clock) && may(task.id)) best = &task;
  return best ? best->id : 0;
}

void Scheduler::next_batch(size_t most, std::vector<Id>* batch) {
  std::vector<Running*>& writers = choice_;
  writers.clear();
  for (Running& task : running_)
    if (task.writing) writers.push_back(&task);
  if (!left_out_)  // nobody was until now, and nobody owes anybody anything
    for (Running* task : writers) task->clock = phase(true).clock;
  left_out_ = writers.size() > most;
  if (left_out_) {
    std::stable_sort(writers.begin(), writers.end(), [](auto* a, auto* b) { return a->clock < b->clock; });
    writers.resize(most);
  }
  batch->clear();
  for (const Running* task : writers) batch->push_back(task->id);
}

// A phase's clock is where newcomers start: where all its tasks would be if each had its share at every moment, or the
// one furthest behind is if that is later. Earlier, they would have everything to themselves until they had caught up,
// and one after another for ever; later, they would wait for the others to.
void Scheduler::charge(Id id, uint64_t ns) {
  Running* task = find(id);
  if (!task) return;
  Phase& of = phase(task->writing);
  task->clock += static_cast<double>(ns) / task->weight;
  double least = task->clock;
  for (const Running& other : running_)
    if (other.writing == task->writing) least = std::min(least, other.clock);
  of.clock = std::max(of.clock + static_cast<double>(ns) / of.weight, least);
}

// Who is in a phase has changed, and with it perhaps what the lightest count as. What a task has had too much or too
// little of is time, which stays the same.
void Scheduler::weigh(bool writing) {
  Phase& of = phase(writing);
  double heaviest = 0;
  for (const Running& task : running_)
    if (task.writing == writing) heaviest = std::max(heaviest, task.own_weight);
  of.weight = 0;
  for (Running& task : running_) {
    if (task.writing != writing) continue;
    const double weight = std::max(task.own_weight, heaviest / kMostRatio);
    task.clock = of.clock + (task.clock - of.clock) * task.weight / weight;
    task.weight = weight;
    of.weight += weight;
  }
}

size_t Scheduler::first(uint64_t now_ns) const {
  size_t best = 0;
  for (size_t i = 1; i < queue_.size(); ++i) {
    if (aged_priority(queue_[i].priority, queue_[i].since_ns, now_ns) >
        aged_priority(queue_[best].priority, queue_[best].since_ns, now_ns))
      best = i;
  }
  return best;
}

Scheduler::Running* Scheduler::find(Id id) {
  const auto found = std::find_if(running_.begin(), running_.end(), [&](auto& r) { return r.id == id; });
  return found == running_.end() ? nullptr : &*found;
}

}  // namespace wi
