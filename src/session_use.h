// The right to be inside sessions, and statistics that follow what was done there; a second thread is told so
// instead of racing.
#pragma once

#include <optional>
#include <span>

#include "src/batch_error.h"
#include "src/host_call.h"
#include "src/memory/breaks.h"
#include "src/session.h"

namespace wi {

class Session::Use {
 public:
  // batch: a message says which session it is about.
  explicit Use(std::span<Session* const> sessions, bool batch = false) : Use(sessions, batch, true) {}
  // For what may take as long as a disk or a host does: others' keys and values may leave meanwhile, and these.
  static Use without_reading(std::span<Session* const> sessions) { return Use(sessions, false, false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    stop_reading();
    leave();
  }

  // Between two steps of a long call: what no step needs may leave the fast tier, to make room for so many
  // tokens more. breaks: of the call that waits for it; null: there are none. A step of the engine's does not wait: it
  // throws NoRoomYet.
  void rest(int64_t coming_tokens, SealWhen when, const CancelToken* cancel, Breaks* breaks = nullptr) {
    const Residency::Poll pause = pause_for(breaks);
    between([&](bool may_wait) {
      // All of a batch wait no longer than one of them may.
      Residency::Patience patience;
      patience.may_wait = may_wait;
      patience.pause = breaks ? &pause : nullptr;
      const bool tries = EngineCall::here() && when == SealWhen::decoding;
      place_ = 0;
      for (Session* session : sessions_) {
        const bool comes = when == SealWhen::prefilling || session->pending();
        patience.tries = tries ? &session->tries_ : nullptr;
        try {
          if (comes) session->make_room(session->sequence_, coming_tokens, when, patience, flag_of(cancel));
        } catch (const NoRoomYet&) {
          throw NoRoomYet(place_);
        } catch (const Error& error) {
          if (!batch_) throw;
          throw BatchError(place_, error);
        }
        ++place_;
      }
    });
  }
  // Work during which the sessions' keys and values are not being read. may_wait: nor are any by this thread,
  // which may be inside sessions twice (src/memory/breaks.h).
  template <class Work>
  void between(Work&& work) {
    if (!sessions_[0]->runtime_->buffer) return;
    stop_reading();
    work(reading_here_ == 0);
    begin_reading();
  }
  // While this call reads nothing, and waits. breaks: as in rest().
  static Residency::Poll pause_for(Breaks* breaks) {
    return [breaks] {
      const Middle of_this_call;
      breaks->take();
    };
  }
  static bool reading_here() { return reading_here_ > 0; }

  void begin_reading() {
    reading_.emplace(sessions_[0]->runtime_->buffer.get());
    ++reading_here_;
    for (Session* session : sessions_) session->sequence_.refresh(&session->reading_views_);
  }

 private:
  // What comes between does not wait for others itself.
  struct Middle {
    Middle() { ++reading_here_; }
    ~Middle() { --reading_here_; }
  };
  Use(std::span<Session* const> sessions, bool batch, bool reads) : sessions_(sessions), batch_(batch) {
    for (Session* session : sessions_) {
      refuse_unless_free(*session);
      while (session->busy_.exchange(true, std::memory_order_acquire)) {
        // Its owner may meet somebody who is about to be refused.
        if (!EngineCall::here() ||
            session->owner_.load(std::memory_order_relaxed) != std::this_thread::get_id())
          refuse("session is in use by another thread");
        std::this_thread::yield();
      }
      ++entered_;
      refuse_unless_free(*session);  // it may have been reserved meanwhile
      ++place_;
    }
    if (sessions_.empty() || !reads) return;
    try {
      begin_reading();
    } catch (...) {
      stop_reading();
      leave();
      throw;
    }
  }
  void refuse_unless_free(const Session& session) {
    const std::thread::id owner = session.owner_.load(std::memory_order_relaxed);
    if (owner == std::thread::id() || (EngineCall::here() && owner == std::this_thread::get_id())) return;
    refuse("session is in use by a task");
  }
  [[noreturn]] void refuse(const char* reason) {
    const size_t refused = place_;
    leave();
    const Error busy(WI_E_BUSY, reason);
    if (batch_) throw BatchError(refused, busy);
    throw busy;
  }
  void stop_reading() noexcept {
    for (Session* session : sessions_.first(entered_)) session->reading_views_.end();
    if (!reading_) return;
    reading_.reset();
    --reading_here_;
  }
  void leave() {
    for (Session* session : sessions_.first(entered_)) {
      session->rest();
      session->publish_stats();
      session->busy_.store(false, std::memory_order_release);
    }
  }
  std::span<Session* const> sessions_;
  const bool batch_;
  size_t entered_ = 0, place_ = 0;
  std::optional<WaveBuffer::Reading> reading_;
  static inline thread_local int reading_here_ = 0;
};

}  // namespace wi
