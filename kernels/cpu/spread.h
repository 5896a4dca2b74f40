// When element-wise work is spread over the workers, and in what pieces. A fork and a join take about half a microsecond
// (src/memory/team.h), in which a worker does a thousand elements or two: few workers save less by it than it takes
// until there are tens of thousands of them, many already with some thousand. No result depends on it.
#pragma once

#include <algorithm>

#include "kernels/cpu/activations.h"
#include "kernels/types.h"

namespace wi::cpu {

constexpr int kFewWorkers = 4;
constexpr int64_t kFewElements = 32768, kFewElementsOfMany = 4096;

// So many elements one worker does sooner than all of them do.
inline int64_t few_elements(const Stream& stream) {
  return stream.workers > kFewWorkers ? kFewElementsOfMany : kFewElements;
}

// Calls body(row, chunk, end) for runs of chunks of columns (activations.h) that together are all of all rows.
template <class Body>
void each_run_of_chunks(const Stream& stream, int64_t rows, int64_t cols, const Body& body) {
  const int64_t chunks = Activations::chunks_for(cols);
  if (rows * cols <= few_elements(stream)) {
    for (int64_t row = 0; row < rows; row++) body(row, 0, chunks);
    return;
  }
  constexpr int64_t kChunksOfRun = 4;
  const int64_t each = rows < 4 * stream.workers ? kChunksOfRun : chunks;
  const int64_t runs = (chunks + each - 1) / each;
  stream.each(rows * runs, [&](int64_t task, int) {
    const int64_t chunk = task % runs * each;
    body(task / runs, chunk, std::min(chunks, chunk + each));
  });
}

}  // namespace wi::cpu
