#include "src/pipeline/index.h"

#include <algorithm>
#include <span>
#include <vector>

#include "src/cancel.h"
#include "src/pipeline/building.h"
#include "src/pipeline/index_room.h"
#include "src/store/copy_rows.h"

namespace wi {
namespace {

// Where the keys and values of a new segment's positions are: copies of what older segments have, of which it
// may take only a part, then blocks of the tail; of all of them, where they are a device's.
struct Source {
  Source(const Sequence& sequence, SegmentSpan span, int workers);
  // One head's in order of position, runs and what they point to valid until the worker's next call.
  std::span<const KvRun> runs(int32_t layer, int32_t head, int worker);
  // Room of the host's for a plane to be laid out in, as long; null where that is done in the segment itself.
  std::byte* layout_room(int worker);

 private:
  const Sequence& sequence_;
  const SegmentSpan span_;
  const bool on_device_;
  const int64_t copied_tokens_;
  std::span<const BlockRef> blocks_;
  struct Room {
    std::vector<std::byte> copies;  // keys, then values of copied_tokens_
    std::vector<std::byte> layout;
    std::vector<KvRun> runs;
  };
  std::vector<Room> rooms_;  // (workers)
};

// whole: a segment that this one is the beginning of, or null.
std::shared_ptr<Segment> build_segment(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                                       const Segment* whole = nullptr) {
  const KvShape& shape = sequence.shape();
  const int32_t tokens = span.tokens;
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  auto segment = std::make_shared<Segment>(sequence.pools(), shape, span.first, tokens);

  IndexRoom room(*sequence.pools().host, shape, context.policy, context.params,
                 whole ? whole->tokens() : tokens);
  Source source(sequence, span, context.stream.workers);

  context.stream.each(static_cast<int64_t>(planes), [&](int64_t plane, int worker) {
    const int32_t layer = static_cast<int32_t>(plane) / shape.kv_heads,
                  head = static_cast<int32_t>(plane) % shape.kv_heads;
    std::byte* const host = source.layout_room(worker);
    const IndexArgs args =
        room.args(*segment, static_cast<size_t>(plane), source.runs(layer, head, worker), host);
    const Policy& policy = layout_policy(context.backend, context.policy, shape, layer);
    room.set_result(static_cast<size_t>(plane),
                    whole && policy.cut ? policy.cut(context.stream, worker, args, whole->view(layer, head))
                                        : policy.index(context.stream, worker, args));
    if (host) IndexRoom::place(*segment, static_cast<size_t>(plane), host);
  });
  throw_if_cancelled(context.stream);
  room.attach_to(*segment);
  return segment;
}

Source::Source(const Sequence& sequence, SegmentSpan span, int workers)
    : sequence_(sequence),
      span_(span),
      on_device_(sequence.pools().pages->memory().of_device()),
      copied_tokens_((on_device_ ? span.end() : std::min(span.end(), sequence.sealed_end())) - span.first),
      rooms_(static_cast<size_t>(workers)) {
  const int64_t from_tail = span.end() - sequence.sealed_end();
  if (from_tail > 0 && !on_device_)
    blocks_ = sequence.tail().first(static_cast<size_t>(from_tail / kBlockTokens));
}

std::span<const KvRun> Source::runs(int32_t layer, int32_t head, int worker) {
  Room& room = rooms_[static_cast<size_t>(worker)];
  room.runs.clear();
  if (copied_tokens_) {
    const size_t half = static_cast<size_t>(copied_tokens_) * sequence_.shape().head_bytes();
    room.copies.resize(2 * half);
    std::byte *const keys = room.copies.data(), *const values = keys + half;
    sequence_.copy_tokens(layer, head, span_.first, copied_tokens_, keys, values);
    room.runs.push_back({keys, values, copied_tokens_});
  }
  for (const BlockRef& block : blocks_)
    room.runs.push_back({block->keys(layer, head), block->values(layer, head), kBlockTokens});
  return room.runs;
}

std::byte* Source::layout_room(int worker) {
  if (!on_device_) return nullptr;
  std::vector<std::byte>& room = rooms_[static_cast<size_t>(worker)].layout;
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
  size_t freed_bytes =
      static_cast<size_t>(segment->end_position() - sequence.sealed_end()) * sequence.shape().token_bytes();
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

void seal_prompt(Sequence& sequence, const SealContext& context, int64_t final_tokens) {
  for (;;) {
    const SegmentSpan span = next_of_prompt(sequence, context.params, final_tokens);
    if (span.tokens == 0 || span.end() + context.params.local_window > sequence.tokens()) return;
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
    if (span.end() > sequence.tokens()) return building.reset();
    if (!building || building->span().first != span.first)
      building = std::make_shared<Building>(sequence, span, context.backend, context.policy, context.params,
                                            context.stream.workers);
    const int64_t steps_left = span.end() + context.params.local_window + kBuildTokens - sequence.tokens();
    if (steps_left > 0) return building->advance(context.stream, steps_left);
    put_in_place(sequence, building->finish(context.stream), context);
    building.reset();
    sequence.settle();
  }
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
