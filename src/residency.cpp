#include "src/residency.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <tuple>
#include <utility>

#include "src/error.h"
#include "src/memory/beside.h"
#include "src/memory/less.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

// What has left comes back when the steps have ended that may be looking at it: a decode step soon, a chunk of a
// long prompt later. Nobody waits for ever, since nobody knows what the others' threads wait for.
constexpr std::chrono::milliseconds kMostWait{10'000}, kPatience{20}, kOthersClaims{200};
constexpr std::chrono::microseconds kPause{500};

// Whole segments are for what has just been sealed; what queries want is better had in frames.
constexpr uint64_t kWholeShare = 16;

constexpr uint64_t kSlack = 64;  // of the room, one part

uint64_t scaled(uint64_t bytes, uint64_t part, uint64_t of) {
  if (part >= of) return bytes;
  return static_cast<uint64_t>(static_cast<double>(bytes) * static_cast<double>(part) /
                               static_cast<double>(of));
}

// What ends the writing of a segment that nobody else has any more.
struct Unwanted {};

void check_wanted(const std::shared_ptr<const Segment>& segment) {
  if (segment.use_count() == 1) throw Unwanted{};
}

template <class T>
void make_room_in(std::vector<T>& list, size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

uint64_t mandatory_of(const HostPool& pool, uint64_t fast, const WaveBufferMemory& buffers) {
  return less(pool.used(), fast + buffers.frames + buffers.retired);
}

}  // namespace

void divide(uint64_t room, std::span<const Demand> demands, std::span<uint64_t> parts) {
  uint64_t floors = 0, most = 0;
  for (const Demand& of : demands) {
    floors += std::min(of.floor, of.most);
    most += of.most;
  }
  double low = 0, high = 1;
  const auto part = [&](const Demand& of, double share) {
    const uint64_t wanted = static_cast<uint64_t>(share * static_cast<double>(of.kv));
    return std::min(std::max(wanted, of.floor), of.most);
  };
  if (most > room && floors <= room) {
    for (int i = 0; i < 52; ++i) {
      const double middle = (low + high) / 2;
      uint64_t sum = 0;
      for (const Demand& of : demands) sum += part(of, middle);
      (sum <= room ? low : high) = middle;
    }
  }
  for (size_t i = 0; i < demands.size(); ++i) {
    const Demand& of = demands[i];
    parts[i] = most <= room     ? of.most
               : floors <= room ? part(of, low)
                                : scaled(std::min(of.floor, of.most), room, floors);
  }
}

// What a look at the whole comes to: segments that are to go, until somebody has seen to it.
struct Residency::Changes {
  explicit Changes(Residency& of) : residency(of) {}
  Residency& residency;
  Chosen now, later;
  uint64_t missing = 0;        // of room for what comes
  bool within_budget = false;  // but for what others may still allocate
  bool on_its_way = false;     // some of it
  bool coming_back = false;    // or another's call may end
  ~Changes() {
    for (const Chosen* list : {&now, &later})
      for (const auto& segment : *list)
        if (segment) residency.settle(*segment);
  }
};

// Whether a member waits for nothing but what others have claimed, until its call goes on or gives up.
class Residency::Waiting {
 public:
  explicit Waiting(Member& member) : member_(member) {}
  ~Waiting() { set(false); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  void set(bool waits) {
    if (member_.waits_ == waits) return;  // nobody else writes it
    std::lock_guard lock(member_.residency_.mutex_);
    member_.waits_ = waits;
  }

 private:
  Member& member_;
};

struct Residency::CatchingUp {
  WaveBuffer& buffer;
  ~CatchingUp() { buffer.catch_up(); }
};

// ---- members ----

Residency::Member::Member(Residency& residency, std::shared_ptr<WaveBuffer> buffer, size_t page_bytes)
    : residency_(residency), buffer_(std::move(buffer)), frames_(buffer_, page_bytes) {
  std::lock_guard lock(residency_.mutex_);
  const size_t members = residency_.members_ + 1;
  for (auto* list : {&residency_.having_, &residency_.claiming_, &residency_.changed_, &residency_.moved_})
    make_room_in(*list, members);
  make_room_in(residency_.demands_, members);
  make_room_in(residency_.parts_, members);
  residency_.members_ = members;
  number_ = residency_.made_++;
}

Residency::Member::~Member() {
  std::lock_guard lock(residency_.mutex_);
  --residency_.members_;
  residency_.set_coming(*this, 0);
  for (Holding* holding : holdings_) residency_.release(*holding);
  if (has_) residency_.having_.erase(residency_.place_of(*this));
  if (changed_) std::erase(residency_.changed_, this);
  if (moved_) std::erase(residency_.moved_, this);
  residency_.frames_ -= frames_.bytes();
  residency_.whole_ -= whole_;
  residency_.most_ -= demand_.most;
  residency_.left_ = true;
}

void Residency::Member::still_coming(uint64_t bytes) noexcept {
  std::lock_guard lock(residency_.mutex_);
  residency_.set_coming(*this, bytes);
}

void Residency::Member::rest(Segments segments) noexcept {
  std::lock_guard lock(residency_.mutex_);
  residency_.set_coming(*this, 0);
  try {
    residency_.hold(*this, segments);
  } catch (const std::bad_alloc&) {  // then as of its last step
  }
}

Residency::Part Residency::Member::part() const {
  std::lock_guard lock(residency_.mutex_);
  residency_.recount();
  return {demand_.kv, demand_.floor, part_, whole_, frames_.bytes()};
}

uint64_t Residency::Member::needed_bytes() const {
  std::lock_guard lock(residency_.mutex_);
  return mandatory_of(*residency_.pool_, residency_.fast_, buffer_->memory()) + coming_;
}

uint64_t Residency::mandatory_bytes(const WaveBuffer& buffer) const {
  std::lock_guard lock(mutex_);
  return mandatory_of(*pool_, fast_, buffer.memory());
}

uint64_t Residency::leaving_bytes() const {
  std::lock_guard lock(mutex_);
  return fast_;
}

// ---- making room ----

bool Residency::make_room(Member& self, const Wish& wish, const Poll& poll, std::exception_ptr& refused) {
  WaveBuffer& buffer = *self.buffer_;
  Tries* const tries = wish.patience.tries;
  refused = nullptr;
  Waiting waiting(self);
  Clock::duration moving{};  // what takes segments away is no waiting, nor are others' turns meanwhile
  if (tries) {
    tries->go_on = false;
    if (std::exchange(tries->waits, false)) tries->waited += Clock::now() - tries->last;
  }
  bool beside = false;      // some of what has to leave does so beside these calls
  bool over_limit = false;  // as the session's own limit has no room without that
  for (int round = 0;; ++round) {
    const auto waited = tries ? tries->waited : Clock::now() - wish.patience.since;
    Changes changes(*this);
    {
      const CatchingUp frames_go{buffer};  // when the lock is let go of
      std::lock_guard lock(mutex_);
      if (round == 0) {
        declare(self, wish);
        if (tries) refused = refused_since(*tries);
      }
      WaveBufferMemory buffers = buffer.memory();
      const uint64_t room = divide_room(buffers);
      const uint64_t used = pool_->used(), claims = coming_;
      changes.missing =
          wish.coming ? less(used + claims, pool_->budget()) : 0;  // nothing is needed for nothing
      changes.within_budget = used + wish.coming <= pool_->budget();
      if (round == 0 && buffer.pinned()) expect_pinned(self, used + claims);

      if (round == 0) {
        Chosen& own = wish.at_once || changes.missing ? changes.now : changes.later;
        refused ? keep_what_stays(self) : keep_part(self, changes.missing > 0, own);
        const size_t chosen = changes.now.size();
        await_leaving(self, wish.limit, changes.now);
        over_limit = tries && (changes.now.size() > chosen || (wish.at_once && chosen));
      } else if (refused) {
        keep_what_stays(self);
        if (wish.at_once && self.all_fast_ > wish.share) std::rethrow_exception(refused);
      }
      if ((changes.missing || whole_ + frames_ > room) && !(tries && refused)) {
        for (Member* member : having_)
          if (member != &self) take_from(*member, refused != nullptr, changes.later);
      }
      if (round > 0 && changes.missing && !beside &&
          (refused || !wish.patience.may_wait || waited > kPatience))
        cut_frames(less(changes.missing, buffers.leaving_frames));

      buffers = buffer.memory();
      const uint64_t given_up = buffers.leaving_frames + buffers.retired,
                     on_its_way = given_up + take_now(changes, given_up);
      changes.on_its_way = (refused ? given_up : on_its_way) > 0;  // though the slow tier takes nothing
      changes.coming_back = changes.on_its_way || (!refused && changes.missing && others_go_on());
      beside = tries && !refused && !changes.now.empty();
    }
    const Clock::time_point begin = Clock::now();
    carry_out(changes, buffer, poll, wish.patience, refused);
    moving += Clock::now() - begin;
    const auto found = [&] {
      if (tries) *tries = {};
      return true;
    };
    if (!changes.missing && !over_limit && (round > 0 || !refused)) return found();
    if (round > 1) {
      const bool enough_waited =
          !wish.patience.may_wait || !changes.coming_back || waited > kMostWait + moving;
      if (changes.within_budget && !over_limit && (enough_waited || waited > kOthersClaims)) return found();
      if (tries && (beside || !enough_waited)) {
        tries->go_on = true;
        tries->waits = !beside;
        tries->last = Clock::now();
        return false;
      }
      if (enough_waited) {
        if (tries && !wish.patience.may_wait)
          tries->begun = false;  // what was in the way may have ended by the next
        return false;
      }
      waiting.set(!changes.on_its_way);
      std::this_thread::sleep_for(kPause);
      if (poll) poll();
      if (wish.patience.pause) (*wish.patience.pause)();
    }
    buffer.hasten();
  }
}

void Residency::declare(Member& self, const Wish& wish) {
  hold(self, wish.segments);
  if (std::tie(self.floor_, self.most_, self.cached_) != std::tie(wish.floor, wish.most, wish.cached))
    change(self);
  self.floor_ = wish.floor, self.most_ = wish.most, self.cached_ = wish.cached;
  set_coming(self, wish.coming);
  self.caller_ = std::this_thread::get_id();
}

// Of what is to leave, as much as is needed now, and what others have undertaken. on_its_way: what there is besides.
// Returns what of all that is to leave now.
uint64_t Residency::take_now(Changes& changes, uint64_t on_its_way) {
  const uint64_t before = on_its_way;
  for (const auto& segment : changes.now) on_its_way += segment->leaving_bytes();
  auto next = changes.later.begin();
  for (; next != changes.later.end() && on_its_way < changes.missing; ++next) {
    on_its_way += (*next)->leaving_bytes();
    changes.now.push_back(std::move(*next));
  }
  changes.later.erase(changes.later.begin(), next);
  for (auto at = held_.begin(); at != held_.end() && on_its_way < changes.missing; ++at) {
    if (!at->second.leaving || !at->second.fast) continue;
    auto segment = at->second.segment.lock();
    if (segment && std::find(changes.now.begin(), changes.now.end(), segment) != changes.now.end()) continue;
    on_its_way += at->second.bytes;
    if (segment) changes.now.push_back(std::move(segment));
  }
  return on_its_way - before;
}

// What is needed now, before this returns; the rest beside the next steps. What the slow tier refuses stays, and its
// room is not to be had. Whoever has a turn meanwhile may read a segment that is on its way, or want it gone as well.
void Residency::carry_out(Changes& changes, WaveBuffer& buffer, const Poll& poll, const Patience& patience,
                          std::exception_ptr& refused) {
  if (patience.tries) {  // first
    changes.later.insert(changes.later.begin(), changes.now.begin(), changes.now.end());
    changes.now.clear();
  }
  for (auto& segment : changes.later) {
    if (demote_later(segment, buffer))
      segment.reset();
    else
      changes.now.push_back(std::move(segment));
  }
  if (changes.now.empty()) return;
  const Poll* const pause = patience.pause;
  const auto demote = [&](const Poll& given_up) {
    const auto poll_beside = [&] {
      given_up();
      if (poll) poll();
    };
    demote_now(changes.now, buffer, poll_beside, {}, refused);
  };
  if (pause && run_beside(buffer.own_threads(), demote, *pause)) return;
  demote_now(changes.now, buffer, poll, pause ? *pause : Poll(), refused);
}

// between: called when nothing is held. Either may be empty.
void Residency::demote_now(Chosen& segments, WaveBuffer& buffer, const Poll& poll, const Poll& between,
                           std::exception_ptr& refused) {
  for (auto& segment : segments) {
    if (between) between();
    const auto poll_here = [&] {
      check_wanted(segment);
      if (poll) poll();
    };
    try {
      segment->demote(buffer, poll_here);
    } catch (const Unwanted&) {  // its memory is free when it goes
    } catch (const Error& error) {
      if (error.code() == WI_E_CANCELLED) throw;
      refused = std::current_exception();
      return;
    }
    settle(*segment);
    segment.reset();
  }
}

// Beside the next steps, which go on with what is in memory until it is done, and are heard; if it fails, a later call
// tries again. What nobody else has any more is not written to its end: others, and the runtime's, wait for that. False:
// there is nobody to do it.
bool Residency::demote_later(const std::shared_ptr<const Segment>& segment, WaveBuffer& buffer) {
  if (!queue(*segment)) return true;
  return buffer.later([this, segment, &buffer](const WaveBuffer::Hear& hear) {
    const auto poll = [&] {
      check_wanted(segment);
      hear();
    };
    try {
      poll();
      segment->demote(buffer, poll);
    } catch (const Unwanted&) {
    } catch (...) {
      note_refusal();
    }
    settle(*segment);
  });
}

bool Residency::queue(const Segment& segment) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = held_.find(segment.id());
  return at == held_.end() || !std::exchange(at->second.queued, true);
}

// For those that wait for what was to leave.
void Residency::note_refusal() noexcept {
  std::lock_guard lock(mutex_);
  ++refusals_;
  refusal_ = std::current_exception();
}

void Residency::settle(const Segment& segment) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = held_.find(segment.id());
  if (at == held_.end()) return;
  Holding& holding = at->second;
  holding.leaving = holding.queued = false;
  if (holding.fast && segment.is_slow()) {
    holding.fast = false;
    fast_ -= holding.bytes;
  }
  change(holding);
}

