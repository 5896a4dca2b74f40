#include "kernels/cpu/output_tasks.h"

#include <algorithm>

namespace wi::cpu {
namespace {

// What a task reads: so little that each worker gets some, which evens them out, but long enough to hide its start.
constexpr int64_t kLeastTaskBytes = 32 << 10, kMostTaskBytes = 512 << 10;
constexpr int64_t kTasksOfWorker = 4;
constexpr int64_t kWholeTiles = 32;    // outputs: whole tiles and panels of every instruction set
constexpr int64_t kPanelOutputs = 64;  // of a task of many rows, where that makes enough tasks
constexpr int64_t kPanelTasksOfWorker = 3;

int64_t row_bytes_of(const MatmulPart& part) {
  return std::max<int64_t>(1, static_cast<int64_t>(row_bytes(part.weight.type, part.weight.cols)));
}

bool is_quantised(const MatmulPart& part) { return format_of(part.weight.type).elements > 1; }

}  // namespace

OutputTasks::OutputTasks(const MatmulArgs& args, int workers) : args_(args) {
  int64_t all_bytes = 0, panel_tasks = 0;
  for (int32_t p = 0; p < args.part_count; p++) {
    const MatmulPart& part = args.parts[p];
    all_bytes += part.weight.rows * row_bytes_of(part);
    panel_tasks += (part.weight.rows + kPanelOutputs - 1) / kPanelOutputs;
  }
  const int64_t task_bytes =
      std::clamp(all_bytes / (kTasksOfWorker * workers), kLeastTaskBytes, kMostTaskBytes);
  const int64_t panels = panel_tasks < kPanelTasksOfWorker * workers ? kWholeTiles : kPanelOutputs;
  for (int32_t p = 0; p < args.part_count; p++) {
    const MatmulPart& part = args.parts[p];
    const bool many_rows = args.rows > kDirectRows && is_quantised(part);
    const int64_t tiles = std::max<int64_t>(1, task_bytes / row_bytes_of(part) / kWholeTiles);
    step_[p] = many_rows ? panels : tiles * kWholeTiles;
    before_[p + 1] = before_[p] + (part.weight.rows + step_[p] - 1) / step_[p];
  }
}

OutputTasks::Task OutputTasks::operator[](int64_t task) const {
  int32_t p = 0;
  while (task >= before_[p + 1]) p++;
  const MatmulPart& part = args_.parts[p];
  const int64_t begin = (task - before_[p]) * step_[p];
  return {part, begin, std::min(begin + step_[p], part.weight.rows)};
}

}  // namespace wi::cpu
