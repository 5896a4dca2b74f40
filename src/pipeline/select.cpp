// Select: the policy ranks the partitions of every lane's segments and splits them into zones.
#include "src/pipeline/pipeline.h"

namespace wi {

void select(const Stream& stream, const LanePart& part) {
  StageTimer timer(part.times.select_ns);
  part.policy.select(stream, part.args);
}

}  // namespace wi
