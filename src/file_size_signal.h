// Files may be limited in length (RLIMIT_FSIZE): beyond it a write is an error of the file's, and also a
// signal, which is kept from the host here.
#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>

namespace wi {

// A file that would exceed the process's limit on lengths raises SIGXFSZ, whose default ends the process.
// This thread keeps it to itself for one write and takes back what that write raised.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() {
    const int reason = errno;
    const timespec at_once{};
    if (refused && !was_pending_) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = reason;
  }
  bool refused = false;

 private:
  sigset_t signal_, before_;
  bool was_pending_;
};

}  // namespace wi
