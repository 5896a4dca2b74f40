#include "interrupt.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <unistd.h>

namespace sample {
namespace {

enum State { kAtRest, kWarned, kWorking };

volatile std::sig_atomic_t state = kWorking, heard = 0;
wi_cancel* watched = nullptr;
const char* said_at_rest = "";

void end_by_signal() {
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);  // within the handler: when it returns
}

void on_interrupt(int) {
  const int error = errno;
  if (state == kWorking) {
    heard = 1;
    wi_cancel_trigger(watched);
    if (!*said_at_rest) std::signal(SIGINT, SIG_DFL);
  } else if (state == kAtRest && *said_at_rest) {
    state = kWarned;
    if (write(STDOUT_FILENO, said_at_rest, std::strlen(said_at_rest)) < 0)
      end_by_signal();  // nobody is there
  } else {
    end_by_signal();
  }
  errno = error;
}

// What waits for a line goes on waiting.
void listen_to_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

Interrupt::Interrupt() : Interrupt("") { state = kWorking; }

Interrupt::Interrupt(const char* notice) : cancel_(create_cancel()) {
  watched = cancel_.get();
  said_at_rest = notice;
  heard = 0;
  state = kAtRest;
  listen_to_interrupts();
}

Interrupt::~Interrupt() { std::signal(SIGINT, SIG_DFL); }

Interrupt::Work::Work(const Interrupt& interrupt) : cancel_(interrupt.cancel()) {
  wi_cancel_reset(cancel_);
  heard = 0;
  state = kWorking;
  listen_to_interrupts();
}

Interrupt::Work::~Work() { state = kAtRest; }

void Interrupt::line_was_entered() { state = kAtRest; }

int end_status(int status) {
  if (status != 0 && heard) end_by_signal();
  return status;  // where the signal is blocked, too
}

}  // namespace sample
