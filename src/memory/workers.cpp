// Each run() has a Run: a Team for its loops and scratch for its workers. A run that wants helpers says how
// many; a helper serves one run for a while and then looks who else wants one, in turn. Every caller works
// through its own loops, so all make progress whoever helps.
#include "src/memory/workers.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <utility>
#include <vector>

#include "src/error.h"
#include "src/memory/host_pool.h"
#include "src/memory/team.h"
#include "src/memory/topology.h"
#include "src/no_signals.h"

namespace wi {
namespace {

// Enough for a kernel's frames; the default is the host's RLIMIT_STACK, which may be anything.
constexpr size_t kStackBytes = size_t{4} << 20;

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
  void give_back() { buffer_ = HostBuffer(); }

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

}  // namespace

struct Workers::Impl {
  // What one caller of run() works with. Runs are reused and live as long as the Workers, so that a helper
  // that comes late finds one.
  struct Run {
    Run(Impl& impl, bool is_first)
        : team(impl.count),
          owner(impl),
          worker_scratch(static_cast<size_t>(impl.count)),
          alone_scratch(static_cast<size_t>(impl.count)),
          first(is_first) {
      for (int i = 0; i < impl.count; ++i) {
        alone_scratch[static_cast<size_t>(i)].run = this;
        alone_scratch[static_cast<size_t>(i)].worker = i;
      }
    }
    void parallel(int64_t tasks, Stream::Body body, void* context, const std::atomic<bool>* cancel);
    void give_scratch_back();

    // What a worker has for the operations it goes through alone.
    struct Alone {
      Run* run = nullptr;
      int worker = 0;
      Scratch own, shared;
    };
    static Stream alone(const Stream& stream, int worker);

    Team team;
    Impl& owner;
    std::vector<Scratch> worker_scratch;
    Scratch shared_scratch;
    std::vector<Alone> alone_scratch;
    std::atomic<int> helpers{0};  // at work or wanted
    int wanted = 0;               // that have not come yet; under the mutex
    bool keeps_scratch = false;   // while it is idle, beside the first; under the mutex
    const bool first;
  };

  // A thread of the library's own.
  struct Helper {
    Impl* impl;
    int worker;
    pthread_t thread;
  };

  Impl(int threads, std::vector<int> cpus_to_bind, std::shared_ptr<const OwnThreads> of);
  ~Impl();
  void start(int threads);
  void stop();
  static void* thread_main(void* helper);
  void help(int worker);
  Run* next_that_wants_help();
  int cpu_of(int worker) const { return cpus.empty() ? -1 : cpus[static_cast<size_t>(worker) % cpus.size()]; }

  Run& enter();
  void leave(Run& run);
  void want_helpers(Run& run, int number);
  Stream stream_of(Run& run, const std::atomic<bool>* cancel) const;

  const std::vector<int> cpus;  // to bind workers to; empty: they are not bound
  const std::shared_ptr<const OwnThreads> own;
  int count = 1;  // workers: a caller and the helpers that could be made
  Refusal refused;
  std::shared_ptr<HostPool> scratch = HostPool::create(HostPool::kUnlimited, true);
  std::vector<Helper> helpers;

