// Prefill runs a chunk through the layers as decode.cpp does a token, but attends exactly to all that came
// before, as published (RetroInfer §4.4: the index is for decoding; prefill only builds it).
#include "src/prefill.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/cancel.h"

namespace wi {
namespace {

int64_t piece_of(int64_t left);
void run_piece(const Step& step, Sequence& sequence, int64_t position, std::span<const int32_t> tokens,
               PrefillLogits wanted, float* logits_out, SegmentAhead* ahead);
void append(const Step& step, Sequence& sequence, int32_t layer, int64_t position, int64_t rows);
void attend_exactly(const Step& step, const Sequence& sequence, int32_t layer, int64_t chunk_end,
                    int64_t first, int64_t rows);
void finish(const Step& step, const Sequence& sequence);

}  // namespace

void prefill_chunk(const Step& given, Sequence& sequence, std::span<const int32_t> tokens,
                   PrefillLogits wanted, float* logits_out, int64_t unwanted, SegmentAhead* ahead) {
  const Stream queued = given.work.on_device(given.stream);
  UnsetFloats room;  // a device that is still at work when a chunk is given up writes its logits here
  const Workspace::Running running(given.work);
  const Step step{given.backend, queued, given.model, given.work, given.buffer, given.rows_alike};
  for (size_t done = 0; done < tokens.size();) {
    const auto left = static_cast<int64_t>(tokens.size() - done);
    const auto count = static_cast<size_t>(piece_of(left));
    const PrefillLogits of_piece =
        wanted == PrefillLogits::last && done + count < tokens.size() ? PrefillLogits::none : wanted;
    const int64_t position = sequence.tokens() + static_cast<int64_t>(done);
    const std::span<const int32_t> piece = tokens.subspan(done, count);
    done += count;
    if (wanted != PrefillLogits::all) {
      run_piece(step, sequence, position, piece, of_piece, logits_out, ahead);
      continue;
    }
    const size_t vocab = static_cast<size_t>(step.model.config.vocab);
    const int64_t left_out = std::min(static_cast<int64_t>(count), unwanted);
    float* const out = left_out > 0 ? room.at_least(count * vocab) : logits_out;
    run_piece(step, sequence, position, piece, of_piece, out, ahead);
    const int64_t kept = static_cast<int64_t>(count) - left_out;
    if (left_out > 0) {
      given.stream.each(kept, [&](int64_t i, int) {
        std::memcpy(logits_out + static_cast<size_t>(i) * vocab,
                    out + static_cast<size_t>(left_out + i) * vocab, vocab * sizeof(float));
      });
      throw_if_cancelled(given.stream);
    }
    logits_out += static_cast<size_t>(kept) * vocab;
    unwanted -= left_out;
  }
}

namespace {

// A chunk is as long as the host likes, and what is computed at once would need as much memory. What is left beside
// whole pieces goes with the last one where it is few rows, for which other products might be chosen.
int64_t piece_of(int64_t left) {
  constexpr int64_t kPiece = 8192;
  return left < kPiece + kProductRows ? left : kPiece;
}

// Tokens from `position` on; those before it are committed or written by the pieces before.
void run_piece(const Step& step, Sequence& sequence, int64_t position, std::span<const int32_t> tokens,
               PrefillLogits wanted, float* logits_out, SegmentAhead* ahead) {
  const Model& model = step.model;
  const int64_t rows = static_cast<int64_t>(tokens.size());
  Workspace& work = step.work;
  // After the last layer only rows whose logits somebody wants matter.
  work.past.start(step.stream, sequence, model.config.layers - (wanted == PrefillLogits::none ? 1 : 0),
                  position + rows, work.queue());
  const struct Closing {
    Past& past;
    ~Closing() { past.close(); }
  } closing{work.past};

  work.prepare(model.config, rows);
  std::copy(tokens.begin(), tokens.end(), work.tokens.begin());
  rotation_tables(step, 0, position, rows);
  work.send(model.config, rows);
  embed(step, rows);
  for (int32_t layer = 0; layer < model.config.layers; ++layer) {
    const LayerWeights& weights = model.weights.layers[static_cast<size_t>(layer)];
    project(step, weights, rows);
    rotate(step, rows);
    throw_if_cancelled(step.stream);
    append(step, sequence, layer, position, rows);
    throw_if_cancelled(step.stream);  // what append skipped may not be committed, whatever comes after it
    if (ahead) ahead->layer_is_written(step.stream, layer, position + rows, *work.queue());

    const bool last_layer = layer + 1 == model.config.layers;
    const int64_t first = !last_layer || wanted == PrefillLogits::all ? 0
                          : wanted == PrefillLogits::last             ? rows - 1
                                                                      : rows;
    if (first == rows) return finish(step, sequence);
    attend_exactly(step, sequence, layer, position + rows, first, rows - first);
    throw_if_cancelled(step.stream);
    project_output(step, weights, first, rows - first);
    feed_forward(step, weights, first, rows - first);
    throw_if_cancelled(step.stream);
    if (work.queue()) work.queue()->keep_pace(step.stream);
  }
  const int64_t first = wanted == PrefillLogits::all ? 0 : rows - 1;
  logits(step, first, rows - first, logits_out);
  throw_if_cancelled(step.stream);
  finish(step, sequence);
}

void append(const Step& step, Sequence& sequence, int32_t layer, int64_t position, int64_t rows) {
  const ModelConfig& config = step.model.config;
  AppendRoom& room = step.work.append;
  room.runs.clear();
  sequence.places(layer, position, rows, 0, room.runs);
  room.largest.resize(static_cast<size_t>(config.layers) * room.runs.size());  // as many in each
  append(step.backend, step.stream, sequence.shape(), step.work.k, step.work.v,
         int64_t{config.kv_heads} * config.head_dim, room.runs,
         room.largest.data() + static_cast<size_t>(layer) * room.runs.size());
}

// What came out: whether it is right.
void finish(const Step& step, const Sequence& sequence) {
  step.work.finish();
  const AppendRoom& room = step.work.append;
  const uint32_t* largest = room.largest.data();  // (layers, runs)
  for (int32_t layer = 0; layer < step.model.config.layers; ++layer, largest += room.runs.size())
    check_kv_range(sequence.shape().dtype, *std::max_element(largest, largest + room.runs.size()), layer);
}

// Rows [first, first + rows) of the chunk, which are its last ones, over all tokens before them or over what
// their window shows. Where all are seen the order of tokens within a segment does not matter: all of them are
// before the chunk.
void attend_exactly(const Step& step, const Sequence& sequence, int32_t layer, int64_t chunk_end,
                    int64_t first, int64_t rows) {
  const ModelConfig& config = step.model.config;
  Workspace& work = step.work;
  const int32_t window = sequence.shape().window(layer);
  const int64_t oldest = window ? std::max<int64_t>(chunk_end - rows + 1 - window, 0) : 0;
  const size_t offset = static_cast<size_t>(first) * static_cast<size_t>(config.query_heads) *
                        static_cast<size_t>(config.head_dim);
  AttendChunkArgs args;
  args.queries = work.q + offset;
  args.rows = rows;
  args.kv_heads = config.kv_heads;
  args.group = config.group();
  args.head_dim = config.head_dim;
  args.kv = sequence.shape().dtype;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  args.window = window;
  args.out = work.attended + offset;
  args.lse = nullptr;
  const bool wide = step.model.weights.layers[static_cast<size_t>(layer)].q.type == DType::f32;
  args.precision = wide ? Precision::f32 : step.model.precision;
  const auto attend = [&](const Past::Part& part) {
    work.past.open(step.stream, sequence, part);
    args.runs = work.past.runs();
    args.run_count = work.past.run_counts();
    step.backend.attend_chunk(step.stream, args);
  };
  const bool in_parts = sequence.slow_segments() || sequence.slow_blocks() || sequence.pinned_segments();
  if (!work.queue() || (in_parts && !window))
    args.state = work.state_of_parts(static_cast<size_t>(rows) * static_cast<size_t>(config.query_heads) * 2);
  if (window || !in_parts) return attend({layer, oldest, chunk_end});

  for (Past::Part part = work.past.first_of(layer); part.layer == layer; part = work.past.following(part)) {
    args.first_key = part.first;
    args.keys_after = chunk_end - part.end;
    attend(part);
    throw_if_cancelled(step.stream);
    if (work.queue()) work.queue()->keep_pace(step.stream);
  }
}

}  // namespace

int64_t prefill_chunk_step(const ModelConfig& config) { return config.ffn <= 8192 ? 2048 : 1024; }
int64_t prefill_chunk_tokens(const ModelConfig& config) { return prefill_chunk_step(config) + kSinkTokens; }

}  // namespace wi
