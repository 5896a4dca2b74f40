// A runtime's own threads. Most are made when they are first needed, by whichever thread is in a call then; all have
// what the thread that made the runtime had: its CPUs, its scheduling policy, and its nice value and what is added.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <sched.h>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace wi {

class OwnThreads {
 public:
  using Teller = std::function<void(const std::string& warning)>;
  // Of the calling thread, as it is now. nice: added to its value. teller: of threads that are missing; may be null.
  explicit OwnThreads(int nice = 0, Teller teller = nullptr);
  OwnThreads(const OwnThreads&) = delete;
  OwnThreads& operator=(const OwnThreads&) = delete;

  // What a new thread begins with: a name of 15 bytes at most, C's floating-point environment, and all that is said
  // above, as far as the system permits: it is no reason not to work.
  void settle(const char* name) const noexcept;
  // A thread that takes no signals, or null and the errno with which the system refuses it. Lives longer than this
  // takes it to settle.
  std::unique_ptr<std::thread> start(const char* name, int* refused,
                                     std::function<void()> body) const noexcept;
  // Warns the first time that threads of a name are missing, so many of so many. The host's log may call the library:
  // with no lock held.
  void tell_refused(const char* name, int error, int missing = 1, int wanted = 1) const noexcept;

 private:
  const Teller teller_;
  const std::vector<cpu_set_t> cpus_;  // one set, over as many as the kernel's own takes
  const int nice_;
  int policy_, priority_;  // sched_setscheduler(2)
  mutable std::mutex mutex_;
  mutable std::set<std::string> told_;
};

}  // namespace wi
