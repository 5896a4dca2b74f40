#include "src/pipeline/new_segment.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "src/cancel.h"
#include "src/error.h"
#include "src/pipeline/device_index.h"
#include "src/pipeline/index_room.h"
#include "src/pipeline/segment_ahead.h"
#include "src/pipeline/straight.h"
#include "src/store/copy_rows.h"

namespace wi {
namespace {

using Clock = std::chrono::steady_clock;

// A place is left after so long, and come back to: what is urgent to others may come between (memory/breaks.h), and
// waits no longer for a segment than for other loops.
constexpr std::chrono::milliseconds kTurn{10};

// Where the keys and values of a new segment's positions are: copies of what older segments have, of which it
// may take only a part, then blocks of the tail, or copies of those that are slow; of all of them, where they are a
// device's.
struct Source {
  Source(const Sequence& sequence, SegmentSpan span, int places);
  // One head's in order of position, runs and what they point to valid until the next call for the place. copies:
  // room for all of them, or null.
  std::span<const KvRun> runs(int32_t layer, int32_t head, int place, std::byte* copies);
  // Room of the host's for a plane to be laid out in, as long; null where that is done in the segment itself.
  std::byte* layout_room(int place);

 private:
  void read_slow_blocks(int32_t layer, int32_t head, int place, std::byte* to);

  const Sequence& sequence_;
  const SegmentSpan span_;
  const bool on_device_;
  const int64_t copied_tokens_;  // the first ones, that are copied
  std::span<const BlockRef> blocks_;
  size_t slow_blocks_ = 0;  // of them, the first ones
  struct Room {
    std::vector<std::byte> copies;  // keys, then values of copied_tokens_; then of each slow block
    std::vector<std::byte> layout;
    std::vector<KvRun> runs;
    std::vector<ReadRequest> requests;
    std::unique_ptr<SpillReader> reader;
  };
  std::vector<Room> rooms_;  // (places)
};

// The planes (layer * kv_heads + head) of a new segment: as many at once as there are places, each in pieces where its
// policy has them.
class Planes {
 public:
  // whole: a segment that the new one is the beginning of, or null. straight: on their way to the slow tier, or null.
  // indexed: by a device, where a plane has an index.
  Planes(const Sequence& sequence, SegmentSpan span, const SealContext& context, const Segment* whole,
         StraightPlanes* straight, Segment& segment, IndexRoom& room, bool indexed);
  void make_all();

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Place {
    int64_t plane = -1;  // none
    int32_t piece = 0;   // the next of it
    std::byte* layout = nullptr;
    bool packed = false;  // on its way to the slow tier
    size_t written = 0;   // bytes of it
    IndexArgs args{};
    std::unique_ptr<std::byte, Free> state;  // what its pieces leave for the next
  };
  bool next_plane(Place& place);
  void begin(Place& place);
  void work_at(Place& place, int worker);
  void end(Place& place, const IndexResult& result);
  int number_of(const Place& place) const { return static_cast<int>(&place - places_.data()); }
  int32_t layer_of(int64_t plane) const { return static_cast<int32_t>(plane) / shape_.kv_heads; }
  int32_t head_of(int64_t plane) const { return static_cast<int32_t>(plane) % shape_.kv_heads; }
  const Policy& policy_of(int64_t plane) const {
    return layout_policy(context_.backend, context_.policy, shape_, layer_of(plane));
  }

