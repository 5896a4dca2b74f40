// The decode step: one new token for each row, a row being a position of a session.
#pragma once

#include <span>

#include "src/layer.h"
#include "src/pipeline/row.h"

namespace wi {

// Rows may be of one session (a short chunk, in order of position) or of many (a batch). Nothing is
// committed: a step that throws leaves every sequence as it was. times: the step's stages.
void decode_step(const Step& step, std::span<const Row> rows, StepStats& times);

}  // namespace wi