  std::mutex mutex;  // of all below
  std::condition_variable wanted_or_stopped;
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<Run*> idle;   // as much capacity as there are runs: leaving cannot fail
  int keeping_scratch = 0;  // of idle
  size_t last_helped = 0;
  int64_t wanted = 0;  // sum over runs
  bool stopped = false;
};

Workers::Workers(int threads, bool bind, std::shared_ptr<const OwnThreads> own) {
  Topology topology;
  if (threads <= 0 || bind) topology = read_topology();
  if (!bind) topology.cpus.clear();
  impl_ = std::make_unique<Impl>(threads > 0 ? threads : topology.threads, std::move(topology.cpus),
                                 std::move(own));
}
Workers::~Workers() = default;
int Workers::threads() const { return impl_->count; }
Workers::Refusal Workers::refused() const { return impl_->refused; }
size_t Workers::scratch_bytes() const { return impl_->scratch->used(); }

void Workers::run_erased(const std::atomic<bool>* cancel, void (*call)(void*, const Stream&), void* context) {
  try {
    Impl::Run& run = impl_->enter();
    struct Leave {
      Impl& impl;
      Impl::Run& run;
      ~Leave() { impl.leave(run); }
    } leave{*impl_, run};
    // One caller has the first CPU; more callers at the same time are the operating system's to place.
    Binding binding(run.first ? impl_->cpu_of(0) : -1);
    call(context, impl_->stream_of(run, cancel));
  } catch (const std::bad_alloc&) {
    fail(WI_E_MEMORY, "the system refused memory inside an operation");
  }
}

// ---- Runs ----

Workers::Impl::Run& Workers::Impl::enter() {
  std::lock_guard lock(mutex);
  if (idle.empty()) {
    runs.reserve(runs.size() + 1);
    idle.reserve(runs.size() + 1);
    runs.push_back(std::make_unique<Run>(*this, runs.empty()));
    return *runs.back();
  }
  Run& run = *idle.back();
  idle.pop_back();
  keeping_scratch -= std::exchange(run.keeps_scratch, false);
  return run;
}

// The last idle one is the first choice: the first run, then those that have scratch. Of a burst of callers no
// more keep theirs than there are threads.
void Workers::Impl::leave(Run& run) {
  {
    std::lock_guard lock(mutex);
    run.helpers.fetch_sub(run.wanted, std::memory_order_relaxed);
    wanted -= std::exchange(run.wanted, 0);
    if (run.first) return idle.push_back(&run);
    if (keeping_scratch < std::max(count - 1, 1)) {
      ++keeping_scratch;
      run.keeps_scratch = true;
      idle.insert(idle.end() - (!idle.empty() && idle.back()->first), &run);
      return;
    }
  }
  run.give_scratch_back();
  std::lock_guard lock(mutex);
  idle.insert(idle.begin(), &run);
}

Stream Workers::Impl::stream_of(Run& run, const std::atomic<bool>* cancel) const {
  Stream stream;
  stream.self = &run;
  stream.workers = count;
  stream.cancel = cancel;
  stream.worker_scratch = [](void* self, int worker, size_t bytes) {
    Run& of = *static_cast<Run*>(self);
    return of.worker_scratch[static_cast<size_t>(worker)].at_least(bytes, *of.owner.scratch);
  };
  stream.shared_scratch = [](void* self, size_t bytes) {
    Run& of = *static_cast<Run*>(self);
    return of.shared_scratch.at_least(bytes, *of.owner.scratch);
  };
  stream.parallel = [](const Stream& s, int64_t tasks, Stream::Body body, void* body_context) {
    static_cast<Run*>(s.self)->parallel(tasks, body, body_context, s.cancel);
  };
  stream.alone = Run::alone;
  return stream;
}

// No body runs any more, and only bodies and the caller ask for any.
void Workers::Impl::Run::give_scratch_back() {
  for (Scratch& scratch : worker_scratch) scratch.give_back();
  shared_scratch.give_back();
  for (Alone& of : alone_scratch) {
    of.own.give_back();
    of.shared.give_back();
  }
}

Stream Workers::Impl::Run::alone(const Stream& stream, int worker) {
  Stream own;
  own.self = &static_cast<Run*>(stream.self)->alone_scratch[static_cast<size_t>(worker)];
  own.cancel = stream.cancel;
  own.worker_scratch = [](void* self, int, size_t bytes) {
    Alone& of = *static_cast<Alone*>(self);
    return of.own.at_least(bytes, *of.run->owner.scratch);
  };
  own.shared_scratch = [](void* self, size_t bytes) {
    Alone& of = *static_cast<Alone*>(self);
    return of.shared.at_least(bytes, *of.run->owner.scratch);
  };
  own.parallel = [](const Stream& s, int64_t tasks, Stream::Body body, void* context) {
    const int number = static_cast<Alone*>(s.self)->worker;
    for (int64_t task = 0; task < tasks && !s.cancelled(); ++task) body(context, task, number);
  };
  return own;
}

void Workers::Impl::Run::parallel(int64_t tasks, Stream::Body body, void* context,
                                  const std::atomic<bool>* cancel) {
  const int64_t useful = std::min<int64_t>(tasks, owner.count) - 1;
  if (useful <= 0) {
    for (int64_t task = 0; task < tasks && !(cancel && cancel->load(std::memory_order_relaxed)); ++task)
      body(context, task, 0);
    return;
  }
  team.publish(tasks, body, context, cancel);
  // After publishing: a helper that leaves looks for work once more after it has signed off, so either it
  // sees this loop or this thread sees that it is gone.
  const int missing = static_cast<int>(useful) - helpers.load(std::memory_order_seq_cst);
  if (missing > 0) owner.want_helpers(*this, missing);
  team.finish();
}

// ---- Helpers ----

void Workers::Impl::want_helpers(Run& run, int number) {
  run.helpers.fetch_add(number, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex);
    run.wanted += number;
    wanted += number;
  }
  for (; number > 0; --number) wanted_or_stopped.notify_one();
}