// ---- with the lock ----

void Residency::hold(Member& member, Segments segments) {
  std::vector<Holding*>& held = member.holdings_;
  const auto same = [](const Holding* holding, const auto& segment) { return holding->id == segment->id(); };
  const auto differ = std::mismatch(held.begin(), held.end(), segments.begin(), segments.end(), same).first;
  const auto kept = static_cast<size_t>(differ - held.begin());
  if (kept == held.size() && kept == segments.size()) return list(member);
  std::vector<Holding*> next;
  next.reserve(segments.size());
  next.assign(held.begin(), differ);
  const auto release_rest = [&](const std::vector<Holding*>& of) {
    for (size_t i = kept; i < of.size(); ++i) release(*of[i]);
  };
  try {
    for (const auto& segment : segments.subspan(kept)) {
      const auto [at, added] = held_.try_emplace(segment->id());
      Holding& holding = at->second;
      if (added) {
        holding.segment = segment;
        holding.id = segment->id();
        holding.bytes = segment->leaving_bytes();
        holding.fast = !segment->is_slow();
        holding.holder = &member;
        if (holding.fast) fast_ += holding.bytes;
      } else {
        all_changed_ = true;
      }
      ++holding.holders;
      next.push_back(&holding);
    }
  } catch (...) {
    release_rest(next);
    throw;
  }
  next.swap(held);
  release_rest(next);
  change(member);
  list(member);
}

