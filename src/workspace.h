// The activations of one step: buffers that only grow, so that a decode step allocates nothing after warm-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/model/model.h"
#include "src/pipeline/append.h"
#include "src/pipeline/attention.h"
#include "src/pipeline/past.h"
#include "src/pipeline/row.h"
#include "src/sampling/sampler.h"
#include "src/stats.h"

namespace wi {

class Workspace {
 public:
  // Room for this many rows of activations. Their contents are undefined.
  void prepare(const ModelConfig& config, int64_t rows);
  size_t bytes() const;

  float *hidden = nullptr, *normed = nullptr;  // (rows, hidden)
  float *q = nullptr, *attended = nullptr;     // (rows, query_heads * head_dim)
  float *k = nullptr, *v = nullptr;            // (rows, kv_heads * head_dim)
  float *gate = nullptr, *up = nullptr;        // (rows, ffn)
  float *cos = nullptr, *sin = nullptr;        // (rows, rotary / 2)
  std::vector<int32_t> tokens;                 // (rows)
  AppendRoom append;
  Attention attention;
  Retrieval retrieval;
  std::vector<Row> rows;
  std::vector<WantedTokens> wanted;  // (rows, kMostWanted)
  std::vector<StepStats> row_stats;
  std::vector<float> row_logits;  // (rows, vocab)
  SamplerScratch sampling;
  Past past;                       // of prefill
  std::vector<float> chunk_state;  // likewise, where the past comes in parts
  size_t counted_bytes = 0;        // what the runtime has on its books for this workspace

 private:
  std::vector<float> memory_;
};

}  // namespace wi
