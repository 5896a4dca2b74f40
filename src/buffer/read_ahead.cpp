#include "src/buffer/read_ahead.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <sys/prctl.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "src/host_process.h"
#include "src/memory/no_signals.h"

namespace wi {

struct ReadAhead::State {
  explicit State(std::shared_ptr<SpillFile> file) : nice_by(file->nice()), reader(std::move(file)) {}
  void serve();
  void read() noexcept;

  const int nice_by;
  SpillReader reader;  // of whoever reads
  const uint32_t made_after_forks = fork_count();

  std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::span<const ReadRequest> requests;
  const std::atomic<bool>* cancel = nullptr;
  enum { idle, wanted, reading, done } stage = idle;
  std::exception_ptr error;
  bool stopping = false;
  std::unique_ptr<std::thread> thread;  // null where the system refused it
};

ReadAhead::ReadAhead(std::shared_ptr<SpillFile> file) : state_(std::make_unique<State>(std::move(file))) {
  const NoSignals none;
  try {
    state_->thread = std::make_unique<std::thread>([state = state_.get()] {
      prctl(PR_SET_NAME, "wi-ahead");
      if (state->nice_by > 0) static_cast<void>(nice(state->nice_by));  // on Linux the thread's own
      state->serve();
    });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

ReadAhead::~ReadAhead() {
  if (fork_count() != state_->made_after_forks) {
    static_cast<void>(state_.release());  // its condition variable would wait for those who wait for it
    return;
  }
  if (!state_->thread) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread->join();
}

void ReadAhead::begin(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) noexcept {
  {
    std::lock_guard lock(state_->mutex);
    state_->requests = requests;
    state_->cancel = cancel;
    state_->stage = State::wanted;
  }
  state_->changed.notify_all();
}

void ReadAhead::wait() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  // What nobody has begun yet is not waited for.
  if (state.stage == State::wanted) {
    state.stage = State::reading;
    lock.unlock();
    state.read();
    lock.lock();
    state.stage = State::done;
  }
  state.changed.wait(lock, [&] { return state.stage == State::done; });
  state.stage = State::idle;
  if (std::exception_ptr error = std::exchange(state.error, nullptr)) std::rethrow_exception(error);
}

void ReadAhead::drop() noexcept {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stage != State::wanted) state.changed.wait(lock, [&] { return state.stage != State::reading; });
  state.stage = State::idle;
  state.error = nullptr;
}

uint64_t ReadAhead::buffer_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->stage == State::reading ? 0 : state_->reader.buffer_bytes();
}

void ReadAhead::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || stage == wanted; });
    if (stopping) return;
    stage = reading;
    lock.unlock();
    read();
    lock.lock();
    stage = done;
    changed.notify_all();
  }
}

void ReadAhead::State::read() noexcept {
  try {
    reader.read(requests, cancel);
  } catch (...) {
    error = std::current_exception();
  }
}

}  // namespace wi