void Residency::release(Holding& holding) noexcept {
  if (--holding.holders) {
    all_changed_ = true;
    return;
  }
  if (holding.fast) fast_ -= holding.bytes;
  held_.erase(held_.find(holding.id));
}

void Residency::change(Member& member) noexcept {
  if (!std::exchange(member.changed_, true)) changed_.push_back(&member);
}

void Residency::change(const Holding& holding) noexcept {
  if (all_changed_) return;
  if (holding.holders == 1)
    change(*holding.holder);
  else
    all_changed_ = true;
}

void Residency::recount() noexcept {
  if (std::exchange(all_changed_, false))
    for (Member* member : having_) recount(*member);
  for (Member* member : changed_) {
    member->changed_ = false;
    recount(*member);
  }
  changed_.clear();
}

void Residency::recount(Member& member) noexcept {
  whole_ -= member.whole_;
  member.all_ = member.all_fast_ = member.whole_ = member.kv_ = 0;
  for (Holding* holding : member.holdings_) {
    holding->holder = &member;
    const uint64_t part = holding->bytes / holding->holders;
    member.all_ += holding->bytes;
    member.kv_ += part;
    if (!holding->fast || holding->leaving) continue;
    member.all_fast_ += holding->bytes;
    member.whole_ += part;
  }
  whole_ += member.whole_;
  const uint64_t slow = member.kv_ - member.whole_;
  const bool pinned = member.buffer_->pinned() != nullptr;
  Demand demand;
  demand.kv = member.whole_ + (slow && !pinned ? member.buffer_->frame_bytes_for(slow) : slow);
  demand.floor = scaled(member.floor_, member.kv_, member.all_);
  demand.most = member.most_ >= member.all_ ? demand.kv : scaled(member.kv_, member.most_, member.all_);
  // What has left for pinned memory does not come back: it is read there, and some of it is in frames.
  if (pinned) demand.most = std::min(demand.most, member.whole_ + most_in_frames(member));
  const Demand before = std::exchange(member.demand_, demand);
  most_ += demand.most - before.most;
  if (before.kv == demand.kv && before.floor == demand.floor && before.most == demand.most) return;
  if (!std::exchange(member.moved_, true)) moved_.push_back(&member);
}

