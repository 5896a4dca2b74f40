#include "src/buffer/read_ahead.h"

#include <cassert>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "src/host_process.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct ReadAhead::State {
  explicit State(std::shared_ptr<SpillFile> of) : file(std::move(of)), reader(file) {}
  void start();
  void serve();

  const std::shared_ptr<SpillFile> file;
  SpillReader reader;  // of whoever reads
  const uint32_t made_after_forks = fork_count();

  std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::span<const ReadRequest> requests;
  const std::atomic<bool>* cancel = nullptr;
  enum { idle, wanted, reading, done } stage = idle;
  std::exception_ptr error;
  bool waited = false;  // for these requests
  bool stopping = false;
  std::unique_ptr<std::thread> thread;  // null where the system refused it
};

ReadAhead::ReadAhead(std::shared_ptr<SpillFile> file) : state_(std::make_unique<State>(std::move(file))) {
  if (state_->file->reads_ahead()) state_->start();
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
    assert(state_->stage == State::idle);
    state_->requests = requests;
    state_->cancel = cancel;
    state_->waited = false;
    state_->stage = State::wanted;
  }
  state_->changed.notify_all();
}

bool ReadAhead::wait(std::chrono::nanoseconds most) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stage == State::wanted) {
    state.stage = State::idle;
    lock.unlock();
    state.reader.read(state.requests, state.cancel);
    return true;
  }
  if (state.stage != State::done) {
    const Clock::time_point start = Clock::now();
    state.changed.wait_for(lock, most, [&] { return state.stage == State::done; });
    state.file->add_wait(Clock::now() - start, std::exchange(state.waited, true) ? 0 : 1);
    if (state.stage != State::done) return false;
  }
  state.stage = State::idle;
  if (std::exception_ptr error = std::exchange(state.error, nullptr)) std::rethrow_exception(error);
  return true;
}

void ReadAhead::drop() noexcept {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stage == State::reading) {
    const Clock::time_point start = Clock::now();
    state.changed.wait(lock, [&] { return state.stage != State::reading; });
    state.file->add_wait(Clock::now() - start, state.waited ? 0 : 1);
  }
  state.stage = State::idle;
  state.error = nullptr;
}

void ReadAhead::read(std::span<const ReadRequest> requests, const std::atomic<bool>* cancel) {
  state_->reader.read(requests, cancel);
}

uint64_t ReadAhead::buffer_bytes() const { return state_->reader.buffer_bytes(); }

void ReadAhead::State::start() {
  constexpr char kName[] = "wi-ahead";
  int refused = 0;
  thread = file->own_threads().start(kName, &refused, [this] { serve(); });
  if (!thread) file->own_threads().tell_refused(kName, refused);
}

void ReadAhead::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || stage == wanted; });
    if (stopping) return;
    stage = reading;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      reader.read_unwaited(requests, cancel);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    error = std::move(thrown);
    stage = done;
    changed.notify_all();
  }
}

}  // namespace wi
