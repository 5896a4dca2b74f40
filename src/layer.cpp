#include "src/layer.h"

#include <cmath>

namespace wi {
namespace {

void rms_norm(const Step& step, const float* in, const float* weight, float* out, int64_t rows, int64_t cols,
              int64_t stride) {
  step.backend.rms_norm(step.stream,
                        {in, stride, weight, out, stride, rows, cols, step.model.config.rms_epsilon});
}

// A product of work's rows as this step wants it.
MatmulArgs product(const Step& step, const float* in, int64_t rows, int32_t part_count) {
  MatmulArgs args{in, rows, {}, part_count};
  args.precision = step.model.precision;
  args.rows_alike = step.rows_alike;
  return args;
}

}  // namespace

void embed(const Step& step, int64_t rows) {
  step.backend.embed(step.stream,
                     {step.model.weights.embedding, step.work.sent.tokens, rows, step.work.hidden});
}

// Angles in f64: at a million tokens an f32 product of position and frequency is off by hundredths of a
// radian.
void rotation_tables(const Step& step, int64_t row, int64_t position, int64_t count) {
  const RopeFrequencies& rope = step.model.rope;
  const size_t half = rope.frequency.size();
  for (int64_t i = 0; i < count; ++i) {
    float* cos = step.work.cos + static_cast<size_t>(row + i) * half;
    float* sin = step.work.sin + static_cast<size_t>(row + i) * half;
    for (size_t pair = 0; pair < half; ++pair) {
      const double angle = static_cast<double>(position + i) * rope.frequency[pair];
      cos[pair] = static_cast<float>(std::cos(angle) * rope.magnitude);
      sin[pair] = static_cast<float>(std::sin(angle) * rope.magnitude);
    }
  }
}

void project(const Step& step, const LayerWeights& layer, int64_t rows) {
  const ModelConfig& config = step.model.config;
  Workspace& work = step.work;
  rms_norm(step, work.hidden, layer.attention_norm, work.normed, rows, config.hidden, config.hidden);
  MatmulArgs args = product(step, work.normed, rows, 3);
  args.parts[0] = {layer.q, layer.q_bias, work.q, false};
  args.parts[1] = {layer.k, layer.k_bias, work.k, false};
  args.parts[2] = {layer.v, layer.v_bias, work.v, false};
  step.backend.matmul(step.stream, args);
  if (config.qk_norm) {
    rms_norm(step, work.q, layer.q_norm, work.q, rows * config.query_heads, config.head_dim, config.head_dim);
    rms_norm(step, work.k, layer.k_norm, work.k, rows * config.kv_heads, config.head_dim, config.head_dim);
  }
}

RopeArgs rotation(const Step& step, float* x, int32_t heads, int64_t rows) {
  const ModelConfig& config = step.model.config;
  return {x,
          int64_t{heads} * config.head_dim,
          rows,
          heads,
          config.head_dim,
          config.rotary,
          step.work.sent.cos,
          step.work.sent.sin,
          config.rope_interleaved};
}

void rotate(const Step& step, int64_t rows) {
  step.backend.rope(step.stream, rotation(step, step.work.q, step.model.config.query_heads, rows));
  step.backend.rope(step.stream, rotation(step, step.work.k, step.model.config.kv_heads, rows));
}

void project_output(const Step& step, const LayerWeights& layer, int64_t first, int64_t rows) {
  const ModelConfig& config = step.model.config;
  MatmulArgs args = product(step, step.work.attended + first * config.query_heads * config.head_dim, rows, 1);
  args.parts[0] = {layer.o, layer.o_bias, step.work.hidden + first * config.hidden, true};
  step.backend.matmul(step.stream, args);
}

void feed_forward(const Step& step, const LayerWeights& layer, int64_t first, int64_t rows) {
  const ModelConfig& config = step.model.config;
  Workspace& work = step.work;
  float* hidden = work.hidden + first * config.hidden;
  rms_norm(step, hidden, layer.ffn_norm, work.normed, rows, config.hidden, config.hidden);
  MatmulArgs widen = product(step, work.normed, rows, 2);
  widen.parts[0] = {layer.gate, nullptr, work.gate, false};
  widen.parts[1] = {layer.up, nullptr, work.up, false};
  step.backend.matmul(step.stream, widen);
  step.backend.swiglu(step.stream, {work.gate, work.up, work.gate, rows * config.ffn});
  MatmulArgs narrow = product(step, work.gate, rows, 1);
  narrow.parts[0] = {layer.down, nullptr, hidden, true};
  step.backend.matmul(step.stream, narrow);
}

void logits(const Step& step, int64_t first, int64_t rows, float* out) {
  const ModelConfig& config = step.model.config;
  rms_norm(step, step.work.hidden + first * config.hidden, step.model.weights.output_norm, step.work.normed,
           rows, config.hidden, config.hidden);
  MatmulArgs args = product(step, step.work.normed, rows, 1);
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(config.vocab);
  args.parts[0] = {step.model.weights.output, nullptr, step.work.results(out, count), false};
  step.backend.matmul(step.stream, args);
  step.work.fetch(out, count);
}

}  // namespace wi