// Whoever has nothing is no part of what is divided, and has nothing that could be taken.
void Residency::list(Member& member) noexcept {
  const bool has = !member.holdings_.empty() || member.frames_.bytes();
  if (std::exchange(member.has_, has) == has) return;
  has ? static_cast<void>(having_.insert(place_of(member), &member))
      : static_cast<void>(having_.erase(place_of(member)));
}

std::vector<Residency::Member*>::iterator Residency::place_of(const Member& member) noexcept {
  return std::lower_bound(having_.begin(), having_.end(), member.number_,
                          [](const Member* one, uint64_t number) { return one->number_ < number; });
}

void Residency::set_coming(Member& member, uint64_t bytes) noexcept {
  if (bytes && !member.coming_) claiming_.push_back(&member);
  if (!bytes && member.coming_) std::erase(claiming_, &member);
  coming_ += bytes - member.coming_;
  member.coming_ = bytes;
}

void Residency::set_frames(Member& member, uint64_t bytes) {
  const uint64_t before = member.frames_.bytes();
  member.frames_.set(bytes);
  frames_ += bytes - before;
  if (bytes) list(member);  // with none left later: the caller may be going through the list
}

// Whether a call that has claims may end, and leave some of them: another's, and none that waits itself. Of those that
// wait for each other the last to come gives up, and with that the first may find room.
bool Residency::others_go_on() const {
  const auto waits = [&](std::thread::id caller) {
    return std::any_of(claiming_.begin(), claiming_.end(),
                       [&](const Member* member) { return member->waits_ && member->caller_ == caller; });
  };
  return std::any_of(claiming_.begin(), claiming_.end(), [&](const Member* member) {
    return member->caller_ != std::this_thread::get_id() && !waits(member->caller_);
  });
}

