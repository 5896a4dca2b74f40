// THE DECODE STEP. Read this file first: it is the forward pass of a transformer in which attention looks
// keys up in an index instead of reading the whole cache (RetroInfer §4, with SPIN's names for the stages).
#include "src/decode.h"

#include "src/cancel.h"
#include "src/pipeline/pipeline.h"

namespace wi {
namespace {

void gather(const Step& step, std::span<const DecodeRow> rows);
void append(const Step& step, std::span<const DecodeRow> rows, int32_t layer);
void emit_logits(const Step& step, std::span<const DecodeRow> rows, StepStats& times);

}  // namespace

void decode_step(const Step& given, std::span<const DecodeRow> rows, StepStats& times) {
  Step step = given;
  step.rows_alike = true;  // a session's logits do not depend on its company
  const Model& model = step.model;
  const int64_t row_count = static_cast<int64_t>(rows.size());
  Lanes& lanes = step.work.lanes;

  {
    StageTimer timer(times.weights_ns);
    gather(step, rows);
    embed(step, row_count);
  }
  for (int32_t layer = 0; layer < model.config.layers; ++layer) {
    const LayerWeights& weights = model.weights.layers[static_cast<size_t>(layer)];
    {
      StageTimer timer(times.weights_ns);
      project(step, weights, row_count);
      rotate(step, row_count);
      append(step, rows, layer);
    }

    lanes.open(step.work.attend_rows, layer, model.config.group(), step.work.q, step.work.attention, nullptr);
    while (lanes.next_pass()) {
      lanes.run(step.stream, times, [&](const Stream& stream, const LanePart& part) {
        select(stream, part);                // rank partitions, split them into zones
        retrieve(stream, part);              // bring what was picked to the fast tier
        attend(step.backend, stream, part);  // steady zone and retrieved partitions, exactly
        estimate(stream, part);              // the next ones by their index; merge by LSE
      });
    }
    throw_if_cancelled(step.stream);

    StageTimer timer(times.weights_ns);
    project_output(step, weights, 0, row_count);
    feed_forward(step, weights, 0, row_count);
  }
  emit_logits(step, rows, times);
  throw_if_cancelled(step.stream);
}

namespace {

void gather(const Step& step, std::span<const DecodeRow> rows) {
  Workspace& work = step.work;
  work.prepare(step.model.config, static_cast<int64_t>(rows.size()));
  work.attend_rows.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = rows[i];
    work.tokens[i] = row.token;
    rotation_tables(step, static_cast<int64_t>(i), row.position, 1);
    work.attend_rows.push_back(
        {row.sequence, row.position + 1, row.policy, row.params, row.stats, row.wanted});
  }
}

// Keys and values join the tail before anybody attends: a token sees itself.
void append(const Step& step, std::span<const DecodeRow> rows, int32_t layer) {
  const int64_t width = int64_t{step.model.config.kv_heads} * step.model.config.head_dim;
  AppendRoom& room = step.work.append;
  room.runs.clear();
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i].sequence->places(layer, rows[i].position, 1, static_cast<int64_t>(i), room.runs);
  append(step.backend, step.stream, rows[0].sequence->shape(), step.work.k, step.work.v, width, room);
  for (size_t i = 0; i < rows.size(); ++i) {
    const DType kv = room.runs[i].kv;
    if (kv_holds(kv, room.largest[i])) continue;
    check_kv_range(kv, room.largest[i], layer,
                   rows[i].session < 0 ? "" : concat("sessions[", rows[i].session, "]: "));
  }
}

// Runs of rows that want logits, each straight to its place where places are consecutive.
void emit_logits(const Step& step, std::span<const DecodeRow> rows, StepStats& times) {
  StageTimer timer(times.weights_ns);
  const size_t vocab = static_cast<size_t>(step.model.config.vocab);
  for (size_t first = 0; first < rows.size();) {
    size_t count = 0;
    while (first + count < rows.size() && rows[first].logits &&
           rows[first + count].logits == rows[first].logits + count * vocab)
      ++count;
    if (count) logits(step, static_cast<int64_t>(first), static_cast<int64_t>(count), rows[first].logits);
    first += count ? count : 1;
  }
}

}  // namespace
}  // namespace wi