// Waits for one. Null: the helper is to end.
Workers::Impl::Run* Workers::Impl::next_that_wants_help() {
  std::unique_lock lock(mutex);
  wanted_or_stopped.wait(lock, [&] { return stopped || wanted > 0; });
  if (stopped) return nullptr;
  do last_helped = (last_helped + 1) % runs.size();
  while (runs[last_helped]->wanted == 0);
  --runs[last_helped]->wanted;
  --wanted;
  return runs[last_helped].get();
}

void Workers::Impl::help(int worker) {
  while (Run* run = next_that_wants_help()) {
    run->team.serve(worker);
    run->helpers.fetch_sub(1, std::memory_order_seq_cst);
    if (run->team.has_work()) run->team.work(worker);  // the owner may have published while it still counted
  }
}

void* Workers::Impl::thread_main(void* of) {
  const Helper& helper = *static_cast<const Helper*>(of);
  char name[16];
  std::snprintf(name, sizeof name, "wi-worker-%d", helper.worker);
  helper.impl->own->settle(name);
  const Binding binding(helper.impl->cpu_of(helper.worker));
  helper.impl->help(helper.worker);
  return nullptr;
}

Workers::Impl::Impl(int threads, std::vector<int> cpus_to_bind, std::shared_ptr<const OwnThreads> of)
    : cpus(std::move(cpus_to_bind)), own(std::move(of)) {
  helpers.reserve(static_cast<size_t>(threads - 1));  // they are pointed at
  start(threads);
}

void Workers::Impl::start(int threads) {
  pthread_attr_t attributes;
  if (const int error = pthread_attr_init(&attributes)) {
    refused = {threads - 1, error};
    return;
  }
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const NoSignals no_signals;
  for (int worker = 1; worker < threads; ++worker) {
    helpers.push_back({this, worker, {}});
    if (const int error = pthread_create(&helpers.back().thread, &attributes, thread_main, &helpers.back())) {
      helpers.pop_back();
      refused = {threads - worker, error};
      break;
    }
  }
  pthread_attr_destroy(&attributes);
  count = static_cast<int>(helpers.size()) + 1;
}

Workers::Impl::~Impl() { stop(); }

void Workers::Impl::stop() {
  {
    std::lock_guard lock(mutex);
    stopped = true;
  }
  wanted_or_stopped.notify_all();
  for (const Helper& helper : helpers) pthread_join(helper.thread, nullptr);
}

}  // namespace wi