// The room for sealed keys and values, each member's part of which is noted.
uint64_t Residency::divide_room(const WaveBufferMemory& buffers) {
  recount();
  // What is kept free is for the tails of others to grow into without anybody's having to leave first.
  uint64_t room = less(pool_->budget(), mandatory_of(*pool_, fast_, buffers) + coming_);
  room -= room / kSlack;
  const bool fits = most_ <= room;
  const bool anew = fits ? !fitted_ : fitted_ || left_ || room != room_ || !moved_.empty();
  for (Member* member : moved_) {
    member->moved_ = false;
    member->part_ = member->demand_.most;
  }
  moved_.clear();
  fitted_ = fits, left_ = false, room_ = room;
  if (!anew) return room;
  demands_.clear();
  for (const Member* member : having_) demands_.push_back(member->demand_);
  parts_.resize(having_.size());
  divide(room, demands_, parts_);
  for (size_t i = 0; i < having_.size(); ++i) having_[i]->part_ = parts_[i];
  return room;
}

// So much of its oldest segments as `enough` asks for, which is told how large the next one is.
template <class Enough>
void Residency::choose(Member& from, Chosen& chosen, Enough&& enough) {
  for (Holding* holding : from.holdings_) {
    if (!holding->fast || holding->leaving) continue;
    if (enough(holding->bytes)) return;
    auto segment = holding->segment.lock();
    if (segment) {
      chosen.push_back(std::move(segment));
    }
    holding->leaving = true;  // of one that has gone the memory is free in a moment
    change(*holding);
    from.whole_ -= holding->bytes / holding->holders;
    whole_ -= holding->bytes / holding->holders;
    from.all_fast_ -= holding->bytes;
  }
}

