#include "src/pipeline/device_index.h"

#include <algorithm>
#include <vector>

#include "src/cancel.h"
#include "src/memory/breaks.h"
#include "src/memory/device.h"

namespace wi {
namespace {

// Planes whose working memory the device has at a time.
size_t at_once(size_t each_bytes, size_t most_bytes, size_t planes) {
  return std::clamp<size_t>(most_bytes / std::max<size_t>(each_bytes, 1), 1, planes);
}

size_t work_bytes(size_t each, size_t planes) { return std::max<size_t>(each * planes, 1); }

// For so many planes at a time, or fewer, where the device has no more; null: not even one.
std::byte* work_room(Queue& queue, size_t each, size_t& planes) {
  for (; planes > 0; planes /= 2) try {
      return queue.room(Queue::kIndexing, work_bytes(each, planes));
    } catch (const Error& error) {
      if (error.code() != WI_E_MEMORY) throw;
    }
  return nullptr;
}

}  // namespace

void find_runs(const Sequence& sequence, SegmentSpan span, size_t plane, std::vector<KvRun>& runs) {
  const auto heads = static_cast<size_t>(sequence.shape().kv_heads);
  const auto layer = static_cast<int32_t>(plane / heads), head = static_cast<int32_t>(plane % heads);
  const size_t row = sequence.shape().head_bytes();
  int64_t position = span.first;
  for (const auto& older : sequence.segments()) {
    if (older->end_position() <= position) continue;
    const std::byte *const keys = older->keys(layer, head), *const values = older->values(layer, head);
    const int32_t* const places = older->places(layer, head);
    for (const int64_t end = std::min(span.end(), older->end_position()); position < end; ++position) {
      const auto at = static_cast<size_t>(places[position - older->first_position()]) * row;
      const bool follows = !runs.empty() && static_cast<const std::byte*>(runs.back().keys) +
                                                    static_cast<size_t>(runs.back().tokens) * row ==
                                                keys + at;
      if (follows)
        ++runs.back().tokens;
      else
        runs.push_back({keys + at, values + at, 1});
    }
  }
  for (auto block = static_cast<size_t>((position - sequence.sealed_end()) / kBlockTokens);
       position < span.end(); ++block, position += kBlockTokens) {
    const BlockRef& of_tail = sequence.tail()[block];
    runs.push_back({of_tail->keys(layer, head), of_tail->values(layer, head), kBlockTokens});
  }
}

bool index_on_device(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                     const Segment& segment, IndexRoom& room, size_t most_bytes) {
  const KvShape& shape = sequence.shape();
  if (!context.queue || !context.policy.index_planes || shape.indexed_layers() == 0) return false;
  const auto runs_of = [&](size_t plane, std::vector<KvRun>& runs) {
    find_runs(sequence, span, plane, runs);
  };
  return index_on_device(indexed_planes(shape), runs_of, context.policy, context.params, context.stream,
                         *context.queue, segment, room, most_bytes);
}

bool index_on_device(std::span<const size_t> planes, const RunsOfPlane& runs_of, const Policy& policy,
                     const PolicyParams& params, const Stream& stream, Queue& queue, const Segment& segment,
                     IndexRoom& room, size_t most_bytes) {
  PlanesOnDevice indexing(queue, policy, params, segment, room);
  if (!indexing.open(planes.size(), most_bytes)) return false;
  indexing.ask(stream, planes, runs_of, true);
  indexing.finish(stream);
  return true;
}

PlanesOnDevice::PlanesOnDevice(Queue& queue, const Policy& policy, const PolicyParams& params,
                               const Segment& segment, IndexRoom& room)
    : queue_(queue), policy_(policy), params_(params), segment_(segment), room_(room) {}

bool PlanesOnDevice::open(size_t planes, size_t most_bytes) {
  const KvShape& shape = segment_.shape();
  each_ = policy_.index_workspace(params_, segment_.tokens(), shape.head_dim, shape.dtype);
  together_ = at_once(each_, most_bytes, planes);
  try {
    room_.open_on_device();
    work_ = work_room(queue_, each_, together_);
  } catch (const Error& error) {
    if (error.code() != WI_E_MEMORY && error.code() != WI_E_BUDGET) throw;
  }
  runs_.resize(together_);
  args_.resize(together_);
  results_.resize(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads));
  return work_ != nullptr;
}

void PlanesOnDevice::ask(const Stream& given, std::span<const size_t> planes, const RunsOfPlane& runs_of,
                         bool paced) {
  Stream stream = given;
  stream.queue = queue_.get();
  for (; !planes.empty(); planes = planes.subspan(std::min(together_, planes.size()))) {
    if (paced) {
      take_break(given);
      throw_if_cancelled(given);
    }
    const size_t count = std::min(together_, planes.size());
    size_t listed = 0;
    for (size_t i = 0; i < count; ++i) {
      runs_[i].clear();
      runs_of(planes[i], runs_[i]);
      args_[i] = room_.args_on_device(segment_, planes[i], runs_[i]);
      listed += 2 * runs_[i].size() * sizeof(KvRun);
    }
    if (listed_ && listed_ + listed > kMostListed) {
      queue_.finish();
      listed_ = 0;
    }
    listed_ += listed;
    policy_.index_planes(stream, args_.data(), static_cast<int32_t>(count), work_,
                         results_.data() + asked_.size());
    asked_.insert(asked_.end(), planes.begin(), planes.begin() + static_cast<std::ptrdiff_t>(count));
    if (paced) queue_.keep_pace(given);
  }
}

void PlanesOnDevice::finish(const Stream& stream) {
  queue_.finish(stream);
  for (size_t i = 0; i < asked_.size(); ++i) room_.set_result_of_device(asked_[i], results_[i]);
}

uint64_t indexing_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                        int32_t tokens, size_t most_bytes) {
  const size_t planes = static_cast<size_t>(shape.indexed_layers()) * static_cast<size_t>(shape.kv_heads);
  if (!policy.index_planes || planes == 0) return 0;
  const size_t each = policy.index_workspace(params, tokens, shape.head_dim, shape.dtype);
  return work_bytes(each, at_once(each, most_bytes, planes));
}

std::vector<size_t> indexed_planes(const KvShape& shape) {
  const auto heads = static_cast<size_t>(shape.kv_heads);
  std::vector<size_t> planes;
  for (size_t plane = 0; plane < static_cast<size_t>(shape.layers) * heads; ++plane)
    if (!shape.window(static_cast<int32_t>(plane / heads))) planes.push_back(plane);
  return planes;
}

}  // namespace wi
