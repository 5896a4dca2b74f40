// Each run() sits at a desk: a Team for its loops and scratch for its workers. Helpers are oneTBB tasks
// that serve one desk for a while; the arena keeps slots free for callers, so any number of host threads
// can be inside run() and all make progress: every caller works through its own loops whoever helps.
#include "src/memory/workers.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <optional>
#include <sched.h>
#include <sys/prctl.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <vector>

#include "src/error.h"
#include "src/memory/host_pool.h"
#include "src/memory/team.h"
#include "src/memory/topology.h"

namespace wi {
namespace {

// Slots of the arena for host threads that come in; helpers have the slots after them. With more callers
// than that at once, the rest take helpers' slots, or wait for one a stint long.
constexpr int kCallers = 4;

// Memory that only grows; its old content is not kept.
class Scratch {
 public:
  std::byte* at_least(size_t bytes, HostPool& pool) {
    if (bytes > buffer_.bytes()) {
      uint64_t grown = std::max<uint64_t>(bytes, buffer_.bytes() + buffer_.bytes() / 2);
      buffer_ = HostBuffer();
      buffer_ = pool.allocate(std::max<uint64_t>(grown, 4096), "scratch");
    }
    return buffer_.data();
  }

 private:
  HostBuffer buffer_;
};

// A thread on one CPU for a while; its mask is put back as it was. Where the thread's mask has not got that
// CPU, somebody has bound it already, and it is left alone.
class Binding {
 public:
  explicit Binding(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof mask_, &mask_) != 0) return;
    if (!CPU_ISSET(static_cast<size_t>(cpu), &mask_)) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    bound_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~Binding() {
    if (bound_) sched_setaffinity(0, sizeof mask_, &mask_);
  }
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

 private:
  bool bound_ = false;
  cpu_set_t mask_;
};

// The name of a thread for as long as it helps; it is oneTBB's.
class Name {
 public:
  explicit Name(int worker) {
    char name[16];
    std::snprintf(name, sizeof name, "wi-worker-%d", worker);
    prctl(PR_GET_NAME, before_);
    prctl(PR_SET_NAME, name);
  }
  ~Name() { prctl(PR_SET_NAME, before_); }
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;

 private:
  char before_[16] = {};
};

int arena_slot() { return tbb::this_task_arena::current_thread_index(); }

}  // namespace

struct Workers::Impl {
  struct Desk;
  // The oneTBB task that calls a helper. Acquire and release are oneTBB's business already; a packaged
  // oneTBB is not instrumented, though, so they are spelt out for ThreadSanitizer.
  struct Invitation {
    explicit Invitation(Desk& to) { desk.store(&to, std::memory_order_release); }
    Invitation(const Invitation& other) {
      desk.store(other.desk.load(std::memory_order_acquire), std::memory_order_release);
    }
    void operator()() const { desk.load(std::memory_order_acquire)->help(); }
    std::atomic<Desk*> desk{nullptr};
  };

  // One run()'s place. Desks are reused and live as long as the Workers, so that a late helper finds one.
  struct Desk {
    Desk(Impl& impl, bool is_first)
        : team(impl.count),
          owner(impl),
          worker(static_cast<size_t>(impl.count)),
          seats(static_cast<size_t>(impl.count)),
          first(is_first) {
      for (int i = 0; i < impl.count; ++i) {
        seats[static_cast<size_t>(i)].desk = this;
        seats[static_cast<size_t>(i)].number = i;
      }
    }
    void parallel(int64_t tasks, Stream::Body body, void* context, const std::atomic<bool>* cancel);
    void recruit(int wanted);
    void help();

    // A worker's own place at the desk, for what it does alone.
    struct Seat {
      Desk* desk = nullptr;
      int number = 0;
      Scratch worker, shared;
    };
    static Stream alone(const Stream& stream, int worker);

    Team team;
    Impl& owner;
    std::vector<Scratch> worker;
    Scratch shared;
    std::vector<Seat> seats;
    std::atomic<int> helpers{0};  // on duty or on their way
    const bool first;
  };

  explicit Impl(int threads) : count(threads), arena(threads - 1 + kCallers, kCallers) {
    // oneTBB has as many threads as the machine has CPUs, and says so on the host's stderr when asked for
    // more. Whoever asks for more gets them, unless the host has set a limit of its own: the lower one holds.
    constexpr auto kLimit = tbb::global_control::max_allowed_parallelism;
    auto wanted = static_cast<size_t>(threads);
    if (wanted > tbb::global_control::active_value(kLimit)) more_threads.emplace(kLimit, wanted);
  }
  ~Impl() {
    if (count > 1) arena.execute([&] { group.wait(); });
  }
  int cpu_of(int worker) const { return cpus.empty() ? -1 : cpus[static_cast<size_t>(worker) % cpus.size()]; }
  Desk& sit_down();
  void stand_up(Desk& desk);
  Stream stream_at(Desk& desk, const std::atomic<bool>* cancel) const;

  const int count;
  std::vector<int> cpus;  // to bind workers to; empty: they are not bound
  std::shared_ptr<HostPool> scratch = HostPool::create(HostPool::kUnlimited, true);
  std::mutex mutex;
  std::vector<std::unique_ptr<Desk>> desks;
  std::vector<Desk*> idle;  // as much capacity as there are desks: standing up cannot fail
  std::optional<tbb::global_control> more_threads;
  tbb::task_arena arena;
  // Isolated: the host may call from a oneTBB task of its own and cancel that.
  tbb::task_group_context context{tbb::task_group_context::isolated};
  tbb::task_group group{context};
};

