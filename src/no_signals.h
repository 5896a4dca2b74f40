// Threads of the library's own take no signals of the host's, nor do calls that would begin anew at each.
#pragma once

#include <csignal>
#include <pthread.h>

namespace wi {

// Keeps signals from this thread, and from threads that are made meanwhile: they inherit the mask, and the host's
// handlers are for the host's threads. Those that an instruction raises itself stay.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int raised : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&all, raised);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace wi
