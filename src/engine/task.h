// One request that the engine works on, as its host sees it: a state, and events that wait to be fetched. The
// engine's thread writes, any thread of the host reads; neither waits for more than a copy of an event.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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
  wi_status status = WI_OK;  // of a failed task
  std::string message;
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
  // Takes up to `most` events from the front. They and their texts are valid until the next call.
  const std::vector<Event>& poll(size_t most);
  // Until there are events or the task has ended, at most so long (negative: for ever). False: neither.
  bool wait(int64_t timeout_ns);
  int file_descriptor();  // readable while there are events; made at the first call, closed with the task
  void cancel() { cancel_.flag.store(true, std::memory_order_relaxed); }
  TaskInfo info() const;
  void abandon();  // cancels; nobody is notified any more
  // While it lives nobody is notified: what the host calls then is to have the task's handle.
  std::unique_lock<std::recursive_mutex> hold_notify() { return std::unique_lock(notify_mutex_); }

  // ---- the engine's side ----
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
  void end(int32_t state, const Event& last, wi_status status, const char* message) noexcept;
  bool ended() const;

  uint64_t id = 0;  // the scheduler's
  // What the session may come to hold. least: with as little in the fast tier as it can go on with.
  TierPlan planned, least;

 private:
  struct Stored {
    Event event;
    std::string text;
    std::vector<wi_token_logprob> top;
  };
  size_t unread() const {
    return queue_.size() + last_.has_value();
  }  // with the lock held, as the next three
  void count(const Event& event);
  static Stored stored(const Event& event);
  void tell();    // whoever waits
  void notify();  // without the lock

  std::shared_ptr<Session> session_;  // the engine's thread's, once it is submitted
  const TaskParams params_;
  std::vector<int32_t> prompt_;  // as it is read
  const std::chrono::steady_clock::time_point submitted_;
  CancelToken cancel_;

  // Held while the host is notified. A callback may release its own task.
  std::recursive_mutex notify_mutex_;
  bool abandoned_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  TaskInfo info_;
  std::list<Stored> queue_, next_;  // next_: room for one more
  std::optional<Stored> last_;      // comes behind these, and takes no memory: a task never ends without it
  std::vector<Stored> fetched_;     // what the last poll gave
  std::vector<Event> events_;       // views of it
  int descriptor_ = -1;
};

}  // namespace wi
