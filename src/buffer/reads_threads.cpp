// Reads by threads. Callers' batches lie in a list; threads take one read at a time, of each batch in turn,
// so that a large batch does not keep a small one waiting. A caller works through its own.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include "src/buffer/file_reads.h"
#include "src/host_process.h"
#include "src/no_signals.h"

namespace wi {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

struct Batch {
  std::span<FileRead> reads;
  const std::atomic<bool>* cancel = nullptr;
  size_t next = 0;  // that nobody has taken
  size_t unfinished = 0;
  std::condition_variable done;
};

}  // namespace

struct ReadThreads::State {
  explicit State(int nice) : nice_by(nice) {}
  void start(int count);
  void serve();
  void do_next(Batch& batch, std::unique_lock<std::mutex>& lock);

  const int nice_by;
  const uint32_t made_after_forks = fork_count();
  std::vector<pthread_t> threads;

  std::mutex mutex;  // of all below
  std::condition_variable wanted_or_stopped;
  std::vector<Batch*> batches;  // those with reads that nobody has taken
  size_t turn = 0;
  bool stopped = false;
};

ReadThreads::ReadThreads(int threads, int nice) : state_(std::make_unique<State>(nice)) {
  state_->start(threads);
}

ReadThreads::~ReadThreads() {
  if (fork_count() != state_->made_after_forks) {
    static_cast<void>(state_.release());  // its condition variable would wait for those who wait for it
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->wanted_or_stopped.notify_all();
  for (pthread_t thread : state_->threads) pthread_join(thread, nullptr);
}

int ReadThreads::threads() const { return static_cast<int>(state_->threads.size()); }

void ReadThreads::run(std::span<FileRead> reads, const std::atomic<bool>* cancel) {
  State& state = *state_;
  if (reads.size() < 2 || state.threads.empty()) {
    for (FileRead& read : reads)
      if (!is_set(cancel)) finish_read(read);
    return;
  }
  Batch batch;
  batch.reads = reads;
  batch.cancel = cancel;
  batch.unfinished = reads.size();
  std::unique_lock lock(state.mutex);
  state.batches.push_back(&batch);
  for (size_t wanted = std::min(reads.size() - 1, state.threads.size()); wanted > 0; --wanted)
    state.wanted_or_stopped.notify_one();
  while (batch.next < reads.size()) state.do_next(batch, lock);
  batch.done.wait(lock, [&] { return batch.unfinished == 0; });
}

void ReadThreads::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    wanted_or_stopped.wait(lock, [&] { return stopped || !batches.empty(); });
    if (stopped) return;
    turn = (turn + 1) % batches.size();
    do_next(*batches[turn], lock);
  }
}

// The batch is gone when its caller has seen that nothing is unfinished: not before the lock is let go.
void ReadThreads::State::do_next(Batch& batch, std::unique_lock<std::mutex>& lock) {
  FileRead& read = batch.reads[batch.next++];
  if (batch.next == batch.reads.size()) batches.erase(std::find(batches.begin(), batches.end(), &batch));
  lock.unlock();
  if (!is_set(batch.cancel)) finish_read(read);
  lock.lock();
  if (--batch.unfinished == 0) batch.done.notify_one();
}

void ReadThreads::State::start(int count) {
  threads.reserve(static_cast<size_t>(std::max(count, 0)));
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const NoSignals no_signals;
  const auto body = [](void* state) -> void* {
    State& own = *static_cast<State*>(state);
    prctl(PR_SET_NAME, "wi-read");
    if (own.nice_by > 0) static_cast<void>(nice(own.nice_by));  // on Linux the thread's own
    own.serve();
    return nullptr;
  };
  pthread_t thread;
  while (threads.size() < threads.capacity() && pthread_create(&thread, &attributes, body, this) == 0)
    threads.push_back(thread);
  pthread_attr_destroy(&attributes);
}

}  // namespace wi
