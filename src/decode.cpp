// THE DECODE STEP. Read this file first: it is the forward pass of a transformer in which attention looks
// keys up in an index instead of reading the whole cache (RetroInfer §4, with SPIN's names for the stages).
#include "src/decode.h"

#include "src/cancel.h"
#include "src/pipeline/pipeline.h"

namespace wi {
namespace {

constexpr size_t kMostWithoutTurns = 64;  // rows of a step

void begin(const Step& step, std::span<const Row> rows);
void rotate_and_append(const Step& step, std::span<const Row> rows, int32_t layer);
void emit_logits(const Step& step, std::span<const Row> rows);
void sample(const Step& step, std::span<const Row> rows, size_t first);
void finish(const Step& step, std::span<const Row> rows);

}  // namespace

void decode_step(const Step& given, std::span<const Row> rows, StepStats& times) {
  const Stream queued = given.work.on_device(given.stream);
  const Retrieval::Use using_buffer(given.work.retrieval, given.buffer);  // ends after all that is queued
  const Workspace::Running running(given.work);
  Step step{given.backend, queued, given.model, given.work, given.buffer};
  step.rows_alike = true;  // a session's logits do not depend on its company
  const Model& model = step.model;
  const int64_t row_count = static_cast<int64_t>(rows.size());
  Attention& attention = step.work.attention;

  {
    StageTimer timer(times.weights_ns);
    begin(step, rows);
    embed(step, row_count);
  }
  for (int32_t layer = 0; layer < model.config.layers; ++layer) {
    const LayerWeights& weights = model.weights.layers[static_cast<size_t>(layer)];
    {
      StageTimer timer(times.weights_ns);
      project(step, weights, row_count);
      rotate_and_append(step, rows, layer);
    }

    attention.open(layer, step.work.q, step.work.attended, step.work.lse);
    while (attention.next_pass()) {
      attention.run(step.stream, times, [&](const Stream& stream, const Pass& pass) {
        select(stream, pass);                  // rank partitions, split them into zones
        retrieve(step.backend, stream, pass);  // bring what was picked to the fast tier
        attend(step.backend, stream, pass);    // steady zone and retrieved partitions, exactly
        estimate(stream, pass);                // the next ones by their index; merge by LSE
      });
    }
    throw_if_cancelled(step.stream);

    StageTimer timer(times.weights_ns);
    project_output(step, weights, 0, row_count);
    feed_forward(step, weights, 0, row_count);
    // More, of a prompt or a large batch, take long: others have their turn between layers.
    if (rows.size() > kMostWithoutTurns && given.work.queue()) given.work.queue()->keep_pace(step.stream);
  }
  StageTimer timer(times.weights_ns);
  emit_logits(step, rows);
  finish(step, rows);
}

namespace {

// In room of their own: the last layer's are there however often lists have the queue finished before it (attention.h).
const AppendRun* sent_runs(Queue& queue, std::span<const AppendRun> runs) {
  auto* const there = reinterpret_cast<AppendRun*>(queue.room(Queue::kAppendRuns, runs.size_bytes()));
  queue.upload(there, runs.data(), runs.size_bytes());
  return there;
}

// By what tokens are picked: of all rows, if of one.
const SamplingRow* sent_sampling(Workspace& work, std::span<const Row> rows) {
  if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.sampled; })) return nullptr;
  work.sampling_rows.clear();
  for (const Row& row : rows) work.sampling_rows.push_back(row.sampling);
  const size_t bytes = rows.size() * sizeof(SamplingRow);
  auto* const there = reinterpret_cast<SamplingRow*>(work.queue()->room(Queue::kSampling, bytes));
  work.queue()->upload(there, work.sampling_rows.data(), bytes);
  return there;
}

