// The parts of a transformer layer that decode and prefill share: everything but attention.
#pragma once

#include <span>

#include "kernels/ops.h"
#include "src/model/model.h"
#include "src/workspace.h"

namespace wi {

// What every stage of a step needs.
struct Step {
  const Backend& backend;
  const Stream& stream;
  const Model& model;
  Workspace& work;
  WaveBuffer* buffer = nullptr;  // null: every segment is in the fast tier
  bool rows_alike = false;       // each row of a product is the same bits in any company (MatmulArgs)
};

// Products of many rows may be cut at multiples of so many, if no fewer are left, without changing a bit.
inline constexpr int64_t kProductRows = 256;

void embed(const Step& step, int64_t rows);  // work.tokens -> work.hidden
void rotation_tables(const Step& step, int64_t row, int64_t position,
                     int64_t count);  // cos, sin of consecutive positions
void project(const Step& step, const LayerWeights& layer,
             int64_t rows);  // work.hidden -> q, k, v, normed on the way
RopeArgs rotation(const Step& step, float* x, int32_t heads, int64_t rows);
void rotate(const Step& step, int64_t rows);  // q and k, in place
// work.attended -> work.hidden, then the feed-forward block; rows [first, first + rows).
void project_output(const Step& step, const LayerWeights& layer, int64_t first, int64_t rows);
void feed_forward(const Step& step, const LayerWeights& layer, int64_t first, int64_t rows);
// out (rows, vocab), there when the step is finished.
void logits(const Step& step, int64_t first, int64_t rows, float* out);

}  // namespace wi
