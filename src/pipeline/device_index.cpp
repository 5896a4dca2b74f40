#include "src/pipeline/device_index.h"

#include <algorithm>
#include <vector>

#include "src/cancel.h"
#include "src/memory/breaks.h"
#include "src/memory/device.h"
#include "src/pipeline/attention.h"

namespace wi {
namespace {

// Planes whose working memory the device has at a time.
size_t at_once(size_t each_bytes, size_t most_bytes, size_t planes) {
  return std::clamp<size_t>(most_bytes / std::max<size_t>(each_bytes, 1), 1, planes);
}

// A plane's tokens in order of position, where kernels read them: first those of older segments, cluster by cluster
// there, which the new one takes the place of, then blocks of the tail.
void find_runs(const Sequence& sequence, SegmentSpan span, int32_t layer, int32_t head,
               std::vector<KvRun>& runs) {
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

// What was asked for uses what is about to go, however this ends.
struct Drained {
  Queue& queue;
  ~Drained() { queue.drain(); }
};

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

bool index_on_device(const Sequence& sequence, SegmentSpan span, const SealContext& context,
                     const Segment& segment, IndexRoom& room, size_t most_bytes) {
  const KvShape& shape = sequence.shape();
  if (!context.queue || !context.policy.index_planes || shape.indexed_layers() == 0) return false;
  const auto heads = static_cast<size_t>(shape.kv_heads);
  const auto runs_of = [&](size_t plane, std::vector<KvRun>& runs) {
    find_runs(sequence, span, static_cast<int32_t>(plane / heads), static_cast<int32_t>(plane % heads), runs);
  };
  return index_on_device(indexed_planes(shape), runs_of, context.policy, context.params, context.stream,
                         *context.queue, segment, room, most_bytes);
}

bool index_on_device(std::span<const size_t> planes, const RunsOfPlane& runs_of, const Policy& policy,
                     const PolicyParams& params, const Stream& given, Queue& queue, const Segment& segment,
                     IndexRoom& room, size_t most_bytes) {
  const KvShape& shape = segment.shape();
  const size_t each = policy.index_workspace(params, segment.tokens(), shape.head_dim, shape.dtype);
  size_t together = at_once(each, most_bytes, planes.size());
  std::byte* work = nullptr;
  try {
    room.open_on_device();
    work = work_room(queue, each, together);
  } catch (const Error& error) {
    if (error.code() != WI_E_MEMORY && error.code() != WI_E_BUDGET) throw;
  }
  if (!work) return false;
  Stream stream = given;
  stream.queue = queue.get();
  std::vector<std::vector<KvRun>> runs(together);
  std::vector<IndexArgs> args(together);
  std::vector<IndexResult> results(planes.size());
  size_t staged = 0;
  const Drained drained{queue};

  for (size_t first = 0; first < planes.size(); first += together) {
    take_break(given);
    throw_if_cancelled(given);
    const size_t count = std::min(together, planes.size() - first);
    for (size_t i = 0; i < count; ++i) {
      runs[i].clear();
      runs_of(planes[first + i], runs[i]);
      args[i] = room.args_on_device(segment, planes[first + i], runs[i]);
      staged += 2 * runs[i].size() * sizeof(KvRun);
    }
    policy.index_planes(stream, args.data(), static_cast<int32_t>(count), work, results.data() + first);
    if (staged > kMostStaged) {
      queue.finish();
      staged = 0;
    } else {
      queue.keep_pace(given);
    }
  }
  queue.finish();
  for (size_t i = 0; i < planes.size(); ++i) room.set_result_of_device(planes[i], results[i]);
  return true;
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
