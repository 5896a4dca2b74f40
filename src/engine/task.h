// One request that the engine works on, as its host sees it: a state, and events that wait to be fetched. The
// engine's thread writes, any thread of the host reads. Events go through a queue of one writer and one reader, so that
// a poll takes no lock of the engine's: the host that is woken may have just taken its processor, whatever that held.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/outcome.h"
#include "src/memory_plan.h"
#include "src/session.h"

namespace wi {

struct TaskParams {
  std::vector<int32_t> tokens;  // appended to the session first; may be empty
  std::string text;             // instead of tokens: tokenised by the engine
  uint32_t tokenize_flags = 0;
  std::optional<SamplingParams> sampling;  // none: the session's
  int32_t priority = 0;
  uint64_t max_tokens = 0;  // of the answer; 0: as many as come
  void (*notify)(void* user) = nullptr;
  void* notify_user = nullptr;
};

struct TaskInfo {
  int32_t state = WI_TASK_QUEUED;
  wi_status status = WI_OK;  // of a failed or cancelled task
  std::string message;
  int64_t native_code = 0;
  uint64_t prompt_tokens = 0, prompt_done = 0, answer_tokens = 0;
  uint64_t queued_ns = 0, first_token_ns = 0;  // since submission
};

class Task {
 public:
  Task(std::shared_ptr<Session> session, TaskParams params);
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // ---- the host's side ----
  // Takes up to `most` events from the front and hands them to give(place, event). Their texts are valid until the next
  // call. Returns how many there were. Threads of the host's that poll at once get each event once.
  template <class Give>
  size_t poll(size_t most, Give&& give) {
    const std::lock_guard lock(polling_);
    const uint64_t taken = taken_.load(std::memory_order_relaxed);
    returned_.store(taken, std::memory_order_release);
    const auto count =
        static_cast<size_t>(std::min<uint64_t>(most, emitted_.load(std::memory_order_acquire) - taken));
    for (size_t i = 0; i < count; ++i) {
      read_ = read_->next;
      give(i, std::as_const(read_->event));
    }
    taken_.store(taken + count, std::memory_order_relaxed);
    calm_descriptor();
    return count;
  }
  // Until there are events or the task has ended, at most so long (negative: for ever). False: neither.
  bool wait(int64_t timeout_ns);
  // Readable while there are events, and once afterwards where an event was taken before the engine wrote there: until
  // the next poll. Made at the first call, closed with the task.
  int file_descriptor();
  void cancel() {
    cancel_.flag.store(true, std::memory_order_relaxed);
    if (cancelled_some_) cancelled_some_->store(true, std::memory_order_release);
  }
  TaskInfo info() const;
  void abandon();  // cancels; nobody is notified any more
  // While it lives nobody is notified: what the host calls then is to have the task's handle.
  std::unique_lock<std::recursive_mutex> hold_notify() { return std::unique_lock(notify_mutex_); }

  // ---- the engine's side ----
  // What cancel() sets, too: that some task was cancelled. Before it is submitted.
  void set_on_cancel(std::shared_ptr<std::atomic<bool>> flag) { cancelled_some_ = std::move(flag); }
  const TaskParams& params() const { return params_; }
  // Of a task that has not ended.
  Session& session() const { return *session_; }
  const std::shared_ptr<Session>& session_ptr() const { return session_; }
  // A task that has ended keeps no session, whose memory others may wait for, alive.
  void release_session() { session_.reset(); }
  const CancelToken* cancel_token() const { return &cancel_; }
  bool cancelled() const { return cancel_.flag.load(std::memory_order_relaxed); }
  void set_state(int32_t state);
  const std::vector<int32_t>& prompt() const { return prompt_; }
  void set_prompt(std::vector<int32_t> tokens);
  void add_prompt_done(uint64_t tokens);
  // Room for one more event, so that the next emit() of an event without text cannot fail.
  void reserve_event();
  void emit(const Event& event);
  // Ends the task with its last event: whoever sees the one sees the other.
  void end(int32_t state, const Event& last, const Outcome& outcome) noexcept;
  bool ended() const;

  uint64_t id = 0;     // the scheduler's
  bool waits = false;  // sat out the last step, for want of room
  // What the session may come to hold. least: with as little in the fast tier as it can go on with.
  TierPlan planned, least;

 private:
  struct Stored {
    Event event;  // with views of these:
    std::string text;
    std::vector<wi_token_logprob> top;
    Stored* next = nullptr;
  };
  bool has_events() const {
    return emitted_.load(std::memory_order_acquire) != taken_.load(std::memory_order_relaxed);
  }
  void end_with_last(int32_t state, const Outcome& outcome) noexcept;
  static void store(const Event& event, Stored* to);
  void append(Stored* stored);  // with the lock held
  void tell() noexcept;         // whoever waits; without it, as the next three
  void ring(int descriptor) noexcept;
  void calm_descriptor() noexcept;
  void notify();

  std::shared_ptr<Session> session_;  // the engine's thread's, once it is submitted
  const TaskParams params_;
  std::vector<int32_t> prompt_;  // as it is read
  const std::chrono::steady_clock::time_point submitted_;
  CancelToken cancel_;
  std::shared_ptr<std::atomic<bool>> cancelled_some_;

  // Held while the host is notified. A callback may release its own task.
  std::recursive_mutex notify_mutex_;
  bool abandoned_ = false;

  // The queue is a chain: what was given back, what the last poll gave (of which the last one stays for its `next`),
  // and what waits. Indexes count from 0, of a first one that is no event.
  std::deque<Stored> stored_;  // all there are, in no order
  // The engine's:
  Stored* oldest_;
  uint64_t oldest_index_ = 0;
  Stored* newest_;
  Stored* spare_ = nullptr;  // room for one more
  Stored* const last_;       // the last event's, which takes no memory: a task never ends without it
  // The host's:
  std::mutex polling_;
  Stored* read_;
  // Both sides':
  std::atomic<uint64_t> emitted_{0}, taken_{0};  // events
  std::atomic<uint64_t> returned_{0};            // index of the first that the host may still look at
  std::atomic<int> descriptor_{-1};

  // Of what follows and of emitted_: who sees the last event sees the state, and the other way round.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  TaskInfo info_;
};

}  // namespace wi
