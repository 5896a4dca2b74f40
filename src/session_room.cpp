// Room for what a session takes next, in a fast tier that others want as well: what leaves it, and how what is read
// becomes segments where they do not fit into it whole. No token depends on any of that.
#include "src/session_room.h"

#include <algorithm>

#include "src/memory/beside.h"
#include "src/memory/less.h"
#include "src/memory_plan.h"
#include "src/pipeline/segment_ahead.h"
#include "src/pipeline/straight.h"
#include "src/session_use.h"

namespace wi {

void wish_of(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
             uint64_t budget_bytes, const Sequence* from, Residency::Segments segments,
             Residency::Wish& wish) {
  wish.segments = segments;
  wish.floor = looked_up_bytes(sequence.shape(), policy, params, sequence.indexed_tokens());
  if (!budget_bytes) return;
  uint64_t whole = 0;
  for (const auto& segment : segments)
    if (!segment->is_slow()) whole += segment->leaving_bytes();
  const uint64_t held = sequence.bytes() + (from ? from->bytes() : 0);
  const uint64_t others = less(held, whole) + wish.coming;
  wish.most = wish.limit = less(budget_bytes, others);
  if (whole > wish.most) wish.at_once = true;
}

// Where the budgets or the session's share of the fast tier do not hold all keys and values and what comes next,
// the oldest segments move to the slow tier, of this session and of others.
bool Session::make_room_of(const Sequence& sequence, uint64_t coming_bytes, SealWhen when,
                           const Residency::Patience& patience, const std::atomic<bool>* cancel,
                           const Sequence* from) {
  Residency::Wish wish;
  std::vector<std::shared_ptr<const Segment>> both;  // sequences' segments, where it is made of another
  wish.coming = coming_bytes;
  wish.patience = patience;
  wish.at_once = when == SealWhen::prefilling;
  if (has_slow_tier()) {
    if (from) both.assign(from->segments().begin(), from->segments().end());
    both.insert(both.end(), sequence.segments().begin(), sequence.segments().end());
    wish_of(sequence, *params_.policy, params_.policy_params, params_.kv_budget_bytes, from, both, wish);
    uint64_t all = 0;
    for (const auto& segment : both) all += segment->leaving_bytes();
    const auto share_of_all = [&](float share) {
      return static_cast<uint64_t>(static_cast<double>(share) * static_cast<double>(all));
    };
    if (params_.kv_fast_share > 0) wish.share = share_of_all(params_.kv_fast_share);
    wish.most = std::min(wish.most, wish.share);
    // Whoever looks up whole segments has as much of them.
    if (runtime_->device && params_.policy->partition_offsets)
      wish.cached = share_of_all(params_.kv_fast_share > 0 ? params_.kv_fast_share : kDeviceCacheShare);
  }
  std::exception_ptr refused;
  const bool room = resident_->make_room(
      wish, [&] { throw_if_cancelled(cancel); }, refused);
  if (refused) refused_ = refused;
  return room;
}

void Session::make_room(Sequence& sequence, int64_t coming_tokens, SealWhen when,
                        const Residency::Patience& patience, const std::atomic<bool>* cancel) {
  if (!resident_) return;
  const Making least = least_making(sequence, coming_tokens, when);
  making_ = first_making(sequence, coming_tokens, when);
  const auto next = [&] {
    making_ = making_ == Making::whole && least != Making::whole ? Making::straight : least;
  };
  uint64_t sealing = 0;
  for (int tries = 2;;) {
    refused_ = nullptr;
    if (making_ == Making::spilled) spill_tail(sequence, cancel, patience.pause);
    sealing = sealing_bytes(sequence, coming_tokens, when, making_);
    const bool is_least = making_ == least;
    Residency::Patience own = patience;
    own.may_wait = patience.may_wait && is_least;
    room_ = make_room_of(sequence, sequence.bytes_to_reserve(coming_tokens) + sealing, when, own, cancel);
    if (patience.tries && patience.tries->go_on) throw NoRoomYet();
    // What the slow tier refused once it refuses again, and what comes next may need less than is asked for.
    if (room_ || is_least || refused_) {
      try {
        in_room([&] { sequence.reserve(coming_tokens); });
        break;
      } catch (const Error& error) {  // somebody without a part of his own may have been quicker
        const bool full = error.code() == WI_E_BUDGET || (refused_ && error.code() == WI_E_IO);
        if (!full || (is_least && (!room_ || !tries--))) throw;
      }
    }
    next();
  }
  resident_->still_coming(sealing);
}

Session::Making Session::least_making(const Sequence& sequence, int64_t coming_tokens, SealWhen when) const {
  const bool slow_file = runtime_->buffer->file() && !sequence.shape().windows;
  if (!slow_file || !straight_planes(sequence.shape(), runtime_->workers.threads())) return Making::whole;
  if (when == SealWhen::decoding) return sequence.slow_blocks() ? Making::straight : Making::whole;
  return reads_sparsely(sequence, coming_tokens) ? Making::straight : Making::spilled;
}

// The first that might have room, were all gone that may leave.
Session::Making Session::first_making(const Sequence& sequence, int64_t coming_tokens, SealWhen when) const {
  const Making least = least_making(sequence, coming_tokens, when);
  if (when == SealWhen::decoding) return least;
  const uint64_t blocks = sequence.bytes_to_reserve(coming_tokens);
  for (const Making how : {Making::whole, Making::straight})
    if (how == least || could_hold(sequence, blocks + sealing_bytes(sequence, coming_tokens, when, how)))
      return how;
  return least;
}

bool Session::could_hold(const Sequence& sequence, uint64_t coming_bytes) const {
  if (runtime_->residency.mandatory_bytes(*runtime_->buffer) + coming_bytes > runtime_->pool->budget())
    return false;
  uint64_t held = sequence.bytes();
  for (const auto& segment : sequence.segments())
    if (!segment->is_slow()) held -= std::min(held, segment->leaving_bytes());
  const uint64_t most = params_.kv_budget_bytes ? params_.kv_budget_bytes : UINT64_MAX;
  return held + coming_bytes <= std::min<uint64_t>(most, fast_limit_);
}

// All but those that may be recent ones still when the prompt has been read. What is refused stays where it is. pause:
// as Patience has it.
void Session::spill_tail(Sequence& sequence, const std::atomic<bool>* cancel, const Residency::Poll* pause) {
  const PolicyParams& params = params_.policy_params;
  const auto spill = [&](const Residency::Poll& given_up) {
    sequence.spill_tail(runtime_->buffer->file(),
                        sequence.tokens() - params.local_window - params.decode_segment_tokens, [&] {
                          if (given_up) given_up();
                          throw_if_cancelled(cancel);
                        });
  };
  try {
    if (!pause || !run_beside(*runtime_->own_threads, spill, *pause)) spill({});
  } catch (const Error& error) {
    if (error.code() != WI_E_BUDGET && error.code() != WI_E_IO) throw;
    refused_ = std::current_exception();
  }
}

// Before a prompt goes on: what the session goes back to if that fails is a copy, and would keep blocks in memory.
void Session::spill_before(Use& use, int64_t coming_tokens, const CancelToken* cancel, Breaks* breaks) {
  if (!resident_ || sequence_.tail_tokens() <= params_.policy_params.decode_segment_tokens) return;
  const Residency::Poll pause = Use::pause_for(breaks);
  use.between([&](bool) {
    const Making least = least_making(sequence_, coming_tokens, SealWhen::prefilling);
    if (least == Making::spilled &&
        (making_ == least || first_making(sequence_, coming_tokens, SealWhen::prefilling) == least))
      spill_tail(sequence_, flag_of(cancel), breaks ? &pause : nullptr);
  });
}

// A segment that is cut, the one that takes its place, and what of it is tail again are all held for a moment.
void Session::make_room_to_cut(int64_t tokens, int64_t most_sealed, bool may_wait) {
  if (!resident_) return;
  refused_ = nullptr;
  room_ = true;
  const CutPlan plan = plan_cut(sequence_, *params_.policy, params_.policy_params, tokens, most_sealed);
  if (!plan.longest) return;
  const bool may_be_straight = least_making(sequence_, 0, SealWhen::prefilling) != Making::whole;
  const auto bytes = [&] { return making_bytes_of(making_, plan.index, plan.longest) + plan.again_bytes; };
  const auto make = [&](bool wait) {
    return make_room_of(sequence_, bytes(), SealWhen::prefilling, {wait}, nullptr);
  };
  making_ = Making::whole;
  room_ = (!may_be_straight || could_hold(sequence_, bytes())) && make(may_wait && !may_be_straight);
  if (room_ || !may_be_straight) return;
  making_ = Making::straight;
  room_ = make(may_wait);
}

void Session::rest() noexcept {
  if (resident_) resident_->rest(has_slow_tier() ? sequence_.segments() : Residency::Segments());
}

bool Session::reading_here() { return Use::reading_here(); }

bool Session::has_slow_tier() const { return resident_ && may_leave(*runtime_, sequence_.shape()); }

uint64_t Session::making_bytes_of(Making how, const IndexSize& index, int32_t tokens) const {
  const KvShape& shape = sequence_.shape();
  return how == Making::whole ? making_bytes(shape, index, tokens)
                              : straight_making_bytes(shape, index, tokens, runtime_->workers.threads());
}

// What the making of segments takes that may be due next.
uint64_t Session::sealing_bytes(const Sequence& sequence, int64_t coming_tokens, SealWhen when,
                                Making how) const {
  const KvShape& shape = sequence.shape();
  const PolicyParams& params = params_.policy_params;
  if (when == SealWhen::decoding)
    return decoded_sealing_bytes(sequence, *params_.policy, params, sequence.tokens() + coming_tokens,
                                 runtime_->workers.threads());
  const SealPlan plan = plan_seal(sequence, *params_.policy, params, coming_tokens);
  const uint64_t back = reads_sparsely(sequence, coming_tokens) ? sequence.slow_blocks() : 0;
  const uint64_t back_bytes = back * kBlockTokens * shape.token_bytes();
  if (!plan.longest) return back_bytes;
  const uint64_t made = ahead_ ? ahead_->device_bytes() : 0,
                 all = back_bytes + making_bytes_of(how, plan.index, plan.longest) + plan.stays_bytes +
                       (how == Making::whole ? plan.kept_bytes : 0);
  return less(all, made);
}

}  // namespace wi
