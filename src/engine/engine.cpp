#include "src/engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "src/batch_error.h"
#include "src/engine/outcome.h"
#include "src/engine/scheduler.h"
#include "src/host_call.h"
#include "src/memory/breaks.h"
#include "src/memory_plan.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostBatch = 64;                // rows of a step
constexpr size_t kMostTexts = 66;                // at a time, each at most half as long as the one before
constexpr size_t kMostReading = 3;               // chunks at a time, each with a workspace of its own
constexpr size_t kShortText = size_t{64} << 10;  // bytes, tokenised in some 10 ms
// A chunk that is begun while a text is tokenised keeps that from going on until it is read, which may be much longer
// than most texts take.
constexpr std::chrono::nanoseconds kTextAlone = std::chrono::milliseconds(500);
constexpr std::chrono::milliseconds kMemoryPoll{10};
constexpr std::chrono::milliseconds kRoomPoll{1};  // where all that there is to do is to wait for it
constexpr uint64_t kUnboundedAnswer = 1024;        // tokens that an answer without a bound is planned with

// Of tasks: without a token.
Event event_of(int32_t kind) {
  Event event;
  event.kind = kind;
  return event;
}

uint64_t now_ns() { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); }

// Ends a chunk that another's was interrupted for, which is to end: it is read once more.
class MakeWay final : public std::exception {};

// What the thread works on. It outlives the engine if the engine goes on this very thread. Its lists have room
// for a task before they have the task: what is refused memory is one task, or its submission, and the loop itself
// goes on without any.
class Loop final : public Breaks, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(uint64_t wait_ns) : wait_ns_(wait_ns) {
    ids_.reserve(kMostBatch);
    step_.reserve(kMostBatch);
    sessions_.reserve(kMostBatch);
    waiting_.reserve(kMostBatch);
    events_.reserve(kMostBatch);
    reading_texts_.reserve(kMostTexts);
    reading_.reserve(kMostReading);
  }

  void run() {
    for (std::shared_ptr<Loop> self = shared_from_this(); wait_for_work();) {
      take_in();
      read_text(SIZE_MAX);
      write_step();
      read_chunk();
    }
  }
  void submit(std::shared_ptr<Task> task) {
    task->set_on_cancel(cancelled_some_);
    std::lock_guard lock(mutex_);
    incoming_.push_back(std::move(task));
    has_news_.store(true, std::memory_order_relaxed);
    wake_.notify_one();
  }
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    wake_.notify_one();
  }

 private:
  bool wait_for_work();
  void take_in();
  void take_in_cancelled();
  void read_text(size_t most_bytes);
  void pause_text();
  void prepare(const std::shared_ptr<Task>& task);
  // What running tasks may still come to hold.
  struct Claims {
    uint64_t fast_bytes = 0, slow_bytes = 0;
    uint64_t whole_bytes = 0;  // that they have, of what can leave the fast tier
    bool none = true;
    void add(const Session& session, const TierPlan& planned);
  };
  static bool fits(Task& task, const Claims& running);
  static bool fits(const Task& task, const TierPlan& plan, const Claims& running);
  void admit();
  void drop_cancelled();
  void cancel(const std::shared_ptr<Task>& task) noexcept {
    finish(task, WI_TASK_CANCELLED, event_of(WI_EVENT_CANCELLED), {WI_E_CANCELLED, "cancelled"});
  }
  void write_step();
  void write_batch(std::span<std::shared_ptr<Task>> batch);
  void decode(std::span<const std::shared_ptr<Task>> batch);
  void write_one(const std::shared_ptr<Task>& task);
  void sit_out(const std::shared_ptr<Task>& task);
  bool needs_end_of_chunk(const Outcome& outcome) const;
  void tell(const std::shared_ptr<Task>& task, const Event& event);
  void read_chunk();
  void charge_reader();
  bool is_reading(const Task& task) const;
  bool ends_below(size_t depth) const;
  void fail_task(const std::shared_ptr<Task>& task, const Outcome& outcome) noexcept;
  void finish(const std::shared_ptr<Task>& task, int32_t state, const Event& last,
              const Outcome& outcome) noexcept;

  // A prompt's chunk lets others through, and newcomers, and those that are to end at once.
  bool due() override {
    const bool alone = tasks_.size() == reading_.size() && texts_.empty() && reading_texts_.empty() &&
                       !has_news_.load(std::memory_order_relaxed);
    return cancelled_some_->load(std::memory_order_relaxed) || ends_below(reading_.size() - 1) ||
           (!alone && now_ns() - last_step_ns_ >= wait_ns_);
  }
  void take() override;

  const uint64_t wait_ns_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Task>> incoming_;
  bool stopped_ = false;
  std::atomic<bool> has_news_{false};
  // A task since the last look; the tasks' as well, which may live longer.
  const std::shared_ptr<std::atomic<bool>> cancelled_some_ = std::make_shared<std::atomic<bool>>(false);

  // The thread's own:
  Scheduler scheduler_;
  std::map<Scheduler::Id, std::shared_ptr<Task>> tasks_;
  Scheduler::Id next_id_ = 1;
  bool cancelled_left_ = false;  // some whose chunk is being read: it may be read before it hears of it
  // Of a step: its writers, those of a model side by side, and what a batch of them is called with.
  std::vector<Scheduler::Id> ids_;
  std::vector<std::shared_ptr<Task>> step_;
  std::vector<Session*> sessions_;
  std::vector<Event> events_;
  std::vector<Scheduler::Id> waiting_;  // of the step's writers, who have no room yet
  bool all_wait_ = false;
  uint64_t last_step_ns_ = 0;
  std::vector<std::shared_ptr<Task>> texts_;  // not tokenised yet, in order of submission
  // Whose texts are being tokenised: the first one's was interrupted for the second one's, which is at most
  // half as long, and so on.
  std::vector<std::shared_ptr<Task>> reading_texts_;
  uint64_t next_chunk_ns_ = 0;  // meanwhile, at the earliest
  // Whose chunks are being read: the first one's was interrupted for the second one's, and so on.
  std::vector<Scheduler::Id> reading_;
  uint64_t charged_until_ns_ = 0;  // the last one of these
};