// The next of the member's segments to leave wants its size of pinned memory, which takes long to be had.
void Residency::expect_pinned(const Member& member, uint64_t used) const {
  if (used < pool_->budget() / 8 * 7) return;
  for (const Holding* holding : member.holdings_) {
    if (!holding->fast || holding->leaving) continue;
    return member.buffer_->pinned()->memory().expect(holding->bytes);
  }
}

// Its own limits and its part, in which a session that has more than that keeps few segments whole, as far as the slow
// tier has room for the others.
void Residency::keep_part(Member& self, bool missing, Chosen& chosen) {
  if (self.buffer_->pinned()) return keep_pinned_part(self, chosen);
  const bool more = self.demand_.kv > self.part_;
  const uint64_t whole = more ? self.part_ / kWholeShare : self.part_;
  uint64_t room = slow_room(self);
  choose(self, chosen, [&](uint64_t next) {
    if (self.all_fast_ > self.most_ || (missing && self.whole_ > whole)) return false;
    if (self.whole_ <= whole || next > room) return true;
    room -= next;
    return false;
  });
  keep_what_stays(self);
}

// Frames in what its segments leave of its part.
void Residency::keep_what_stays(Member& self) {
  recount();
  if (self.buffer_->pinned()) return;
  const uint64_t all = less(self.demand_.kv, self.whole_);
  // The next slab may be that small, and what is less of a cache of many is not worth a change.
  const uint64_t slab = self.buffer_->slab_bytes(), now = self.frames_.bytes();
  keep_frames(self, std::min(less(self.part_, self.whole_), all), all,
              now < kWholeShare * slab ? SlabSizes::least(slab) : slab);
}

