#include "src/pipeline/index.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/cancel.h"
#include "src/error.h"
#include "src/pipeline/building.h"
#include "src/pipeline/device_index.h"
#include "src/pipeline/index_room.h"
#include "src/pipeline/straight.h"
#include "src/store/copy_rows.h"

namespace wi {
namespace {

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

// whole: a segment that this one is the beginning of, or null. to: the slow tier that it goes to, or null.
std::shared_ptr<Segment> build_in(WaveBuffer* to, const Sequence& sequence, SegmentSpan span,
                                  const SealContext& context, const Segment* whole) {
  const KvShape& shape = sequence.shape();
  const KvPools& pools = sequence.pools();
  const int32_t tokens = span.tokens, workers = context.stream.workers;
  const auto planes = static_cast<int64_t>(shape.layers) * shape.kv_heads;
  std::optional<StraightPlanes> straight;
  if (to) straight.emplace(*to, *pools.host, shape, tokens, workers);
  auto segment = straight ? std::make_shared<Segment>(pools, shape, span.first, tokens, Segment::WithoutKv{})
                          : std::make_shared<Segment>(pools, shape, span.first, tokens);

  IndexRoom room(*pools.host, shape, context.policy, context.params, whole ? whole->tokens() : tokens);
  Source source(sequence, span, workers);
  const bool indexed = !straight && !whole && index_on_device(sequence, span, context, *segment, room);

  // place: where it is made, of as many as there are at once.
  const auto build = [&](int64_t number, int place, int worker) {
    const auto plane = static_cast<size_t>(number);
    const int32_t layer = static_cast<int32_t>(number) / shape.kv_heads,
                  head = static_cast<int32_t>(number) % shape.kv_heads;
    if (indexed && !shape.window(layer)) return;
    std::byte* const host = straight ? straight->layout(place) : source.layout_room(place);
    const IndexArgs args = room.args(
        *segment, plane, source.runs(layer, head, place, straight ? straight->spare(place) : nullptr), host);
    const Policy& policy = layout_policy(context.backend, context.policy, shape, layer);
    const IndexResult result = whole && policy.cut
                                   ? policy.cut(context.stream, worker, args, whole->view(layer, head))
                                   : policy.index(context.stream, worker, args);
    room.set_result(plane, result);
    if (context.stream.cancelled()) return;  // it may have left the plane as it was
    if (straight)
      straight->write(context.stream, plane, place, context.policy, args.index, result);
    else if (host)
      IndexRoom::place(*segment, plane, host);
  };
  if (straight) {
    const int64_t places = straight->at_once();
    context.stream.each(places, [&](int64_t place, int worker) {
      for (int64_t plane = place; plane < planes && !context.stream.cancelled(); plane += places)
        build(plane, static_cast<int>(place), worker);
    });
  } else {
    context.stream.each(planes, [&](int64_t plane, int worker) { build(plane, worker, worker); });
  }
  throw_if_cancelled(context.stream);
  room.attach_to(*segment);
  if (straight) straight->attach_to(*segment);
  return segment;
}

// What the slow tier does not take is made in the fast one, if that has room.
std::shared_ptr<Segment> build_segment(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                                       const Segment* whole = nullptr) {
  std::exception_ptr refused;
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

// The next segment of a prompt in a sequence that will have final_tokens; none if there is no more. The
// segments that it takes the place of are the last ones: were there any behind it, they would have been cut
// as it is.
SegmentSpan next_of_prompt(const Sequence& sequence, const PolicyParams& params, int64_t final_tokens) {
  const SegmentGrid grid(params);
  const int64_t end = grid.sealed_end(final_tokens);
  int64_t first = sequence.settled_end();
  for (const auto& segment : sequence.segments()) {
    if (segment->first_position() < first) continue;
    if (segment->tokens() != grid.longest(first, end).tokens) break;
    first = segment->end_position();
  }
  const SegmentSpan span = grid.longest(first, end);
  return span.end() > sequence.sealed_end() ? span : SegmentSpan{};
}

void put_in_place(Sequence& sequence, std::shared_ptr<const Segment> segment, const SealContext& context) {
  size_t freed_bytes = 0;
  const int64_t from_tail = segment->end_position() - sequence.sealed_end();
  for (const BlockRef& block : sequence.tail().first(static_cast<size_t>(from_tail / kBlockTokens)))
    freed_bytes += block->bytes();
  for (const auto& older : sequence.segments())
    if (older->first_position() >= segment->first_position()) freed_bytes += older->bytes();
  if (segment->bytes() > freed_bytes)
    sequence.check_budget(segment->bytes() - freed_bytes, "a segment's index");
  if (context.stats) context.stats->sealed_tokens += static_cast<uint64_t>(segment->tokens());
  sequence.seal(std::move(segment));
}

// The next `count` tokens of `from` that `to` does not have.
void copy_next(const Sequence& from, int64_t count, const Stream& stream, Sequence& to) {
  const KvShape& shape = from.shape();
  const int64_t first = to.tokens();
  to.reserve(count);
  std::vector<AppendRun> runs;
  std::vector<std::byte> room;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    runs.clear();
    to.places(layer, first, count, 0, runs);
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      throw_if_cancelled(stream);
      copy_rows(from, from.slow_segments() > 0, layer, head, first, shape.head_bytes(), runs,
                to.pools().pages->memory(), room);
    }
  }
  to.commit(count);
}

}  // namespace

