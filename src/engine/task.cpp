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
    : session_(std::move(session)),
      params_(std::move(params)),
      submitted_(std::chrono::steady_clock::now()),
      oldest_(&stored_.emplace_back()),
      newest_(oldest_),
      last_(&stored_.emplace_back()),
      read_(oldest_) {
  info_.prompt_tokens = params_.tokens.size();
}

Task::~Task() {
  if (const int descriptor = descriptor_; descriptor >= 0) close(descriptor);
}

bool Task::wait(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return has_events() || is_end(info_.state); };
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
  const int made = eventfd(has_events(), EFD_NONBLOCK | EFD_CLOEXEC);
  if (made < 0) throw_errno(WI_E_IO, "cannot make an event file descriptor", errno);
  descriptor_ = made;
  return made;
}

// When a poll has taken what there was. What the engine adds meanwhile it also rings for, but that may be what was just
// read.
void Task::calm_descriptor() noexcept {
  const int descriptor = descriptor_;
  if (descriptor < 0 || has_events()) return;
  uint64_t rings;  // none is as good
  [[maybe_unused]] const ssize_t got = read(descriptor, &rings, sizeof rings);
  if (has_events()) ring(descriptor);
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
  if (spare_) return;
  if (oldest_index_ == returned_.load(std::memory_order_acquire)) {
    spare_ = &stored_.emplace_back();
    return;
  }
  spare_ = oldest_;
  oldest_ = oldest_->next;
  ++oldest_index_;
}

void Task::emit(const Event& event) {
  reserve_event();
  store(event, spare_);
  {
    std::lock_guard lock(mutex_);
    append(std::exchange(spare_, nullptr));
  }
  tell();
}

void Task::end(int32_t state, const Event& last, const Outcome& outcome) noexcept {
  if (ended()) return;
  try {
    store(last, last_);
  } catch (const std::bad_alloc&) {  // for its text
    last_->event = {};
    last_->event.kind = WI_EVENT_FAILED;
    return end_with_last(WI_TASK_FAILED, {WI_E_MEMORY, "no memory left"});  // short: it takes none
  }
  end_with_last(state, outcome);
}

void Task::end_with_last(int32_t state, const Outcome& outcome) noexcept {
  {
    std::lock_guard lock(mutex_);
    info_.state = state;
    info_.status = outcome.status;
    info_.native_code = outcome.native_code;
    try {
      info_.message = outcome.message.data();
    } catch (const std::bad_alloc&) {  // the status says it too
    }
    append(last_);
  }
  tell();
}

void Task::store(const Event& event, Stored* to) {
  to->text.assign(event.text);
  to->top.assign(event.top.begin(), event.top.end());
  to->event = event;
  to->event.text = to->text;
  to->event.top = to->top;
}

void Task::append(Stored* stored) {
  if (stored->event.token >= 0 && info_.answer_tokens++ == 0) info_.first_token_ns = since(submitted_);
  newest_->next = stored;
  newest_ = stored;
  emitted_.fetch_add(1, std::memory_order_release);
}

bool Task::ended() const {
  std::lock_guard lock(mutex_);
  return is_end(info_.state);
}

void Task::tell() noexcept {
  if (const int descriptor = descriptor_; descriptor >= 0) ring(descriptor);
  changed_.notify_all();
  notify();
}

void Task::ring(int descriptor) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(descriptor, &one, sizeof one);  // full is readable too
}

void Task::notify() {
  if (!params_.notify) return;
  const HostCall host;
  std::lock_guard lock(notify_mutex_);
  if (!abandoned_) params_.notify(params_.notify_user);
}

}  // namespace wi
