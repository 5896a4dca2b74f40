#include "src/pipeline/building.h"

#include <algorithm>

#include "src/cancel.h"

namespace wi {

namespace {

// A step of a small model takes less than the first touch of a huge page may; where a segment is larger, so
// are the steps.
constexpr size_t kSmallSegmentBytes = size_t{32} << 20;

HostPages pages_of(const KvShape& shape, SegmentSpan span) {
  const size_t bytes = shape.token_bytes() * static_cast<size_t>(span.tokens);
  return bytes < kSmallSegmentBytes ? HostPages::small : HostPages::huge;
}

}  // namespace

Building::Building(const Sequence& sequence, SegmentSpan span, const Backend& backend, const Policy& policy,
                   const PolicyParams& params, int workers)
    : span_(span),
      on_device_(sequence.pools().pages->memory().of_device()),
      backend_(backend),
      policy_(policy),
      params_(params),
      segment_(std::make_shared<Segment>(sequence.pools(), sequence.shape(), span.first, span.tokens,
                                         pages_of(sequence.shape(), span))),
      room_(*sequence.pools().host, sequence.shape(), policy, params_, span.tokens) {
  const KvShape& shape = sequence.shape();
  const auto blocks = sequence.tail().first(static_cast<size_t>(span.tokens / kBlockTokens));
  blocks_.assign(blocks.begin(), blocks.end());
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  runs_.reserve(planes * blocks_.size());
  for (int32_t layer = 0; layer < shape.layers; ++layer)
    for (int32_t head = 0; head < shape.kv_heads; ++head)
      for (const BlockRef& block : blocks_)
        runs_.push_back({block->keys(layer, head), block->values(layer, head), kBlockTokens});

  columns_.resize(std::min(planes, static_cast<size_t>(workers)));
  size_t state_bytes = 0;
  if (policy.pieces && shape.indexed_layers() > 0) {
    const IndexArgs sizes = room_.args(*segment_, 0, {runs_.data(), blocks_.size()});
    pieces_ = policy.pieces->count(sizes);
    state_bytes = (policy.pieces->state_bytes(sizes) + 63) & ~size_t{63};
    states_ = sequence.pools().host->allocate(columns_.size() * state_bytes, "building a segment's index");
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    columns_[i].plane = i;
    for (size_t plane = i; plane < planes; plane += columns_.size()) columns_[i].left += pieces_of(plane);
    if (state_bytes) columns_[i].state = states_.data() + i * state_bytes;
  }
}

void Building::advance(const Stream& stream, int64_t steps_left) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) work(stream, steps_left);
}

std::shared_ptr<const Segment> Building::finish(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  work(stream, 1);
  if (!attached_) room_.attach_to(*segment_);
  attached_ = true;
  return segment_;
}

void Building::work(const Stream& stream, int64_t steps_left) {
  stream.each(static_cast<int64_t>(columns_.size()), [&](int64_t task, int worker) {
    Column& column = columns_[static_cast<size_t>(task)];
    for (int64_t share = (column.left + steps_left - 1) / steps_left; share > 0; --share)
      if (!work_at(column, stream, worker)) return;
  });
  throw_if_cancelled(stream);
}

const Policy& Building::policy_of(size_t plane) const {
  const KvShape& shape = segment_->shape();
  return layout_policy(backend_, policy_, shape,
                       static_cast<int32_t>(plane / static_cast<size_t>(shape.kv_heads)));
}

void Building::open(Column& column) {
  const KvRun* const runs = runs_.data() + column.plane * blocks_.size();
  if (!on_device_) {
    column.args = room_.args(*segment_, column.plane, {runs, blocks_.size()});
    return;
  }
  const size_t row = segment_->shape().head_bytes(), half = static_cast<size_t>(span_.tokens) * row;
  column.copies.resize(2 * half);
  column.layout.resize(2 * half);
  std::byte* to = column.copies.data();
  std::vector<CopyPiece> pieces;
  for (const bool values : {false, true})
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const size_t bytes = static_cast<size_t>(runs[i].tokens) * row;
      pieces.push_back({to, values ? runs[i].values : runs[i].keys, bytes});
      to += bytes;
    }
  segment_->memory().gather(pieces);
  column.run = {column.copies.data(), column.copies.data() + half, span_.tokens};
  column.args = room_.args(*segment_, column.plane, {&column.run, 1}, column.layout.data());
}

// One piece; false if the stream was cancelled and it has to be done again.
bool Building::work_at(Column& column, const Stream& stream, int worker) {
  if (column.piece == 0) open(column);
  const Policy& policy = policy_of(column.plane);
  const IndexResult result = policy.pieces ? policy.pieces->run(column.args, column.state, column.piece)
                                           : policy.index(stream, worker, column.args);
  if (stream.cancelled() && !policy.pieces) return false;
  const bool whole = column.piece + 1 == pieces_of(column.plane);
  if (whole && on_device_) IndexRoom::place(*segment_, column.plane, column.layout.data());
  column.left -= 1;
  column.piece += 1;
  if (whole) {
    room_.set_result(column.plane, result);
    column.plane += columns_.size();
    column.piece = 0;
  }
  return !stream.cancelled();
}

}  // namespace wi