void seal_prompt(Sequence& sequence, const SealContext& context, int64_t final_tokens, int64_t coming) {
  for (;;) {
    const SegmentSpan span = next_of_prompt(sequence, context.params, final_tokens);
    if (span.tokens == 0 || span.end() > sequence.tokens() ||
        span.end() + context.params.local_window > sequence.tokens() + coming)
      return;
    const std::shared_ptr<Segment> segment = build_segment(sequence, span, context);
    if (context.on_segment) context.on_segment(segment);
    put_in_place(sequence, segment, context);
  }
}

void seal_decoded(Sequence& sequence, const SealContext& context) {
  sequence.settle();
  for (;;) {
    const SegmentSpan span = SegmentGrid(context.params).unit(sequence.sealed_end());
    std::shared_ptr<Building>& building = sequence.building();
    const int64_t steps_left = span.end() + context.params.local_window + kBuildTokens - sequence.tokens();
    if (sequence.slow_blocks() && steps_left <= 0) {
      put_in_place(sequence, build_segment(sequence, span, context), context);
      sequence.settle();
      continue;
    }
    sequence.bring_back_tail();
    if (span.end() > sequence.tokens()) return building.reset();
    if (!building || building->span().first != span.first)
      building = std::make_shared<Building>(sequence, span, context.backend, context.policy, context.params,
                                            context.stream.workers, context.queue != nullptr);
    if (steps_left > 0) return building->advance(context.stream, context.queue, steps_left);
    put_in_place(sequence, building->finish(context.stream, context.queue), context);
    building.reset();
    sequence.settle();
  }
}

int64_t sealed_while_decoding(const PolicyParams& params, int64_t sealed_end, int64_t tokens) {
  const SegmentGrid grid(params);
  for (int64_t end = sealed_end; end + params.local_window + kBuildTokens <= tokens;
       end = grid.unit(end).end())
    sealed_end = end;
  return sealed_end;
}

void truncate(Sequence& sequence, const SealContext& context, int64_t tokens, int64_t most_sealed) {
  const int64_t most = std::min(tokens - context.params.local_window, most_sealed);
  int64_t sealed_end = kSinkTokens;
  std::shared_ptr<Segment> cut;
  for (const auto& segment : sequence.segments()) {
    if (segment->first_position() >= most) break;
    const int64_t kept = std::min<int64_t>(most - segment->first_position(), segment->tokens());
    const auto whole_blocks = static_cast<int32_t>(kept / kBlockTokens * kBlockTokens);
    if (whole_blocks && whole_blocks < segment->tokens())
      cut = build_segment(sequence, {segment->first_position(), whole_blocks}, context, segment.get());
    sealed_end = segment->first_position() + whole_blocks;
  }
  sequence.truncate(tokens, sealed_end, std::move(cut));
}

void reindex(const Sequence& from, const SealContext& context, Sequence& to) {
  if (from.tokens() == 0) return;
  copy_next(from, std::min<int64_t>(from.tokens(), kSinkTokens), context.stream, to);
  for (const auto& segment : from.segments()) {
    if (context.before_tokens) context.before_tokens(segment->tokens());
    copy_next(from, segment->tokens(), context.stream, to);
    seal_prompt(to, context, from.tokens());
  }
  if (context.before_tokens) context.before_tokens(from.tail_tokens());
  copy_next(from, from.tail_tokens(), context.stream, to);
  seal_prompt(to, context, from.tokens());
}

}  // namespace wi
