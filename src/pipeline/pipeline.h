// The stages of attention in a decode step, in their order (SPIN's unified framework): Select picks
// partitions for each lane, Retrieve brings them to the fast tier, Attend reads them and the steady zone
// exactly, Estimate adds what was not read. Each is for the lanes of a part (stage_runner.h). Index and
// Offload are index.h.
#pragma once

#include "kernels/ops.h"
#include "src/pipeline/lanes.h"

namespace wi {

void select(const Stream& stream, const LanePart& part);
void retrieve(const Stream& stream, const LanePart& part);
void attend(const Backend& backend, const Stream& stream, const LanePart& part);
void estimate(const Stream& stream, const LanePart& part);

}  // namespace wi
