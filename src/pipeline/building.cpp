#include "src/pipeline/building.h"

#include <algorithm>

#include "src/buffer/patient_lock.h"
#include "src/cancel.h"
#include "src/memory/device.h"
#include "src/pipeline/device_index.h"

namespace wi {

namespace {

// A step of a small model takes less than the first touch of a huge page may; where a segment is larger, so
// are the steps.
constexpr size_t kSmallSegmentBytes = size_t{32} << 20;

// A device's work comes in so many parts: each takes about as long as a step, for few planes take as long as some do,
// and few steps have one.
constexpr int64_t kDeviceParts = 16;

HostPages pages_of(const KvShape& shape, SegmentSpan span) {
  const size_t bytes = shape.token_bytes() * static_cast<size_t>(span.tokens);
  return bytes < kSmallSegmentBytes ? HostPages::small : HostPages::huge;
}

}  // namespace

Building::Building(const Sequence& sequence, SegmentSpan span, const Backend& backend, const Policy& policy,
                   const PolicyParams& params, int workers, bool by_device)
    : span_(span),
      on_device_(sequence.pools().pages->memory().of_device()),
      backend_(backend),
      policy_(policy),
      params_(params),
      host_pool_(sequence.pools().host),
      most_columns_(static_cast<size_t>(workers)),
      segment_(std::make_shared<Segment>(sequence.pools(), sequence.shape(), span.first, span.tokens,
                                         pages_of(sequence.shape(), span))),
      room_(sequence.pools(), sequence.shape(), policy, params_, span.tokens) {
  const KvShape& shape = sequence.shape();
  const auto blocks = sequence.tail().first(static_cast<size_t>(span.tokens / kBlockTokens));
  blocks_.assign(blocks.begin(), blocks.end());
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  runs_.reserve(planes * blocks_.size());
  for (int32_t layer = 0; layer < shape.layers; ++layer)
    for (int32_t head = 0; head < shape.kv_heads; ++head)
      for (const BlockRef& block : blocks_)
        runs_.push_back({block->keys(layer, head), block->values(layer, head), kBlockTokens});

  if (by_device && policy.index_planes) device_planes_ = indexed_planes(shape);
  for (size_t plane = 0; plane < planes; ++plane)
    if (!std::binary_search(device_planes_.begin(), device_planes_.end(), plane))
      host_planes_.push_back(plane);

  deal_columns();
}

void Building::deal_columns() {
  const KvShape& shape = segment_->shape();
  columns_.clear();
  columns_.resize(std::min(host_planes_.size(), most_columns_));
  size_t state_bytes = 0;
  const auto indexed = [&](size_t plane) { return policy_of(plane).pieces != nullptr; };
  if (shape.indexed_layers() > 0 && std::any_of(host_planes_.begin(), host_planes_.end(), indexed)) {
    const IndexArgs sizes = room_.sizes(*segment_);
    pieces_ = policy_.pieces->count(sizes);
    state_bytes = (policy_.pieces->state_bytes(sizes) + 63) & ~size_t{63};
    states_ = host_pool_->allocate(columns_.size() * state_bytes, "building a segment's index");
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    columns_[i].next = i;
    for (size_t n = i; n < host_planes_.size(); n += columns_.size())
      columns_[i].left += pieces_of(host_planes_[n]);
    if (state_bytes) columns_[i].state = states_.data() + i * state_bytes;
  }
}

void Building::advance(const Stream& stream, Queue* queue, int64_t steps_left) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) work(stream, queue, steps_left);
}

std::shared_ptr<const Segment> Building::finish(const Stream& stream, Queue* queue) {
  // A fork's step may be at it, and do all that is left.
  const std::unique_lock lock = lock_patiently(mutex_, [&] { throw_if_cancelled(stream); });
  work(stream, queue, 1);
  check(done_on_device_ == device_planes_.size(), WI_E_INTERNAL,
        "a segment's index is to be made by a device, without a queue");
  if (!attached_) room_.attach_to(*segment_);
  attached_ = true;
  return segment_;
}

void Building::work(const Stream& stream, Queue* queue, int64_t steps_left) {
  const bool refused =
      queue && done_on_device_ < device_planes_.size() && !work_on_device(stream, *queue, steps_left);
  work_on_host(stream, steps_left);
  if (!refused || steps_left > 1) return;  // the device may have room later
  host_planes_.assign(device_planes_.begin() + static_cast<std::ptrdiff_t>(done_on_device_),
                      device_planes_.end());
  deal_columns();
  device_planes_.resize(done_on_device_);
  work_on_host(stream, 1);
}

void Building::work_on_host(const Stream& stream, int64_t steps_left) {
  stream.each(static_cast<int64_t>(columns_.size()), [&](int64_t task, int worker) {
    Column& column = columns_[static_cast<size_t>(task)];
    for (int64_t share = (column.left + steps_left - 1) / steps_left; share > 0; --share)
      if (!work_at(column, stream, worker)) return;
  });
  throw_if_cancelled(stream);
}

// Its part of this step; false, and nothing is done: the device has no room.
bool Building::work_on_device(const Stream& stream, Queue& queue, int64_t steps_left) {
  const auto all = static_cast<int64_t>(device_planes_.size());
  const int64_t parts_left = (steps_left - 1) * kDeviceParts / kBuildTokens,  // after this step
      wanted = std::max<int64_t>(all - (all + kDeviceParts - 1) / kDeviceParts * parts_left, 0);
  const auto count = static_cast<size_t>(wanted) - std::min(static_cast<size_t>(wanted), done_on_device_);
  if (count == 0) return true;
  const auto runs_of = [&](size_t plane, std::vector<KvRun>& runs) {
    const auto first = runs_.begin() + static_cast<std::ptrdiff_t>(plane * blocks_.size());
    runs.assign(first, first + static_cast<std::ptrdiff_t>(blocks_.size()));
  };
  const std::span<const size_t> planes = std::span(device_planes_).subspan(done_on_device_, count);
  if (!index_on_device(planes, runs_of, policy_, params_, stream, queue, *segment_, room_)) return false;
  done_on_device_ += count;
  return true;
}

const Policy& Building::policy_of(size_t plane) const {
  const KvShape& shape = segment_->shape();
  return layout_policy(backend_, policy_, shape,
                       static_cast<int32_t>(plane / static_cast<size_t>(shape.kv_heads)));
}

void Building::open(Column& column) {
  const size_t plane = plane_of(column);
  const KvRun* const runs = runs_.data() + plane * blocks_.size();
  if (!on_device_) {
    column.args = room_.args(*segment_, plane, {runs, blocks_.size()});
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
  column.args = room_.args(*segment_, plane, {&column.run, 1}, column.layout.data());
}

// One piece; false if the stream was cancelled and it has to be done again.
bool Building::work_at(Column& column, const Stream& stream, int worker) {
  if (column.piece == 0) open(column);
  const size_t plane = plane_of(column);
  const Policy& policy = policy_of(plane);
  const IndexResult result = policy.pieces ? policy.pieces->run(column.args, column.state, column.piece)
                                           : policy.index(stream, worker, column.args);
  if (stream.cancelled() && !policy.pieces) return false;
  const bool whole = column.piece + 1 == pieces_of(plane);
  if (whole && on_device_) IndexRoom::place(*segment_, plane, column.layout.data());
  column.left -= 1;
  column.piece += 1;
  if (whole) {
    room_.set_result(plane, result);
    column.next += columns_.size();
    column.piece = 0;
  }
  return !stream.cancelled();
}

}  // namespace wi
