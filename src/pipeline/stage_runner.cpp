#include "src/pipeline/stage_runner.h"

namespace wi {

void StageRunner::start(int workers) {
  times_of_.assign(static_cast<size_t>(workers), {});
  start_ = std::chrono::steady_clock::now();
}

// Workers' times side by side, shrunk to the time that passed.
void StageRunner::add_times(StepStats& times) const {
  constexpr uint64_t StepStats::*kStages[] = {&StepStats::select_ns, &StepStats::retrieve_ns,
                                              &StepStats::attend_ns, &StepStats::estimate_ns};
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start_;
  double all = 1;
  for (const WorkerTimes& worker : times_of_)
    for (auto stage : kStages) all += static_cast<double>(worker.times.*stage);
  const double share = static_cast<double>(passed.count()) / all;
  for (const WorkerTimes& worker : times_of_)
    for (auto stage : kStages)
      times.*stage += static_cast<uint64_t>(share * static_cast<double>(worker.times.*stage));
}

}  // namespace wi
