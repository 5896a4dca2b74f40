// Select: the policy ranks the partitions of every lookup's segments and splits them into zones.
#include "src/pipeline/pipeline.h"

namespace wi {

void select(const Stream& stream, const Pass& pass) {
  StageTimer timer(pass.times.select_ns);
  pass.policy.select(stream, pass.args);
}

}  // namespace wi
