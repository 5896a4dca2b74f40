#include "src/layer.h"

#include <algorithm>
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

// A host's product has tasks of some outputs of all rows. So many rows that reading the weights is little of one, and
// no more: a stream may be interrupted only between two, each of which takes a core some 4 GFLOP at most, or what a
// chunk of the library's own size does.
int64_t rows_at_once(int64_t inputs) {
  constexpr int64_t kRowInputs = int64_t{1} << 23;  // of 256 outputs
  return std::max<int64_t>(inputs <= 8192 ? 2048 : 1024, kRowInputs / inputs / kProductRows * kProductRows);
}

void multiply(const Step& step, const MatmulArgs& args) {
  const int64_t inputs = args.parts[0].weight.cols, most = rows_at_once(inputs);
  for (int64_t row = 0; row < args.rows;) {
    const int64_t left = args.rows - row;
    MatmulArgs some = args;
    some.rows = step.stream.queue || left < most + kProductRows ? left : most;
    some.in += row * inputs;
    for (int32_t p = 0; p < args.part_count; ++p) some.parts[p].out += row * args.parts[p].weight.rows;
    step.backend.matmul(step.stream, some);
    row += some.rows;
  }
}

}  // namespace

void embed(const Step& step, int64_t rows) {
  step.backend.embed(step.stream,
                     {step.model.weights.embedding, step.work.sent.tokens, rows, step.work.hidden});
}

// Angles in f64: at a million tokens an f32 product of position and frequency is off by hundredths of a
// radian.
void rotation_tables(const Step& step, int64_t row, int64_t position, int64_t count) {
  constexpr int64_t kRows = 32;  // of one task
  const RopeFrequencies& rope = step.model.rope;
  const size_t half = rope.frequency.size();
  const auto fill = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      float* cos = step.work.cos + static_cast<size_t>(row + i) * half;
      float* sin = step.work.sin + static_cast<size_t>(row + i) * half;
      for (size_t pair = 0; pair < half; ++pair) {
        const double angle = static_cast<double>(position + i) * rope.frequency[pair];
        cos[pair] = static_cast<float>(std::cos(angle) * rope.magnitude);
        sin[pair] = static_cast<float>(std::sin(angle) * rope.magnitude);
      }
    }
  };
  if (count <= kRows) return fill(0, count);
  step.stream.each((count + kRows - 1) / kRows,
                   [&](int64_t task, int) { fill(task * kRows, std::min(count, (task + 1) * kRows)); });
}

void project(const Step& step, const LayerWeights& layer, int64_t rows) {
  const ModelConfig& config = step.model.config;
  Workspace& work = step.work;
  rms_norm(step, work.hidden, layer.attention_norm, work.normed, rows, config.hidden, config.hidden);
  MatmulArgs args = product(step, work.normed, rows, 3);
  args.parts[0] = {layer.q, layer.q_bias, work.q, false};
  args.parts[1] = {layer.k, layer.k_bias, work.k, false};
  args.parts[2] = {layer.v, layer.v_bias, work.v, false};
  multiply(step, args);
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
  multiply(step, args);
}

void feed_forward(const Step& step, const LayerWeights& layer, int64_t first, int64_t rows) {
  const ModelConfig& config = step.model.config;
  Workspace& work = step.work;
  float* hidden = work.hidden + first * config.hidden;
  rms_norm(step, hidden, layer.ffn_norm, work.normed, rows, config.hidden, config.hidden);
  MatmulArgs widen = product(step, work.normed, rows, 2);
  widen.parts[0] = {layer.gate, nullptr, work.gate, false};
  widen.parts[1] = {layer.up, nullptr, work.up, false};
  multiply(step, widen);
  step.backend.swiglu(step.stream, {work.gate, work.up, work.gate, rows * config.ffn});
  MatmulArgs narrow = product(step, work.gate, rows, 1);
  narrow.parts[0] = {layer.down, nullptr, hidden, true};
  multiply(step, narrow);
}

void logits(const Step& step, int64_t first, int64_t rows, float* out) {
  const ModelConfig& config = step.model.config;
  rms_norm(step, step.work.hidden + first * config.hidden, step.model.weights.output_norm, step.work.normed,
           rows, config.hidden, config.hidden);
  MatmulArgs args = product(step, step.work.normed, rows, 1);
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(config.vocab);
  args.parts[0] = {step.model.weights.output, nullptr, step.work.results(out, count), false};
  multiply(step, args);
  step.work.fetch(out, count);
}

}  // namespace wi
