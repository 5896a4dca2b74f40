// What sessions hold in the fast tier, and what they may: their parts of it are elastic (SPIN §5.3). While all
// sealed keys and values fit, nothing moves. Where they do not, what the mandatory part leaves (indexes, recent
// tokens, segments in the making) is divided in proportion to them, and a session that needs room takes it from
// those that hold more than their part: frames first, then their oldest segments. No token depends on any of that.
//
// Locks, in this order: this one's, then those of WaveBuffer, PageCache and Epochs. While it is held nobody writes
// to the slow tier, waits for a step, or frees a segment.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "src/buffer/wave_buffer.h"
#include "src/memory/host_pool.h"
#include "src/store/segment.h"

namespace wi {

// Of one session, in bytes.
struct Demand {
  uint64_t kv = 0;  // sealed keys and values, in frames where they are slow; of what n sessions share, an nth
  uint64_t floor = 0;  // what a step looks up of them
  uint64_t most = 0;   // of them that the session's own limits allow
};
// Each one's part of `room`: in proportion to kv, at least the floor, at most what is allowed; what one may not
// have is the others'. Where there is less room than all floors, in proportion to those.
void divide(uint64_t room, std::span<const Demand> demands, std::span<uint64_t> parts);

// Thread-safe.
class Residency {
  struct Holding;
  class Waiting;

 public:
  using Segments = std::span<const std::shared_ptr<const Segment>>;
  using Poll = std::function<void()>;  // throws to give up; any thread

  explicit Residency(std::shared_ptr<HostPool> pool) : pool_(std::move(pool)) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // A session's calls that do not wait, since others want their thread: one that finds no room leaves that to the next.
  // What has to leave for them does so beside whatever is done meanwhile.
  struct Tries {
    bool go_on = false;  // out: there is no room yet, and some is on its way

   private:
    friend class Residency;
    bool begun = false;
    std::chrono::steady_clock::duration waited{};  // as Patience has it, over all of them
    std::chrono::steady_clock::time_point last{};
    bool waits = false;          // since then
    uint64_t refusals = 0;       // of the slow tier's when they began
    std::exception_ptr refused;  // one since
  };
  // How long a session waits for room.
  struct Patience {
    bool may_wait = true;  // for steps of others to end: this thread is in the middle of none
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();  // that its call waits
    // Called meanwhile, and while segments leave, on this thread, which holds nothing then; throws to give up. Null:
    // nobody wants a turn.
    const Poll* pause = nullptr;
    Tries* tries = nullptr;  // null: it waits in this call
  };
  // What a session tells between two steps.
  struct Wish {
    Segments segments;            // in order
    uint64_t floor = 0;           // what a step looks up of them
    uint64_t most = UINT64_MAX;   // that the session's own limits allow of them and of frames
    uint64_t limit = UINT64_MAX;  // that its budget does: what is to leave beside steps has to have left
    uint64_t share = UINT64_MAX;  // that its share does: what leaves at once for it has to leave
    uint64_t cached = 0;          // of what is pinned and does not fit, in frames
    uint64_t coming = 0;          // that it may allocate until it says so again
    bool at_once = false;         // what of its own leaves does so before the next step, not beside it
    Patience patience;
  };
  // How a session stands.
  struct Part {
    uint64_t kv = 0, floor = 0, part = 0;  // as in Demand; by the last division
    uint64_t whole = 0, frames = 0;        // that it has: of segments in the fast tier, and of frames at most
  };

  // A session, from its making to its end.
  class Member {
   public:
    Member(Residency& residency, std::shared_ptr<WaveBuffer> buffer, size_t page_bytes);
    ~Member();  // what it had is the others'
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Gives the session its part, and makes room for what is coming; no reading of the session's lives. False:
    // there is none, with all that may leave gone, or what is leaving takes its time. refused: why the slow tier
    // did not take what was to leave, which then stays where it is; null: it did. That is thrown only where the
    // session's share of the fast tier does not hold what stays. Throws what poll does.
    bool make_room(const Wish& wish, const Poll& poll, std::exception_ptr& refused) {
      return residency_.make_room(*this, wish, poll, refused);
    }
    // Of what was coming, so much is left.
    void still_coming(uint64_t bytes) noexcept;
    // The end of a call: nothing is coming, and these are its segments.
    void rest(Segments segments) noexcept;
    Part part() const;
    // What cannot leave the fast tier, whoever has it, with what is coming.
    uint64_t needed_bytes() const;

