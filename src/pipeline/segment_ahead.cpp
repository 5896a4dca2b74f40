#include "src/pipeline/segment_ahead.h"

#include <cassert>
#include <numeric>

#include "src/error.h"

namespace wi {

std::unique_ptr<SegmentAhead> SegmentAhead::begin(const Sequence& sequence, SegmentSpan span,
                                                  const SealContext& context) {
  const KvShape& shape = sequence.shape();
  if (!context.queue || !context.policy.index_planes || shape.indexed_layers() == 0) return nullptr;
  try {
    std::unique_ptr<SegmentAhead> ahead(new SegmentAhead(sequence, span, context));
    if (ahead->planes_->open(static_cast<size_t>(shape.kv_heads), kIndexingBytes)) return ahead;
  } catch (const Error& error) {
    if (error.code() != WI_E_BUDGET && error.code() != WI_E_MEMORY) throw;
  }
  return nullptr;
}

SegmentAhead::SegmentAhead(const Sequence& sequence, SegmentSpan span, const SealContext& context)
    : sequence_(sequence),
      span_(span),
      queue_(*context.queue),
      segment_(std::make_shared<Segment>(sequence.pools(), sequence.shape(), span.first, span.tokens)),
      room_(sequence.pools(), sequence.shape(), context.policy, context.params, span.tokens) {
  planes_.emplace(queue_, context.policy, context.params, *segment_, room_);
}

void SegmentAhead::layer_is_written(const Stream& stream, int32_t layer, int64_t end, const Queue& by) {
  if (layer != layers_ || end < span_.end()) return;
  ++layers_;
  const KvShape& shape = sequence_.shape();
  if (shape.window(layer)) return;
  std::vector<size_t> planes(static_cast<size_t>(shape.kv_heads));
  std::iota(planes.begin(), planes.end(), static_cast<size_t>(layer) * planes.size());
  const auto runs_of = [&](size_t plane, std::vector<KvRun>& runs) {
    find_runs(sequence_, span_, plane, runs);
  };
  queue_.follow(by);
  planes_->ask(stream, planes, runs_of, false);
}

void SegmentAhead::wait(const Stream& stream) {
  assert(layers_ == sequence_.shape().layers);
  planes_->finish(stream);
  planes_.reset();
}

}  // namespace wi
