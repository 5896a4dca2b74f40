#include "src/memory/own_threads.h"

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <cstring>
#include <new>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <system_error>
#include <utility>

#include "src/error.h"
#include "src/no_signals.h"

namespace wi {
namespace {

using Cpus = std::vector<cpu_set_t>;

constexpr int kMostNice = 19;
constexpr size_t kMostSets = 1024;

// Of this thread. The kernel wants room for all that it knows of. Empty: it does not tell.
Cpus own_cpus() {
  for (size_t sets = 1; sets <= kMostSets; sets *= 4) {
    Cpus cpus(sets);
    if (sched_getaffinity(0, sets * sizeof(cpu_set_t), cpus.data()) == 0) return cpus;
    if (errno != EINVAL) break;
  }
  return {};
}

bool same(const Cpus& a, const Cpus& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(cpu_set_t)) == 0;
}

struct Scheduling {
  int policy = SCHED_OTHER;
  int priority = 0;
  bool operator==(const Scheduling&) const = default;
};

// Of this thread, as a thread that it makes has it.
Scheduling own_scheduling() {
  const int policy = sched_getscheduler(0);
  sched_param parameters{};
  if (policy < 0 || sched_getparam(0, &parameters) != 0) return {};
  const int kept = policy & ~SCHED_RESET_ON_FORK;
  if (policy != kept && (kept == SCHED_FIFO || kept == SCHED_RR)) return {};
  return {kept, parameters.sched_priority};
}

}  // namespace

// On Linux the scheduler's calls are about a thread, and 0 is the calling one.
OwnThreads::OwnThreads(int nice, Teller teller)
    : teller_(std::move(teller)),
      cpus_(own_cpus()),
      nice_(std::min(getpriority(PRIO_PROCESS, 0) + nice, kMostNice)) {
  const Scheduling scheduling = own_scheduling();
  policy_ = scheduling.policy;
  priority_ = scheduling.priority;
}

// What is so already is not asked for: a sandbox may end a process that does.
void OwnThreads::settle(const char* name) const noexcept {
  std::fesetenv(FE_DFL_ENV);
  prctl(PR_SET_NAME, name);
  if (own_scheduling() != Scheduling{policy_, priority_}) {
    sched_param parameters{};
    parameters.sched_priority = priority_;
    static_cast<void>(sched_setscheduler(0, policy_, &parameters));
  }
  if (getpriority(PRIO_PROCESS, 0) != nice_) static_cast<void>(setpriority(PRIO_PROCESS, 0, nice_));
  try {
    if (!cpus_.empty() && !same(own_cpus(), cpus_))
      static_cast<void>(sched_setaffinity(0, cpus_.size() * sizeof(cpu_set_t), cpus_.data()));
  } catch (const std::bad_alloc&) {
  }
}

std::unique_ptr<std::thread> OwnThreads::start(const char* name, int* refused,
                                               std::function<void()> body) const noexcept {
  const NoSignals none;
  try {
    return std::make_unique<std::thread>([this, own_name = std::string(name), work = std::move(body)] {
      settle(own_name.c_str());
      work();
    });
  } catch (const std::system_error& error) {
    *refused = error.code().value();
  } catch (const std::bad_alloc&) {
    *refused = ENOMEM;
  }
  return nullptr;
}

void OwnThreads::tell_refused(const char* name, int error, int missing, int wanted) const noexcept {
  if (!teller_ || missing == 0) return;
  try {
    {
      std::lock_guard lock(mutex_);
      if (!told_.insert(name).second) return;
    }
    teller_(concat("the system refused ", missing, " of ", wanted, wanted == 1 ? " thread " : " threads ",
                   name, " (", error_text(error), ")"));
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace wi
