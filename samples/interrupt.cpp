#include "interrupt.h"

#include <csignal>

namespace sample {
namespace {

wi_cancel* watched = nullptr;

}  // namespace

Interrupt::Interrupt() : cancel_(create_cancel()) {
  watched = cancel_.get();
  struct sigaction action = {};
  action.sa_handler = [](int) { wi_cancel_trigger(watched); };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { std::signal(SIGINT, SIG_DFL); }

}  // namespace sample
