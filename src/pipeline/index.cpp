#include "src/pipeline/index.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "src/cancel.h"
#include "src/error.h"
#include "src/pipeline/building.h"
#include "src/pipeline/new_segment.h"
#include "src/store/copy_rows.h"

namespace wi {
namespace {

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

// The segments that it takes the place of are the last ones: were there any behind it, they would have been cut as it is.
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

void seal_prompt(Sequence& sequence, const SealContext& context, int64_t final_tokens, int64_t coming) {
  for (;;) {
    const SegmentSpan span = next_of_prompt(sequence, context.params, final_tokens);
    if (span.tokens == 0 || span.end() > sequence.tokens() ||
        span.end() + context.params.local_window > sequence.tokens() + coming)
      return;
    const std::shared_ptr<Segment> segment = build_segment(sequence, span, context);
    if (context.on_segment) context.on_segment(segment);
    put_in_place(sequence, segment, context);
    sequence.building().reset();  // its tokens are sealed now
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
  const int64_t most =
      most_sealed == kSealedUnknown ? tokens - context.params.local_window : std::min(tokens, most_sealed);
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
