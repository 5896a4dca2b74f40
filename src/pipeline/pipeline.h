// The stages of attention in a decode step, in their order (SPIN's unified framework): Select picks
// partitions for each lane, Retrieve brings them to the fast tier, Attend reads them and the steady zone
// exactly, Estimate adds what was not read. Index and Offload are index.h.
#pragma once

#include "kernels/ops.h"
#include "src/pipeline/lanes.h"
#include "src/stats.h"

namespace wi {

void select(const Backend& backend, const Stream& stream, Lanes& lanes, StepStats& stats);
void retrieve(const Backend& backend, const Stream& stream, Lanes& lanes, StepStats& stats);
void attend(const Backend& backend, const Stream& stream, Lanes& lanes, StepStats& stats);
void estimate(const Backend& backend, const Stream& stream, Lanes& lanes, StepStats& stats);

}  // namespace wi
