#include "src/engine/task.h"

#include <algorithm>
#include <cerrno>
#include <sys/eventfd.h>
#include <unistd.h>

#include "src/host_call.h"

namespace wi {
namespace {

bool is_end(int32_t state) { return state >= WI_TASK_DONE; }

uint64_t since(std::chrono::steady_clock::time_point start) {
  return static_cast<uint64_t>((std::chrono::steady_clock::now() - start).count());
}

}  // namespace

Task::Task(std::shared_ptr<Session> session, TaskParams params)
    : session_(std::move(session)), params_(std::move(params)), submitted_(std::chrono::steady_clock::now()) {
  info_.prompt_tokens = params_.tokens.size();
}

Task::~Task() {
  if (descriptor_ >= 0) close(descriptor_);
}

const std::vector<Event>& Task::poll(size_t most) {
  std::lock_guard lock(mutex_);
  const size_t count = std::min(most, unread());
  events_.reserve(count);  // before anything changes: what follows cannot fail
  fetched_.reserve(count);
  events_.clear();
  fetched_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (queue_.empty()) {
      fetched_.push_back(std::move(*last_));
      last_.reset();
      break;
    }
    fetched_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  for (const Stored& stored : fetched_) {
    events_.push_back(stored.event);
    events_.back().text = stored.text;
    events_.back().top = stored.top;
  }
  if (descriptor_ >= 0 && unread() == 0) {
    uint64_t count_of_eventfd;  // read it back to zero; nothing there is as good
    [[maybe_unused]] const ssize_t got = read(descriptor_, &count_of_eventfd, sizeof count_of_eventfd);
  }
  return events_;
}

bool Task::wait(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return unread() > 0 || is_end(info_.state); };
  if (timeout_ns < 0) {
    changed_.wait(lock, ready);
    return true;
  }
  // Longer than a century is for ever, and would overflow the clock.
  const int64_t most = std::chrono::nanoseconds(std::chrono::hours(24 * 365 * 100)).count();
  return changed_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, most)), ready);
}

int Task::file_descriptor() {
  std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) return descriptor_;
  const int made = eventfd(unread() > 0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (made < 0) throw_errno(WI_E_IO, "cannot make an event file descriptor", errno);
  return descriptor_ = made;
}

TaskInfo Task::info() const {
  std::lock_guard lock(mutex_);
  return info_;
}

void Task::abandon() {
  cancel();
  std::lock_guard lock(notify_mutex_);
  abandoned_ = true;
}

void Task::set_state(int32_t state) {
  std::lock_guard lock(mutex_);
  if (info_.state == WI_TASK_QUEUED) info_.queued_ns = since(submitted_);
  info_.state = state;
}

void Task::set_prompt(std::vector<int32_t> tokens) {
  std::lock_guard lock(mutex_);
  prompt_ = std::move(tokens);
  info_.prompt_tokens = prompt_.size();
}

void Task::add_prompt_done(uint64_t tokens) {
  std::lock_guard lock(mutex_);
  info_.prompt_done += tokens;
}

void Task::reserve_event() {
  std::lock_guard lock(mutex_);
  if (next_.empty()) next_.emplace_back();
}

void Task::emit(const Event& event) {
  {
    std::lock_guard lock(mutex_);
    if (next_.empty()) next_.emplace_back();
    next_.front() = stored(event);
    queue_.splice(queue_.end(), next_);
    count(event);
    tell();
  }
  notify();
}

void Task::end(int32_t state, const Event& last, wi_status status, const char* message) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (is_end(info_.state)) return;
    try {
      last_ = stored(last);
      count(last);
    } catch (const std::bad_alloc&) {  // for its text
      state = WI_TASK_FAILED;
      status = WI_E_MEMORY;
      message = "out of memory";  // short: it takes none
      last_.emplace();
      last_->event.kind = WI_EVENT_FAILED;
    }
    info_.state = state;
    info_.status = status;
    try {
      info_.message = message;
    } catch (const std::bad_alloc&) {  // the status says it too
    }
    tell();
  }
  notify();
}

Task::Stored Task::stored(const Event& event) {
  return {event, std::string(event.text), {event.top.begin(), event.top.end()}};
}

void Task::count(const Event& event) {
  if (event.token >= 0 && info_.answer_tokens++ == 0) info_.first_token_ns = since(submitted_);
}

bool Task::ended() const {
  std::lock_guard lock(mutex_);
  return is_end(info_.state);
}

void Task::notify() {
  if (!params_.notify) return;
  const HostCall host;
  std::lock_guard lock(notify_mutex_);
  if (!abandoned_) params_.notify(params_.notify_user);
}

void Task::tell() {
  changed_.notify_all();
  if (descriptor_ < 0) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(descriptor_, &one, sizeof one);  // full is readable too
}

}  // namespace wi