   private:
    friend class Residency;
    Residency& residency_;
    const std::shared_ptr<WaveBuffer> buffer_;
    uint64_t number_ = 0;             // of its making
    std::vector<Holding*> holdings_;  // in order
    WaveBuffer::Share frames_;
    bool has_ = false, changed_ = false, moved_ = false;  // in the residency's lists of these names
    uint64_t floor_ = 0, most_ = UINT64_MAX, cached_ = 0, coming_ = 0;  // as wished
    std::thread::id caller_;           // who has wished it, and of a batch the same for all of it
    bool waits_ = false;               // for others' claims
    uint64_t all_ = 0, all_fast_ = 0;  // bytes of its segments, shared ones whole; of those that stay fast
    uint64_t kv_ = 0;                  // of all, its part where they are shared
    uint64_t whole_ = 0;               // of these, its part where they are shared
    Demand demand_;
    uint64_t part_ = 0;
  };

  // What of the budget cannot leave the fast tier, whoever has it.
  uint64_t mandatory_bytes(const WaveBuffer& buffer) const;
  uint64_t leaving_bytes() const;  // of whole segments that can, and then need room in the slow one

 private:
  // A segment, while members have it.
  struct Holding {
    std::weak_ptr<const Segment> segment;
    uint64_t id = 0, bytes = 0, holders = 0;
    bool fast = true;
    bool leaving = false;      // somebody has undertaken to demote it
    bool queued = false;       // and that is the manager
    Member* holder = nullptr;  // of one with one holder, unless all_changed_
  };
  using Chosen = std::vector<std::shared_ptr<const Segment>>;
  struct Changes;
  struct CatchingUp;

  bool make_room(Member& self, const Wish& wish, const Poll& poll, std::exception_ptr& refused);
  void carry_out(Changes& changes, WaveBuffer& buffer, const Poll& poll, const Patience& patience,
                 std::exception_ptr& refused);
  void demote_now(Chosen& segments, WaveBuffer& buffer, const Poll& poll, const Poll& between,
                  std::exception_ptr& refused);
  bool demote_later(const std::shared_ptr<const Segment>& segment, WaveBuffer& buffer);
  void settle(const Segment& segment) noexcept;  // somebody's undertaking has ended
  bool queue(const Segment& segment) noexcept;   // false: it is
  void note_refusal() noexcept;

  // With mutex_ held:
  void declare(Member& self, const Wish& wish);
  uint64_t take_now(Changes& changes, uint64_t on_its_way);
  void hold(Member& member, Segments segments);
  void release(Holding& holding) noexcept;
  void change(Member& member) noexcept;
  void change(const Holding& holding) noexcept;
  void recount() noexcept;
  void recount(Member& member) noexcept;
  void list(Member& member) noexcept;
  std::vector<Member*>::iterator place_of(const Member& member) noexcept;
  void set_coming(Member& member, uint64_t bytes) noexcept;
  void set_frames(Member& member, uint64_t bytes);
  uint64_t divide_room(const WaveBufferMemory& buffers);
  void keep_part(Member& self, bool missing, Chosen& chosen);
  void keep_what_stays(Member& self);
  static void await_leaving(const Member& self, uint64_t limit, Chosen& chosen);
  static uint64_t most_in_frames(const Member& member);
  void keep_pinned_part(Member& self, Chosen& chosen);
  void keep_frames(Member& self, uint64_t frames, uint64_t all, uint64_t least_change);
  void take_from(Member& other, bool refused, Chosen& chosen);
  bool others_go_on() const;
  static uint64_t slow_room(const Member& member);
  void cut_frames(uint64_t bytes);
  std::exception_ptr refused_since(Tries& tries) const;
  void expect_pinned(const Member& member, uint64_t used) const;
  template <class Enough>
  void choose(Member& from, Chosen& chosen, Enough&& enough);

  const std::shared_ptr<HostPool> pool_;
  mutable std::mutex mutex_;
  // What a step costs does not depend on how many sessions there are, but where the room is divided anew: those that
  // have nothing want nothing, and what the others come to is kept in sums.
  uint64_t members_ = 0, made_ = 0;             // that there are; ever
  std::vector<Member*> having_;                 // with segments or frames, in order of their making
  std::vector<Member*> claiming_;               // for whom something is coming
  std::unordered_map<uint64_t, Holding> held_;  // by id
  uint64_t fast_ = 0;                           // bytes of these in the fast tier, once each
  std::vector<Member*> changed_;                // what they have, since recount()
  std::vector<Member*> moved_;                  // what they demand, since the last division
  bool all_changed_ = false;                    // or something that several have
  uint64_t coming_ = 0, whole_ = 0, frames_ = 0, most_ = 0;  // of all members; most_: that they demand
  // Of the last division: whether it gave all what they demand, and otherwise of what; since then one has gone.
  bool fitted_ = true, left_ = false;
  uint64_t room_ = 0;
  std::vector<Demand> demands_;  // (having_) scratch, as parts_
  std::vector<uint64_t> parts_;
  uint64_t refusals_ = 0;  // by the slow tier of what was to leave beside steps; the last one:
  std::exception_ptr refusal_;
};

}  // namespace wi
