// In which order lanes go through the stages of attention: all lanes stage by stage, every worker at each; or
// each lane through all its stages on one worker, while that worker's cache has what select wrote and
// estimate reads.
#pragma once

#include <chrono>
#include <vector>

#include "kernels/policy.h"
#include "src/stats.h"

namespace wi {

// Lanes that go through the stages together, and where the stages note how long they took.
struct LanePart {
  const Policy& policy;
  const LanesArgs args;
  StepStats& times;
};

class StageRunner {
 public:
  // Calls stages(stream, part) once with all the lanes, or for each of them on some worker where the policy
  // likes it so and there are lanes for all workers. Adds the stages' shares of the time that passed to
  // `times`.
  template <class Stages>
  void run(const Stream& stream, const Policy& policy, const LanesArgs& lanes, StepStats& times,
           Stages&& stages) {
    if (!policy.lane_by_lane || !stream.alone || lanes.lane_count < stream.workers)
      return stages(stream, LanePart{policy, lanes, times});
    start(stream.workers);
    stream.each(lanes.lane_count, [&](int64_t i, int worker) {
      LanesArgs one = lanes;
      one.lanes += i;
      one.lane_count = 1;
      stages(stream.alone(stream, worker),
             LanePart{policy, one, times_of_[static_cast<size_t>(worker)].times});
    });
    add_times(times);
  }

 private:
  void start(int workers);
  void add_times(StepStats& times) const;

  struct alignas(64) WorkerTimes {
    StepStats times;
  };
  std::vector<WorkerTimes> times_of_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace wi
