// Reads by threads. Callers' batches lie in a list; threads take one read at a time, of each batch in turn,
// so that a large batch does not keep a small one waiting. A caller works through its own.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <pthread.h>
#include <vector>

#include "src/buffer/file_reads.h"
#include "src/host_process.h"
#include "src/no_signals.h"

namespace wi {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr char kName[] = "wi-read";

struct Batch {
  std::span<FileRead> reads;
  const std::atomic<bool>* cancel = nullptr;
  size_t next = 0;  // that nobody has taken
  size_t unfinished = 0;
  std::condition_variable done;
};

}  // namespace

struct ReadThreads::State {
  explicit State(std::shared_ptr<const OwnThreads> of) : own(std::move(of)) {}
  void start(int count);
  void serve();
  void do_next(Batch& batch, std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<const OwnThreads> own;
  const uint32_t made_after_forks = fork_count();
  std::vector<pthread_t> threads;
  int missing = 0, refused = 0;  // so many, and why (errno)

  std::mutex mutex;  // of all below
  std::condition_variable wanted_or_stopped;
  std::vector<Batch*> batches;  // those with reads that nobody has taken
  size_t turn = 0;
  bool stopped = false;
};

ReadThreads::ReadThreads(int threads, std::shared_ptr<const OwnThreads> own)
    : state_(std::make_unique<State>(std::move(own))) {
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

void ReadThreads::tell_refused() const noexcept {
  state_->own->tell_refused(kName, state_->refused, state_->missing, threads() + state_->missing);
}

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
  missing = std::max(count, 0);
  threads.reserve(static_cast<size_t>(missing));
  pthread_attr_t attributes;
  refused = pthread_attr_init(&attributes);
  if (refused) return;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const NoSignals no_signals;
  const auto body = [](void* state) -> void* {
    State& of = *static_cast<State*>(state);
    of.own->settle(kName);
    of.serve();
    return nullptr;
  };
  for (pthread_t thread; missing > 0; --missing) {
    refused = pthread_create(&thread, &attributes, body, this);
    if (refused) break;
    threads.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace wi
