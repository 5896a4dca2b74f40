#include "src/pipeline/append.h"

#include <algorithm>

namespace wi {

void append(const Backend& backend, const Stream& stream, const KvShape& shape, const float* keys,
            const float* values, int64_t stride, std::span<const AppendRun> runs, uint32_t* largest) {
  backend.append(stream, {keys, values, stride, shape.kv_heads, shape.head_dim, runs.data(),
                          static_cast<int64_t>(runs.size()), largest});
}

uint32_t append(const Backend& backend, const Stream& stream, Sequence& sequence, int32_t layer,
                int64_t first, int64_t count, const float* keys, const float* values, int64_t stride,
                AppendRoom& room) {
  room.runs.clear();
  sequence.places(layer, first, count, 0, room.runs);
  room.largest.resize(room.runs.size());
  append(backend, stream, sequence.shape(), keys, values, stride, room.runs, room.largest.data());
  return room.largest.empty() ? 0 : *std::max_element(room.largest.begin(), room.largest.end());
}

}  // namespace wi
