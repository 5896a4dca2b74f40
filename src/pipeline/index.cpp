#include "src/pipeline/index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/cancel.h"

namespace wi {
namespace {

std::shared_ptr<Segment> build_segment(const Sequence& sequence, int32_t tokens, const SealContext& context) {
  const KvShape& shape = sequence.shape();
  const int64_t first = sequence.sealed_end();
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  auto segment = std::make_shared<Segment>(sequence.pool(), shape, first, tokens);

  const size_t capacity =
      (context.policy.index_capacity(context.params, tokens, shape.head_dim, shape.dtype) + 63) & ~size_t{63};
  HostBuffer room;
  if (capacity) {
    room = sequence.pool().allocate(planes * capacity, "building a segment's index");
    std::memset(room.data(), 0, room.bytes());
  }
  const size_t blocks = static_cast<size_t>(tokens / kBlockTokens);
  std::vector<KvRun> runs(planes * blocks);
  std::vector<IndexResult> results(planes);

  context.stream.each(static_cast<int64_t>(planes), [&](int64_t plane, int worker) {
    const int32_t layer = static_cast<int32_t>(plane) / shape.kv_heads,
                  head = static_cast<int32_t>(plane) % shape.kv_heads;
    KvRun* own_runs = runs.data() + static_cast<size_t>(plane) * blocks;
    for (size_t i = 0; i < blocks; ++i) {
      const BlockRef& block = sequence.tail()[i];
      own_runs[i] = {block->keys(layer, head), block->values(layer, head), kBlockTokens};
    }
    IndexArgs args;
    args.runs = own_runs;
    args.run_count = static_cast<int32_t>(blocks);
    args.tokens = tokens;
    args.first_position = static_cast<int32_t>(first);
    args.head_dim = shape.head_dim;
    args.kv = shape.dtype;
    args.params = &context.params;
    args.keys = segment->keys(layer, head);
    args.values = segment->values(layer, head);
    args.positions = segment->positions(layer, head);
    args.index = capacity ? room.data() + static_cast<size_t>(plane) * capacity : nullptr;
    results[static_cast<size_t>(plane)] = context.policy.index(context.stream, worker, args);
  });
  throw_if_cancelled(context.stream);

  // The room was an upper bound; the segment keeps what was used.
  std::vector<Segment::HeadIndex> heads(planes);
  size_t used = 0;
  for (size_t plane = 0; plane < planes; ++plane) {
    heads[plane] = {used, results[plane].index_bytes, results[plane].partitions};
    used += (results[plane].index_bytes + 63) & ~size_t{63};
  }
  HostBuffer index;
  if (used) {
    index = sequence.pool().allocate(used, "a segment's index");
    std::memset(index.data(), 0, index.bytes());
    for (size_t plane = 0; plane < planes; ++plane) {
      std::memcpy(index.data() + heads[plane].offset, room.data() + plane * capacity, heads[plane].bytes);
    }
  }
  segment->attach_index(std::move(index), std::move(heads));
  return segment;
}

// Room for the next tokens, visible at once: positions [to.tokens() - count, to.tokens()) are written next.
void grow(Sequence& to, int64_t count) {
  to.reserve(count);
  to.commit(count);
}

// One token's key and value of one head, to where its position is in the sink or the tail.
void put(Sequence& to, int32_t layer, int32_t head, int64_t position, const std::byte* key,
         const std::byte* value) {
  const size_t bytes = to.shape().head_bytes();
  const bool in_sink = position < kSinkTokens;
  const int64_t place = in_sink ? position : position - to.sealed_end();
  const BlockRef& block = in_sink ? to.sink() : to.tail()[static_cast<size_t>(place / kBlockTokens)];
  const size_t offset = static_cast<size_t>(place % kBlockTokens) * bytes;
  std::memcpy(block->keys(layer, head) + offset, key, bytes);
  std::memcpy(block->values(layer, head) + offset, value, bytes);
}

// A run of consecutive tokens from `position` on.
void put_run(Sequence& to, int32_t layer, int32_t head, int64_t position, const KvRun& run) {
  const size_t bytes = to.shape().head_bytes();
  for (int64_t i = 0; i < run.tokens; ++i) {
    const size_t at = static_cast<size_t>(i) * bytes;
    put(to, layer, head, position + i, static_cast<const std::byte*>(run.keys) + at,
        static_cast<const std::byte*>(run.values) + at);
  }
}

}  // namespace

void reindex(const Sequence& from, const SealContext& context, Sequence& to) {
  if (from.tokens() == 0) return;
  const KvShape& shape = from.shape();
  const auto each_head = [&](auto&& body) {
    for (int32_t layer = 0; layer < shape.layers; ++layer)
      for (int32_t head = 0; head < shape.kv_heads; ++head) body(layer, head);
  };
  const int64_t sink = std::min<int64_t>(from.tokens(), kSinkTokens);
  grow(to, sink);
  each_head([&](int32_t layer, int32_t head) {
    put_run(to, layer, head, 0, {from.sink()->keys(layer, head), from.sink()->values(layer, head), sink});
  });
  for (const auto& segment : from.segments()) {
    grow(to, segment->tokens());
    each_head([&](int32_t layer, int32_t head) {
      const SegmentView view = segment->view(layer, head);
      for (int32_t i = 0; i < view.tokens; ++i) {
        const size_t at = static_cast<size_t>(i) * shape.head_bytes();
        put(to, layer, head, view.positions[i], static_cast<const std::byte*>(view.keys) + at,
            static_cast<const std::byte*>(view.values) + at);
      }
    });
    seal(to, context, SealWhen::prefilling);
  }
  const int64_t first = to.tokens();
  grow(to, from.tail_tokens());
  each_head([&](int32_t layer, int32_t head) {
    for (int64_t done = 0, left = from.tail_tokens(); left > 0; done += kBlockTokens, left -= kBlockTokens) {
      const BlockRef& block = from.tail()[static_cast<size_t>(done / kBlockTokens)];
      put_run(to, layer, head, first + done,
              {block->keys(layer, head), block->values(layer, head), std::min<int64_t>(left, kBlockTokens)});
    }
  });
  seal(to, context, SealWhen::prefilled);
}

void seal(Sequence& sequence, const SealContext& context, SealWhen when) {
  while (const int32_t tokens = sealable_tokens(sequence, context.params, when)) {
    std::shared_ptr<Segment> segment = build_segment(sequence, tokens, context);
    const size_t freed_bytes = static_cast<size_t>(tokens) * sequence.shape().token_bytes();
    if (segment->bytes() > freed_bytes)
      sequence.check_budget(segment->bytes() - freed_bytes, "a segment's index");
    if (context.on_segment) context.on_segment(segment);
    sequence.seal(std::move(segment));
  }
}

int32_t sealable_tokens(const Sequence& sequence, const PolicyParams& params, SealWhen when) {
  const int64_t beyond_window = sequence.tail_tokens() - params.local_window;
  if (beyond_window >= params.segment_tokens) return params.segment_tokens;
  if (when == SealWhen::prefilling || beyond_window < params.decode_segment_tokens) return 0;
  if (when == SealWhen::decoding) return params.decode_segment_tokens;
  return static_cast<int32_t>(beyond_window / params.decode_segment_tokens) * params.decode_segment_tokens;
}

}  // namespace wi