Workers::Workers(int threads, bool bind) {
  Topology topology;
  if (threads <= 0 || bind) topology = read_topology();
  impl_ = std::make_unique<Impl>(threads > 0 ? threads : topology.threads);
  if (bind) impl_->cpus = std::move(topology.cpus);
}
Workers::~Workers() = default;
int Workers::threads() const { return impl_->count; }
size_t Workers::scratch_bytes() const { return impl_->scratch->used(); }

void Workers::run_erased(const std::atomic<bool>* cancel, void (*call)(void*, const Stream&), void* context) {
  try {
    Impl::Desk& desk = impl_->sit_down();
    struct Chair {
      Impl& impl;
      Impl::Desk& desk;
      ~Chair() { impl.stand_up(desk); }
    } chair{*impl_, desk};
    // One caller has the first CPU; more callers at the same time are the operating system's to place.
    Binding binding(desk.first ? impl_->cpu_of(0) : -1);
    Stream stream = impl_->stream_at(desk, cancel);
    if (impl_->count == 1)
      call(context, stream);
    else
      impl_->arena.execute([&] { call(context, stream); });
  } catch (const std::bad_alloc&) {
    fail(WI_E_MEMORY, "the system refused memory inside an operation");
  }
}

Workers::Impl::Desk& Workers::Impl::sit_down() {
  std::lock_guard lock(mutex);
  if (idle.empty()) {
    desks.reserve(desks.size() + 1);
    idle.reserve(desks.size() + 1);
    desks.push_back(std::make_unique<Desk>(*this, desks.empty()));
    return *desks.back();
  }
  Desk& desk = *idle.back();
  idle.pop_back();
  return desk;
}

void Workers::Impl::stand_up(Desk& desk) {
  std::lock_guard lock(mutex);
  idle.insert(desk.first ? idle.end() : idle.begin(), &desk);  // the first desk is the first choice
}

Stream Workers::Impl::stream_at(Desk& desk, const std::atomic<bool>* cancel) const {
  Stream stream;
  stream.self = &desk;
  stream.workers = count;
  stream.cancel = cancel;
  stream.worker_scratch = [](void* self, int worker, size_t bytes) {
    Desk& at = *static_cast<Desk*>(self);
    return at.worker[static_cast<size_t>(worker)].at_least(bytes, *at.owner.scratch);
  };
  stream.shared_scratch = [](void* self, size_t bytes) {
    Desk& at = *static_cast<Desk*>(self);
    return at.shared.at_least(bytes, *at.owner.scratch);
  };
  stream.parallel = [](const Stream& s, int64_t tasks, Stream::Body body, void* body_context) {
    static_cast<Desk*>(s.self)->parallel(tasks, body, body_context, s.cancel);
  };
  stream.alone = Desk::alone;
  return stream;
}

Stream Workers::Impl::Desk::alone(const Stream& stream, int worker) {
  Stream own;
  own.self = &static_cast<Desk*>(stream.self)->seats[static_cast<size_t>(worker)];
  own.cancel = stream.cancel;
  own.worker_scratch = [](void* self, int, size_t bytes) {
    Seat& seat = *static_cast<Seat*>(self);
    return seat.worker.at_least(bytes, *seat.desk->owner.scratch);
  };
  own.shared_scratch = [](void* self, size_t bytes) {
    Seat& seat = *static_cast<Seat*>(self);
    return seat.shared.at_least(bytes, *seat.desk->owner.scratch);
  };
  own.parallel = [](const Stream& s, int64_t tasks, Stream::Body body, void* context) {
    const int number = static_cast<Seat*>(s.self)->number;
    for (int64_t task = 0; task < tasks && !s.cancelled(); ++task) body(context, task, number);
  };
  return own;
}

void Workers::Impl::Desk::parallel(int64_t tasks, Stream::Body body, void* context,
                                   const std::atomic<bool>* cancel) {
  int64_t wanted = std::min<int64_t>(tasks, owner.count) - 1;
  if (wanted <= 0) {
    for (int64_t task = 0; task < tasks && !(cancel && cancel->load(std::memory_order_relaxed)); ++task)
      body(context, task, 0);
    return;
  }
  team.publish(tasks, body, context, cancel);
  // After publishing: a helper that leaves looks for work once more after it has signed off, so either it
  // sees this loop or this thread sees that it is gone.
  int missing = static_cast<int>(wanted) - helpers.load(std::memory_order_seq_cst);
  if (missing > 0) recruit(missing);
  team.finish();
}

void Workers::Impl::Desk::recruit(int wanted) {
  for (; wanted > 0; --wanted) {
    helpers.fetch_add(1, std::memory_order_relaxed);
    try {
      owner.group.run(Invitation(*this));
    } catch (...) {  // no memory for a task: the loop goes on with who is there
      helpers.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }
}

void Workers::Impl::Desk::help() {
  int worker = arena_slot() - kCallers + 1;
  if (worker < 1 || worker >= owner.count) {  // a caller that waits inside oneTBB: not for it
    helpers.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  Name name(worker);
  Binding binding(owner.cpu_of(worker));
  team.serve(worker);
  helpers.fetch_sub(1, std::memory_order_seq_cst);
  if (team.has_work()) team.work(worker);  // the owner may have published while it still counted on this one
}

}  // namespace wi
