// The stages of attention in a decode step, in their order (SPIN's unified framework): Select picks
// partitions for each lookup, Retrieve brings them to the fast tier, Attend reads them and the steady zone
// exactly, Estimate adds what was not read. Each is for the lookups of a pass (attention.h). Index and
// Offload are index.h.
#pragma once

#include "kernels/ops.h"
#include "src/pipeline/attention.h"

namespace wi {

void select(const Stream& stream, const Pass& pass);
void retrieve(const Backend& backend, const Stream& stream, const Pass& pass);
void attend(const Backend& backend, const Stream& stream, const Pass& pass);
void estimate(const Stream& stream, const Pass& pass);

}  // namespace wi