class Engine final : public Runtime::Service {
 public:
  Engine(uint64_t wait_ns, const OwnThreads& own) : loop_(std::make_shared<Loop>(wait_ns)) {
    int refused = 0;
    thread_ = own.start("wi-engine", &refused, [loop = loop_] { loop->run(); });
    if (!thread_) throw_errno(WI_E_MEMORY, "the system refused a thread for the runtime's tasks", refused);
  }
  ~Engine() override {
    loop_->stop();
    // The last session of a runtime may go on the engine's own thread.
    thread_->get_id() == std::this_thread::get_id() ? thread_->detach() : thread_->join();
  }
  void submit(std::shared_ptr<Task> task) { loop_->submit(std::move(task)); }
  std::thread::id thread() const { return thread_->get_id(); }

 private:
  const std::shared_ptr<Loop> loop_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace

void submit_task(const std::shared_ptr<Task>& task) {
  Session& session = task->session();
  Runtime& runtime = session.runtime();
  Runtime::Service& service =
      runtime.service([&] { return std::make_unique<Engine>(runtime.task_wait_ns(), *runtime.own_threads); });
  auto& engine = static_cast<Engine&>(service);
  const bool has_prompt = !task->params().tokens.empty() || !task->params().text.empty();
  session.reserve_for(engine.thread(), has_prompt);
  try {
    engine.submit(task);
  } catch (...) {
    session.reserve_for({}, true);
    throw;
  }
}

namespace {

bool Loop::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto news = [&] { return stopped_ || !incoming_.empty(); };
  if (!texts_.empty()) return !stopped_;
  if (tasks_.empty()) {
    wake_.wait(lock, news);
  } else if (scheduler_.readers() + scheduler_.writers() == 0) {
    wake_.wait_for(lock, kMemoryPoll, news);  // the host's own sessions have the memory: until they let go
  } else if (all_wait_ && scheduler_.readers() == 0) {
    wake_.wait_for(lock, kRoomPoll, news);
  }
  return !stopped_;
}

// New tasks and cancelled ones: what may have changed since the last look.
void Loop::take_in() {
  std::vector<std::shared_ptr<Task>> arrived;
  {
    std::lock_guard lock(mutex_);
    arrived.swap(incoming_);
    has_news_.store(false, std::memory_order_relaxed);
  }
  // Before their own flags are looked at. What told of one that has just come may have been seen before it came.
  bool some = cancelled_some_->exchange(false, std::memory_order_acquire) || cancelled_left_;
  for (std::shared_ptr<Task>& task : arrived) {
    some = some || task->cancelled();
    task->id = next_id_++;
    if (task->params().text.empty()) {
      prepare(task);
      continue;
    }
    try {
      texts_.push_back(task);
    } catch (const std::bad_alloc&) {
      fail_task(task, {WI_E_MEMORY, "the system refused memory for a list of tasks"});
    }
  }
  if (some) drop_cancelled();
  admit();
}

// Those that are to end do so before it is anybody's turn.
void Loop::take_in_cancelled() {
  if (cancelled_some_->load(std::memory_order_relaxed)) take_in();
}

// Tokenises the first text that is not longer.
void Loop::read_text(size_t most_bytes) {
  const auto next = std::find_if(texts_.begin(), texts_.end(),
                                 [&](auto& task) { return task->params().text.size() <= most_bytes; });
  if (next == texts_.end()) return;
  if (reading_texts_.empty()) next_chunk_ns_ = now_ns() + static_cast<uint64_t>(kTextAlone.count());
  reading_texts_.push_back(*next);
  const std::shared_ptr<Task> task = std::move(*next);
  texts_.erase(next);

  const Outcome outcome = attempt([&] {
    const TaskParams& params = task->params();
    const std::shared_ptr<Session> session = task->session_ptr();  // the task may end meanwhile
    const Tokenizer* tokenizer = session->model().tokenizer.get();
    check(tokenizer != nullptr, WI_E_STATE, "model has no tokenizer");
    const std::function<void()> pause = [this] { pause_text(); };
    task->set_prompt(tokenizer->encode(params.text, params.tokenize_flags & WI_TOKENIZE_ADD_BOS,
                                       params.tokenize_flags & WI_TOKENIZE_PARSE_SPECIAL,
                                       flag_of(task->cancel_token()), &pause));
    check(!task->prompt().empty() || session->stats().tokens > 0, WI_E_STATE,
          "session is empty and the task's text has no tokens");
  });
  reading_texts_.pop_back();
  if (task->ended()) return;  // it was cancelled meanwhile
  if (outcome.status == WI_E_CANCELLED) return cancel(task);
  outcome.status == WI_OK ? prepare(task) : fail_task(task, outcome);
}

// Between two pieces of a text: the writers' next step, a much shorter text, and, of one that takes long, as much time
// for chunks of prompts as the text had.
void Loop::pause_text() {
  if (now_ns() - last_step_ns_ < wait_ns_) return take_in_cancelled();
  take_in();
  read_text(reading_texts_.back()->params().text.size() / 2);
  write_step();
  const uint64_t start = now_ns();
  if (start < next_chunk_ns_) return;
  read_chunk();
  const uint64_t end = now_ns();
  next_chunk_ns_ = end + (end - start);
}

// A task whose prompt is tokens now: into the queue, if it can ever fit.
void Loop::prepare(const std::shared_ptr<Task>& task) {
  const Outcome outcome = attempt([&] {
    if (task->params().text.empty()) task->set_prompt(task->params().tokens);
    const Session& session = task->session();
    const uint64_t answer = task->params().max_tokens ? task->params().max_tokens : kUnboundedAnswer;
    const uint64_t known = session.stats().tokens + task->prompt().size();
    const uint64_t tokens = known + std::min(answer, UINT64_MAX - known);
    const uint64_t planned_tokens = std::min<uint64_t>(tokens, INT32_MAX);
    if (session.has_slow_tier()) {
      const TierPlans tiers =
          plan_tiers(session.runtime(), session.model(), session.params(), planned_tokens);
      task->planned = tiers.most;
      task->least = tiers.least;
    } else if (session.stats().tokens == 0) {
      const wi_memory_plan plan =
          plan_memory(session.runtime(), session.model(), session.params(), planned_tokens);
      task->planned.fast_bytes = plan.kv_bytes + plan.index_bytes + plan.sealing_bytes;
      task->least = task->planned;
    } else {
      const TaskBytes bytes =
          plan_task(session, static_cast<int64_t>(task->prompt().size()),
                    static_cast<int64_t>(planned_tokens - std::min(planned_tokens, known)));
      // A unit in the making is not among what the session holds.
      task->planned.fast_bytes = session.mandatory_bytes() + bytes.most - bytes.now;
      task->least.fast_bytes = bytes.most;
    }
    const uint64_t budget = session.runtime().pool->budget();
    check(task->least.fast_bytes <= budget, WI_E_BUDGET, "the task may need ", task->least.fast_bytes,
          session.has_slow_tier() ? " bytes of fast memory for " : " bytes of KV for ", tokens,
          " tokens, the runtime's kv_budget_bytes is ", budget);
    if (!session.has_slow_tier()) task->least = task->planned;
    const EngineCall own;
    if (task->params().sampling) task->session().set_sampling(*task->params().sampling);
    tasks_.emplace(task->id, task);
    scheduler_.submit(task->id, task->params().priority, now_ns());
  });
  if (outcome.status != WI_OK) fail_task(task, outcome);
}

void Loop::drop_cancelled() {
  cancelled_left_ = false;
  for (auto at = tasks_.begin(); at != tasks_.end();) {
    const auto here = at++;
    if (!here->second->cancelled()) continue;
    const std::shared_ptr<Task> task = here->second;
    if (is_reading(*task))  // a chunk's own loops see that it is cancelled
      cancelled_left_ = true;
    else
      cancel(task);
  }
  for (const auto& task : reading_texts_)  // its own loop sees it too, when it goes on
    if (task->cancelled() && !task->ended()) cancel(task);
  std::erase_if(texts_, [&](const auto& task) {
    const bool gone = task->cancelled();
    if (gone) cancel(task);
    return gone;
  });
}

void Loop::Claims::add(const Session& session, const TierPlan& planned) {
  const auto less = [](uint64_t from, uint64_t bytes) { return from - std::min(from, bytes); };
  fast_bytes += less(planned.fast_bytes, session.mandatory_bytes());
  slow_bytes += less(planned.slow_bytes, session.stats().slow_bytes);
  if (session.has_slow_tier()) whole_bytes += session.residency().whole;
  none = false;
}

// With as much in the fast tier as it wants, once those that run beside it leave that; where there is none, with what
// idle sessions leave.
bool Loop::fits(Task& task, const Claims& running) {
  if (fits(task, task.planned, running)) return true;
  if (!running.none || !fits(task, task.least, running)) return false;
  task.planned = task.least;
  return true;
}

// What the runtime holds now, and what the running tasks and this one may still come to hold: in the fast tier, of what
// cannot be in a slow one, and in that, where what idle sessions have in the fast one goes as far as it has to.
bool Loop::fits(const Task& task, const TierPlan& plan, const Claims& running) {
  const Runtime& runtime = task.session().runtime();
  Claims all = running;
  all.add(task.session(), plan);
  const uint64_t budget = runtime.pool->budget();
  const uint64_t fast = all.fast_bytes + (runtime.buffer ? runtime.residency.mandatory_bytes(*runtime.buffer)
                                                         : runtime.pool->used());
  if (fast > budget) return false;
  const uint64_t able = runtime.buffer ? runtime.residency.leaving_bytes() : 0,
                 idle = able - std::min(able, all.whole_bytes),
                 leaving = fast + idle - std::min(fast + idle, budget);
  if (!plan.slow_bytes && !leaving) return true;
  return slow_tier_used(runtime) + all.slow_bytes + leaving <= slow_tier_room(runtime);
}

// Those that run do nothing meanwhile, so that what they claim is the same for all that wait.
void Loop::admit() {
  if (scheduler_.queued() == 0) return;
  Claims running;
  scheduler_.each_running([&](Scheduler::Id id) {
    const Task& task = *tasks_.at(id);
    running.add(task.session(), task.planned);
  });
  scheduler_.admit([&](Scheduler::Id id) { return fits(*tasks_.at(id), running); },
                   [&](Scheduler::Id id) {
                     Task& task = *tasks_.at(id);
                     running.add(task.session(), task.planned);
                     // The rest is for those that run beside it.
                     if (task.session().has_slow_tier()) task.session().limit_fast(task.planned.fast_bytes);
                     const bool reads = !task.prompt().empty();
                     task.set_state(reads ? WI_TASK_READING : WI_TASK_WRITING);
                     if (!reads) scheduler_.start_writing(id);
                   });
}

// One token for every writer, a batch for each model. Whoever has no room yet has had his turn, too: where they are more
// than a batch those who wait do not keep the others' places.
void Loop::write_step() {
  const uint64_t start = now_ns();
  scheduler_.next_batch(kMostBatch, &ids_);
  waiting_.clear();
  step_.clear();
  for (const Scheduler::Id id : ids_) step_.push_back(tasks_.at(id));
  const auto model_of = [](const std::shared_ptr<Task>& task) { return &task->session().model(); };
  for (auto first = step_.begin(); first != step_.end();) {
    const auto end = std::stable_partition(
        first, step_.end(),
        [model = model_of(*first), &model_of](auto& task) { return model_of(task) == model; });
    write_batch({first, end});
    first = end;
  }
  step_.clear();
  last_step_ns_ = now_ns();
  for (const Scheduler::Id id : waiting_) scheduler_.charge(id, (last_step_ns_ - start) / ids_.size());
  all_wait_ = !ids_.empty() && waiting_.size() == ids_.size();
}

// A batch fails as a whole and changes nothing. Then it goes on without the one that it fails for, who goes alone
// afterwards: the weights are read once for all others. A callback that has ended its session's step is not asked again:
// it may say otherwise then, and its host has heard.
void Loop::write_batch(std::span<std::shared_ptr<Task>> batch) {
  // What asks in vain once more does so before others have been asked.
  std::stable_partition(batch.begin(), batch.end(), [](const auto& task) { return task->waits; });
  size_t together = batch.size() > 1 ? batch.size() : 0;
  const auto take_out = [&](size_t place) -> std::shared_ptr<Task>& {
    --together;
    const auto out = batch.begin() + static_cast<std::ptrdiff_t>(place);
    std::rotate(out, out + 1, batch.begin() + static_cast<std::ptrdiff_t>(together) + 1);
    return batch[together];
  };
  uint64_t start = 0;
  while (together > 0) {
    start = now_ns();
    try {
      decode(batch.first(together));
      break;
    } catch (const NoRoomYet& error) {
      sit_out(std::exchange(take_out(error.place()), nullptr));
    } catch (const BatchError& error) {
      std::shared_ptr<Task>& failed = take_out(error.place());
      if (error.code() == WI_E_CANCELLED)
        fail_task(std::exchange(failed, nullptr), {error.code(), error.why().what()});
    } catch (const std::exception&) {
      together = 0;
    }
  }
  if (together > 0) {
    const uint64_t share = (now_ns() - start) / together;
    for (size_t i = 0; i < together; ++i) {
      scheduler_.charge(batch[i]->id, share);
      tell(batch[i], events_[i]);
    }
  }
  for (const auto& task : batch.subspan(together))
    if (task) write_one(task);
}

void Loop::decode(std::span<const std::shared_ptr<Task>> batch) {
  sessions_.clear();
  for (const auto& task : batch) sessions_.push_back(&task->session());
  events_.assign(batch.size(), Event{});
  for (const auto& task : batch) task->reserve_event();
  const EngineCall own;
  Session::decode_batch(sessions_, nullptr, events_.data());
}

void Loop::write_one(const std::shared_ptr<Task>& task) {
  const uint64_t start = now_ns();
  const Outcome outcome = attempt([&] {
    task->reserve_event();
    Event event;
    try {
      const EngineCall own;
      event = task->session().decode(nullptr);
    } catch (const NoRoomYet&) {
      return sit_out(task);
    }
    scheduler_.charge(task->id, now_ns() - start);
    tell(task, event);
  });
  if (outcome.status == WI_OK) return;
  needs_end_of_chunk(outcome) ? sit_out(task) : fail_task(task, outcome);
}

void Loop::sit_out(const std::shared_ptr<Task>& task) {
  task->waits = true;
  waiting_.push_back(task->id);
}

// In the middle of a chunk, what leaves the fast tier leaves it when that ends, and then there is another try.
bool Loop::needs_end_of_chunk(const Outcome& outcome) const {
  return outcome.status == WI_E_BUDGET && !reading_.empty();
}

void Loop::tell(const std::shared_ptr<Task>& task, const Event& event) {
  task->waits = false;
  try {
    if (event.kind != WI_EVENT_TOKEN) {  // its text is the session's, which is the host's again in a moment
      const std::string text(event.text);
      const std::vector<wi_token_logprob> top(event.top.begin(), event.top.end());
      Event last = event;
      last.text = text;
      last.top = top;
      return finish(task, WI_TASK_DONE, last, {});
    }
    task->emit(event);
  } catch (const std::bad_alloc&) {
    return fail_task(task, {WI_E_MEMORY, "the system refused memory for an event"});
  }
  const uint64_t most = task->params().max_tokens;
  if (most && task->info().answer_tokens >= most) finish(task, WI_TASK_DONE, event_of(WI_EVENT_LIMIT), {});
}

// The next chunk of the reader that is furthest behind, unless that is one whose chunk is being read.
void Loop::read_chunk() {
  if (reading_.size() == kMostReading || ends_below(reading_.size())) return;
  const auto may = [&](Scheduler::Id id) {
    return std::find(reading_.begin(), reading_.end(), id) == reading_.end() || id == reading_.back();
  };
  const Scheduler::Id id = scheduler_.next_reader(may);
  if (!id || (!reading_.empty() && id == reading_.back())) return;
  const std::shared_ptr<Task> task = tasks_.at(id);
  const std::vector<int32_t>& prompt = task->prompt();
  const size_t done = static_cast<size_t>(task->info().prompt_done);
  PrefillParams params;
  params.breaks = this;
  int64_t count = 0;
  bool made_way = false;

  reading_.push_back(id);
  charged_until_ns_ = now_ns();
  const Outcome outcome = attempt([&] {
    const std::span<const int32_t> left{prompt.data() + done, prompt.size() - done};
    const EngineCall own;
    try {
      count = task->session().prefill_chunk_of(left, params, task->cancel_token());
    } catch (const MakeWay&) {
      made_way = true;
    }
  });
  charge_reader();
  reading_.pop_back();

  if (made_way) return;
  if (outcome.status == WI_E_CANCELLED) return cancel(task);
  if (outcome.status != WI_OK) {
    if (!needs_end_of_chunk(outcome)) fail_task(task, outcome);
    return;
  }
  task->add_prompt_done(static_cast<uint64_t>(count));
  if (done + static_cast<size_t>(count) < prompt.size()) return;
  task->set_state(WI_TASK_WRITING);
  scheduler_.start_writing(id);
}

// The time since the last time that is not others' (take() sets the clock forward for theirs).
void Loop::charge_reader() {
  const uint64_t now = now_ns();
  scheduler_.charge(reading_.back(), now - charged_until_ns_);
  charged_until_ns_ = now;
}

bool Loop::is_reading(const Task& task) const {
  return std::find(reading_.begin(), reading_.end(), task.id) != reading_.end();
}

// Whether one of the first so many whose chunks are being read is cancelled: it ends when those after it have.
bool Loop::ends_below(size_t depth) const {
  return std::any_of(reading_.begin(), reading_.begin() + static_cast<std::ptrdiff_t>(depth),
                     [&](Scheduler::Id id) { return tasks_.at(id)->cancelled(); });
}

// Between two tasks of a chunk's loops: a short text, the writers' next step, and a chunk of a reader that has
// had less.
void Loop::take() {
  if (ends_below(reading_.size() - 1)) throw MakeWay();
  if (now_ns() - last_step_ns_ < wait_ns_) return take_in_cancelled();
  charge_reader();
  take_in();
  read_text(std::min(kShortText,
                     reading_texts_.empty() ? SIZE_MAX : reading_texts_.back()->params().text.size() / 2));
  write_step();
  read_chunk();
  charged_until_ns_ = now_ns();
}

void Loop::fail_task(const std::shared_ptr<Task>& task, const Outcome& outcome) noexcept {
  finish(task, WI_TASK_FAILED, event_of(WI_EVENT_FAILED), outcome);
}

// The session is free, or gone if the host has let go of it, before the host hears of the end.
void Loop::finish(const std::shared_ptr<Task>& task, int32_t state, const Event& last,
                  const Outcome& outcome) noexcept {
  scheduler_.remove(task->id);
  tasks_.erase(task->id);
  task->session().reserve_for({}, true);
  task->release_session();
  task->end(state, last, outcome);
}

}  // namespace
}  // namespace wi
