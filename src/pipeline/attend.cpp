// Attend: exact attention over the steady zone and what was retrieved, then the estimate of the rest merged
// in by LSE (RetroInfer §4.2, tripartite attention).
#include "src/pipeline/pipeline.h"

namespace wi {

void attend(const Backend& backend, const Stream& stream, const LanePart& part) {
  StageTimer timer(part.times.attend_ns);
  backend.attend(stream, part.args);
}

void estimate(const Stream& stream, const LanePart& part) {
  if (!part.policy.estimate) return;
  StageTimer timer(part.times.estimate_ns);
  part.policy.estimate(stream, part.args);
}

}  // namespace wi