// What was to leave beside earlier steps is there until it has left: where the session's own limit has no room for it,
// it is waited for, and what keeps it is said.
void Residency::await_leaving(const Member& self, uint64_t limit, Chosen& chosen) {
  uint64_t there = self.all_fast_;
  std::vector<std::shared_ptr<const Segment>> leaving;
  for (const Holding* holding : self.holdings_) {
    if (!holding->fast || !holding->leaving) continue;
    auto segment = holding->segment.lock();
    if (!segment || std::find(chosen.begin(), chosen.end(), segment) != chosen.end()) continue;
    there += holding->bytes;
    leaving.push_back(std::move(segment));
  }
  for (auto& segment : leaving) {
    if (there <= limit) return;
    there = less(there, segment->leaving_bytes());
    chosen.push_back(std::move(segment));
  }
}

// Of what is pinned: what the session asks for, and no more than there is; last pages are not full.
uint64_t Residency::most_in_frames(const Member& member) {
  const uint64_t pinned = less(member.kv_, member.whole_);
  return std::min(scaled(member.cached_, member.kv_, member.all_), pinned + pinned / 4);
}

// What is pinned can be read in place, a whole segment of it at the pace of the bus: of its part a session that has
// more has in frames what it asks for, and segments whole in the rest.
void Residency::keep_pinned_part(Member& self, Chosen& chosen) {
  const bool more = self.demand_.kv > self.part_;
  const uint64_t wished = more ? std::min(self.cached_, self.most_) : 0;
  const uint64_t cached = std::min(scaled(wished, self.kv_, self.all_), self.part_);
  choose(self, chosen, [&](uint64_t) {
    return self.whole_ <= self.part_ - cached && self.all_fast_ <= self.most_ - wished;
  });
  recount();
  const uint64_t all = most_in_frames(self);
  const uint64_t frames = std::min(more ? cached : less(self.part_, self.whole_), all);
  keep_frames(
      self, frames, all,
      std::max<uint64_t>(self.frames_.bytes() / kWholeShare, SlabSizes::least(self.buffer_->slab_bytes())));
}

// Not changed for every block that somebody's tail takes or gives back.
void Residency::keep_frames(Member& self, uint64_t frames, uint64_t all, uint64_t least_change) {
  const uint64_t now = self.frames_.bytes();
  if (frames < now || frames >= now + least_change || frames == all) set_frames(self, frames);
}

// refused: the slow tier has refused something, and is asked only for what it seems to have room for.
void Residency::take_from(Member& other, bool refused, Chosen& chosen) {
  const uint64_t frames = other.frames_.bytes(), over = less(other.whole_ + frames, other.part_);
  if (!over) return;
  set_frames(other, less(frames, over));
  uint64_t room = refused ? slow_room(other) : UINT64_MAX;
  choose(other, chosen, [&](uint64_t next) {
    if (other.whole_ <= other.part_ || next > room) return true;
    room -= next;
    return false;
  });
  recount();
}

// That its segments have not been promised yet.
uint64_t Residency::slow_room(const Member& member) {
  const SpillFile* const file = member.buffer_->file().get();
  if (!file) return UINT64_MAX;
  uint64_t promised = 0;
  for (const Holding* holding : member.holdings_)
    if (holding->fast && holding->leaving) promised += holding->bytes;
  return less(file->most(), file->used() + promised);
}

// What it refuses once it refuses again.
std::exception_ptr Residency::refused_since(Tries& tries) const {
  if (!std::exchange(tries.begun, true)) {
    tries.refusals = refusals_;
    tries.refused = nullptr;
  }
  if (!tries.refused && tries.refusals != refusals_) tries.refused = refusal_;
  return tries.refused;
}

// From all, for as long as others' steps keep what is to leave.
void Residency::cut_frames(uint64_t bytes) {
  const uint64_t all = frames_;
  if (!all) return;
  for (Member* member : having_) set_frames(*member, scaled(member->frames_.bytes(), less(all, bytes), all));
}

}  // namespace wi
