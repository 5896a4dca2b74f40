#include "src/pipeline/device_index.h"

#include <algorithm>
#include <vector>

#include "src/cancel.h"
#include "src/memory/breaks.h"
#include "src/memory/device.h"

namespace wi {
namespace {

size_t in_lines(size_t bytes) { return (bytes + 255) & ~size_t{255}; }

// What indexing a plane takes of the device.
struct PlaneRoom {
  size_t work, places, index;
  size_t bytes() const { return work + places + index; }
  size_t at_once(size_t most_bytes, size_t planes) const {
    return std::clamp<size_t>(most_bytes / bytes(), 1, planes);
  }
};
PlaneRoom plane_room(const KvShape& shape, const Policy& policy, const PolicyParams& params, int32_t tokens) {
  return {policy.index_workspace(params, tokens, shape.head_dim, shape.dtype),
          in_lines(static_cast<size_t>(tokens) * sizeof(int32_t)),
          in_lines(policy.index_capacity(params, tokens, shape.head_dim, shape.dtype))};
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
  const int32_t tokens = segment.tokens();
  const PlaneRoom each = plane_room(shape, policy, params, tokens);
  size_t at_once = each.at_once(most_bytes, planes.size());
  std::byte* memory = nullptr;
  while (!memory) try {
      memory = queue.room(Queue::kIndexing, at_once * each.bytes());
    } catch (const Error& error) {
      if (error.code() != WI_E_MEMORY) throw;
      at_once /= 2;
      if (at_once == 0) return false;
    }
  Stream stream = given;
  stream.queue = queue.get();
  std::vector<std::vector<KvRun>> runs(at_once);
  const Drained drained{queue};

  for (size_t first = 0; first < planes.size(); first += at_once) {
    take_break(given);
    throw_if_cancelled(given);
    const size_t count = std::min(at_once, planes.size() - first);
    std::vector<IndexArgs> args;
    std::vector<IndexResult> results(count);
    std::vector<CopyPiece> back;
    for (size_t i = 0; i < count; ++i) {
      const size_t plane = planes[first + i];
      runs[i].clear();
      runs_of(plane, runs[i]);
      args.push_back(room.args_of_device(segment, plane, runs[i]));
      std::byte* const out = memory + at_once * each.work + i * (each.places + each.index);
      back.push_back({args[i].places, out, static_cast<size_t>(tokens) * sizeof(int32_t)});
      back.push_back({args[i].index, out + each.places, 0});
      args[i].places = reinterpret_cast<int32_t*>(out);
      args[i].index = out + each.places;
    }
    policy.index_planes(stream, args.data(), static_cast<int32_t>(count), memory, results.data());
    queue.finish();
    for (size_t i = 0; i < count; ++i) {
      back[2 * i + 1].bytes = results[i].index_bytes;
      room.set_result(planes[first + i], results[i]);
    }
    std::erase_if(back, [](const CopyPiece& piece) { return piece.bytes == 0; });
    segment.memory().copy(back);
  }
  return true;
}

uint64_t indexing_bytes(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                        int32_t tokens, size_t most_bytes) {
  const size_t planes = static_cast<size_t>(shape.indexed_layers()) * static_cast<size_t>(shape.kv_heads);
  if (!policy.index_planes || planes == 0) return 0;
  const PlaneRoom each = plane_room(shape, policy, params, tokens);
  return each.at_once(most_bytes, planes) * each.bytes();
}

std::vector<size_t> indexed_planes(const KvShape& shape) {
  const auto heads = static_cast<size_t>(shape.kv_heads);
  std::vector<size_t> planes;
  for (size_t plane = 0; plane < static_cast<size_t>(shape.layers) * heads; ++plane)
    if (!shape.window(static_cast<int32_t>(plane / heads))) planes.push_back(plane);
  return planes;
}

}  // namespace wi
