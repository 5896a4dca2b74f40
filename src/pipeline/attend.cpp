// Attend: exact attention over the steady zone and what was retrieved, then the estimate of the rest merged
// in by LSE (RetroInfer §4.2, tripartite attention).
#include "src/pipeline/pipeline.h"

namespace wi {

void attend(const Backend& backend, const Stream& stream, const Pass& pass) {
  StageTimer timer(pass.times.attend_ns);
  backend.attend(stream, pass.args);
}

void estimate(const Stream& stream, const Pass& pass) {
  if (!pass.policy.estimate) return;
  StageTimer timer(pass.times.estimate_ns);
  pass.policy.estimate(stream, pass.args);
}

}  // namespace wi