// All that changes from step to step comes in here.
void begin(const Step& step, std::span<const Row> rows) {
  Workspace& work = step.work;
  // Of many rows a device has enough to do while the host goes on.
  constexpr size_t kMostInOneCall = 8;
  if (work.queue() && rows.size() <= kMostInOneCall) work.queue()->begin_step();
  work.prepare(step.model.config, static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    work.tokens[i] = rows[i].token;
    rotation_tables(step, static_cast<int64_t>(i), rows[i].position, 1);
  }
  work.send(step.model.config, static_cast<int64_t>(rows.size()));
  work.attention.begin(rows, step.model.config.group(), step.buffer ? &work.retrieval : nullptr,
                       work.queue());
  AppendRoom& room = work.append;  // where each layer's keys and values go
  room.runs.clear();
  for (int32_t layer = 0; layer < step.model.config.layers; ++layer)
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i].sequence->places(layer, rows[i].position, 1, static_cast<int64_t>(i), room.runs);
  room.largest.resize(room.runs.size());
  room.runs_there = work.queue() ? sent_runs(*work.queue(), room.runs) : nullptr;
  work.sampling_there = sent_sampling(work, rows);
}

// Queries and keys turn with their positions, then keys and values join the tail before anybody attends: a token sees
// itself.
void rotate_and_append(const Step& step, std::span<const Row> rows, int32_t layer) {
  const ModelConfig& config = step.model.config;
  const auto row_count = static_cast<int64_t>(rows.size());
  Workspace& work = step.work;
  AppendRoom& room = work.append;
  const size_t first = static_cast<size_t>(layer) * rows.size();
  const AppendArgs tail{work.k,
                        work.v,
                        int64_t{config.kv_heads} * config.head_dim,
                        config.kv_heads,
                        config.head_dim,
                        room.runs.data() + first,
                        row_count,
                        room.largest.data() + first,
                        room.runs_there ? room.runs_there + first : nullptr};
  if (step.backend.rotate_append)
    return step.backend.rotate_append(step.stream,
                                      {rotation(step, work.q, config.query_heads, row_count),
                                       rotation(step, work.k, config.kv_heads, row_count), tail});
  rotate(step, row_count);
  step.backend.append(step.stream, tail);
}

// Runs of rows that want logits, each straight to its place where places are consecutive; and what a device makes of them
// while it has them.
void emit_logits(const Step& step, std::span<const Row> rows) {
  const size_t vocab = static_cast<size_t>(step.model.config.vocab);
  for (size_t first = 0; first < rows.size();) {
    size_t count = 0;
    while (first + count < rows.size() && rows[first].logits &&
           rows[first + count].logits == rows[first].logits + count * vocab &&
           rows[first + count].sampled == (rows[first].sampled ? rows[first].sampled + count : nullptr))
      ++count;
    if (count) logits(step, static_cast<int64_t>(first), static_cast<int64_t>(count), rows[first].logits);
    if (count && rows[first].sampled) sample(step, rows.subspan(first, count), first);
    first += count ? count : 1;
  }
}

// Of rows whose logits were the last to be computed, the first of them the step's row `first`.
void sample(const Step& step, std::span<const Row> rows, size_t first) {
  const int64_t vocab = step.model.config.vocab;
  const size_t numbers = rows.size() * static_cast<size_t>(vocab);
  step.backend.sample(step.stream,
                      {step.work.results(rows[0].logits, numbers), static_cast<int64_t>(rows.size()), vocab,
                       step.work.sampling_there + first, rows[0].sampled});
}

// What came out leaves here: whether it is right, and what was counted.
void finish(const Step& step, std::span<const Row> rows) {
  throw_if_cancelled(step.stream);
  step.work.attention.fetch();
  step.work.finish();
  const uint32_t* largest = step.work.append.largest.data();  // (layers, rows)
  for (int32_t layer = 0; layer < step.model.config.layers; ++layer) {
    for (const Row& row : rows) {
      const DType kv = row.sequence->shape().dtype;
      const uint32_t magnitude = *largest++;
      if (kv_holds(kv, magnitude)) continue;
      check_kv_range(kv, magnitude, layer, row.session < 0 ? "" : concat("sessions[", row.session, "]: "));
    }
  }
  step.work.attention.finish();
}

}  // namespace
}  // namespace wi
