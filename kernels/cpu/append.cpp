// Keys and values of new tokens into the KV cache: bound by memory, a run of tokens a task.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spread.h"

namespace wi::cpu {
namespace {

uint32_t append_run(const AppendArgs& args, const AppendRun& run) {
  const size_t row_size = row_bytes(run.kv, args.head_dim);
  uint32_t largest = 0;
  for (int64_t i = 0; i < run.rows; i++) {
    const int64_t row = (run.row + i) * args.stride;
    for (int32_t head = 0; head < args.kv_heads; head++) {
      const int64_t from = row + int64_t{head} * args.head_dim;
      const size_t to = static_cast<size_t>(head) * run.head_stride + static_cast<size_t>(i) * row_size;
      largest = std::max({largest, to_kv(args.keys + from, run.kv, run.keys + to, args.head_dim),
                          to_kv(args.values + from, run.kv, run.values + to, args.head_dim)});
    }
  }
  return largest;
}

}  // namespace

void append(const Stream& stream, const AppendArgs& args) {
  int64_t rows = 0;
  for (int64_t i = 0; i < args.run_count; i++) rows += args.runs[i].rows;
  const auto run = [&](int64_t i, int) { args.largest[i] = append_run(args, args.runs[i]); };
  if (rows * args.kv_heads * args.head_dim <= few_elements(stream)) {
    for (int64_t i = 0; i < args.run_count; i++) run(i, 0);
  } else {
    std::fill_n(args.largest, args.run_count, 0u);  // of those that a cancelled stream leaves out
    stream.each(args.run_count, run);
  }
}

}  // namespace wi::cpu
