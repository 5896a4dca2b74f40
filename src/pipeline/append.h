// Append: keys and values of a layer's new tokens join their sequences' tails, before anybody attends.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/store/sequence.h"

namespace wi {

// Where a call's tokens go, and how large what was written is; kept, so that a step allocates nothing.
struct AppendRoom {
  std::vector<AppendRun> runs;            // of a layer of a prompt; of a step (layers, rows)
  const AppendRun* runs_there = nullptr;  // the same in a device's memory
  std::vector<uint32_t> largest;          // AppendArgs::largest; of a step (layers, runs)
};

// keys, values: (rows, kv_heads, head_dim) f32, row i at + i * stride, where the backend reads. largest: out
// (runs), for check_kv_range() when the step is finished.
void append(const Backend& backend, const Stream& stream, const KvShape& shape, const float* keys,
            const float* values, int64_t stride, std::span<const AppendRun> runs, uint32_t* largest);

// The same of one sequence's tokens [first, first + count), on the host's processor. Returns the largest magnitude, for
// check_kv_range().
[[nodiscard]] uint32_t append(const Backend& backend, const Stream& stream, Sequence& sequence, int32_t layer,
                              int64_t first, int64_t count, const float* keys, const float* values,
                              int64_t stride, AppendRoom& room);

}  // namespace wi