  const SealContext& context_;
  const KvShape& shape_;
  const Segment* const whole_;
  StraightPlanes* const straight_;
  Segment& segment_;
  IndexRoom& room_;
  const int64_t planes_;
  std::vector<Place> places_;
  Source source_;
  const bool indexed_;
  std::atomic<int64_t> next_{0};
};

std::shared_ptr<Segment> build_in(WaveBuffer* to, const Sequence& sequence, SegmentSpan span,
                                  const SealContext& context, const Segment* whole) {
  const KvShape& shape = sequence.shape();
  const KvPools& pools = sequence.pools();
  const int32_t tokens = span.tokens;
  std::optional<StraightPlanes> straight;
  if (to) straight.emplace(context.stream, *to, *pools.host, shape, tokens);
  auto segment = straight ? std::make_shared<Segment>(pools, shape, span.first, tokens, Segment::WithoutKv{})
                          : std::make_shared<Segment>(pools, shape, span.first, tokens);
  IndexRoom room = whole && context.policy.cut
                       ? IndexRoom(pools, context.policy, context.params, *whole)
                       : IndexRoom(pools, shape, context.policy, context.params, tokens);
  const bool indexed = !straight && !whole && index_on_device(sequence, span, context, *segment, room);
  Planes(sequence, span, context, whole, straight ? &*straight : nullptr, *segment, room, indexed).make_all();
  room.attach_to(*segment);
  if (straight) straight->attach_to(*segment);
  return segment;
}

// What a device has not indexed of it is layers with a window.
std::shared_ptr<Segment> end_ahead(const Sequence& sequence, const SealContext& context) {
  SegmentAhead& ahead = *context.ahead;
  if (sequence.shape().windows)
    Planes(sequence, ahead.span(), context, nullptr, nullptr, *ahead.segment(), ahead.room(), true)
        .make_all();
  ahead.room().attach_to(*ahead.segment());
  return ahead.segment();
}

}  // namespace

// What the slow tier does not take is made in the fast one, if that has room.
std::shared_ptr<Segment> build_segment(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                                       const Segment* whole) {
  std::exception_ptr refused;
  if (context.ahead && !whole && context.ahead->is_indexed() && context.ahead->span() == span)
    return end_ahead(sequence, context);
  if (context.straight) {
    try {
      return build_in(context.straight, sequence, span, context, whole);
    } catch (const Error& error) {
      if (error.code() != WI_E_BUDGET && error.code() != WI_E_IO) throw;
      refused = std::current_exception();
    }
  }
  try {
    return build_in(nullptr, sequence, span, context, whole);
  } catch (const Error& error) {
    if (refused && error.code() == WI_E_BUDGET) std::rethrow_exception(refused);
    throw;
  }
}

namespace {

Planes::Planes(const Sequence& sequence, SegmentSpan span, const SealContext& context, const Segment* whole,
               StraightPlanes* straight, Segment& segment, IndexRoom& room, bool indexed)
    : context_(context),
      shape_(sequence.shape()),
      whole_(whole),
      straight_(straight),
      segment_(segment),
      room_(room),
      planes_(int64_t{shape_.layers} * shape_.kv_heads),
      places_(static_cast<size_t>(straight ? straight->at_once()
                                           : std::min<int64_t>(context.stream.workers, planes_))),
      source_(sequence, span, static_cast<int>(places_.size())),
      indexed_(indexed) {}

void Planes::make_all() {
  const Stream& stream = context_.stream;
  const auto at_work = [](const Place& place) { return place.plane >= 0; };
  do {
    stream.each(static_cast<int64_t>(places_.size()), [&](int64_t number, int worker) {
      Place& place = places_[static_cast<size_t>(number)];
      const Clock::time_point end = Clock::now() + kTurn;
      do {
        if (place.plane < 0 && !next_plane(place)) return;
        work_at(place, worker);
      } while (!stream.cancelled() && Clock::now() < end);
    });
    throw_if_cancelled(stream);
  } while (next_ < planes_ || std::any_of(places_.begin(), places_.end(), at_work));
}

bool Planes::next_plane(Place& place) {
  do {
    if ((place.plane = next_++) >= planes_) {
      place.plane = -1;
      return false;
    }
  } while (indexed_ && !shape_.window(layer_of(place.plane)));
  begin(place);
  return true;
}

void Planes::begin(Place& place) {
  const int number = number_of(place);
  place.piece = 0;
  place.packed = false;
  place.written = 0;
  place.layout = straight_ ? straight_->layout(number) : source_.layout_room(number);
  place.args = room_.args(segment_, static_cast<size_t>(place.plane),
                          source_.runs(layer_of(place.plane), head_of(place.plane), number,
                                       straight_ ? straight_->spare(number) : nullptr),
                          place.layout);
  const Policy& policy = policy_of(place.plane);
  if (whole_ || !policy.pieces || place.state) return;
  const size_t bytes = (policy.pieces->state_bytes(place.args) + 63) & ~size_t{63};  // of every plane
  place.state.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  if (!place.state) throw std::bad_alloc();
}

// A piece, or all of a plane that has none; then of what of it is to be written.
void Planes::work_at(Place& place, int worker) {
  if (place.packed) {
    if (straight_->write_some(static_cast<size_t>(place.plane), number_of(place), place.written))
      place.plane = -1;
    return;
  }
  const Policy& policy = policy_of(place.plane);
  if (!whole_ && policy.pieces) {
    const IndexResult result = policy.pieces->run(place.args, place.state.get(), place.piece);
    if (++place.piece == policy.pieces->count(place.args)) end(place, result);
    return;
  }
  const IndexResult result = whole_ && policy.cut
                                 ? policy.cut(context_.stream, worker, place.args,
                                              whole_->view(layer_of(place.plane), head_of(place.plane)))
                                 : policy.index(context_.stream, worker, place.args);
  if (!context_.stream.cancelled()) end(place, result);  // else it may have left the plane as it was
}

void Planes::end(Place& place, const IndexResult& result) {
  const auto plane = static_cast<size_t>(place.plane);
  room_.set_result(plane, result);
  if (straight_) {
    straight_->pack(number_of(place), context_.policy, place.args.index, result);
    place.packed = true;
    return;
  }
  if (place.layout) IndexRoom::place(segment_, plane, place.layout);
  place.plane = -1;
}

Source::Source(const Sequence& sequence, SegmentSpan span, int places)
    : sequence_(sequence),
      span_(span),
      on_device_(sequence.pools().pages->memory().of_device()),
      copied_tokens_((on_device_ ? span.end() : std::min(span.end(), sequence.sealed_end())) - span.first),
      rooms_(static_cast<size_t>(places)) {
  const int64_t from_tail = span.end() - sequence.sealed_end();
  if (from_tail > 0 && !on_device_) {
    blocks_ = sequence.tail().first(static_cast<size_t>(from_tail / kBlockTokens));
    slow_blocks_ = std::min(sequence.slow_blocks(), blocks_.size());
  }
}

std::span<const KvRun> Source::runs(int32_t layer, int32_t head, int place, std::byte* copies) {
  Room& room = rooms_[static_cast<size_t>(place)];
  const size_t row = sequence_.shape().head_bytes(), half = static_cast<size_t>(copied_tokens_) * row,
               block_half = kBlockTokens * row;
  room.runs.clear();
  if (!copies) {
    room.copies.resize(2 * half + slow_blocks_ * 2 * block_half);
    copies = room.copies.data();
  }
  if (copied_tokens_) {
    sequence_.copy_tokens(layer, head, span_.first, copied_tokens_, copies, copies + half);
    room.runs.push_back({copies, copies + half, copied_tokens_});
    copies += 2 * half;
  }
  if (slow_blocks_) read_slow_blocks(layer, head, place, copies);
  for (const BlockRef& block : blocks_) {
    if (!block->is_slow()) {
      room.runs.push_back({block->keys(layer, head), block->values(layer, head), kBlockTokens});
      continue;
    }
    room.runs.push_back({copies, copies + block_half, kBlockTokens});
    copies += 2 * block_half;
  }
  return room.runs;
}

void Source::read_slow_blocks(int32_t layer, int32_t head, int place, std::byte* to) {
  Room& room = rooms_[static_cast<size_t>(place)];
  room.requests.clear();
  for (const BlockRef& block : blocks_.first(slow_blocks_)) {
    room.requests.push_back(block->request(layer, head, to));
    to += block->head_stride();
  }
  if (!room.reader) room.reader = std::make_unique<SpillReader>(blocks_[0]->file());
  room.reader->read(room.requests);
}

std::byte* Source::layout_room(int place) {
  if (!on_device_) return nullptr;
  std::vector<std::byte>& room = rooms_[static_cast<size_t>(place)].layout;
  room.resize(2 * static_cast<size_t>(span_.tokens) * sequence_.shape().head_bytes());
  return room.data();
}

}  // namespace
}  // namespace wi
