#include "interrupt.h"

#include <csignal>

namespace sample {
namespace {

wi_cancel* watched = nullptr;
volatile std::sig_atomic_t heard = 0;

}  // namespace

Interrupt::Interrupt() : cancel_(create_cancel()) {
  watched = cancel_.get();
  heard = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    heard = 1;
    wi_cancel_trigger(watched);
  };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { std::signal(SIGINT, SIG_DFL); }

int end_status(int status) {
  if (status == 0 || !heard) return status;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  return status;  // where the signal is blocked
}

}  // namespace sample
