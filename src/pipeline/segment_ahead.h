// A segment that a device indexes while the chunk of a prompt is computed that brings its last tokens: the planes of a
// layer as soon as it has written its keys and values, on a queue of their own, beside the layers that follow
// (RetroInfer §4.4). It takes its place when it would be made otherwise, by build_segment(), and is the same to the byte.
#pragma once

#include <memory>
#include <optional>

#include "src/pipeline/device_index.h"

namespace wi {

class SegmentAhead {
 public:
  // The next of a sequence that has room for its last tokens. context.queue: nobody else asks it for anything until
  // wait(). Null: it is made when it is due, for the device does not index it, or has no room before it must.
  static std::unique_ptr<SegmentAhead> begin(const Sequence& sequence, SegmentSpan span,
                                             const SealContext& context);

  const SegmentSpan& span() const { return span_; }
  uint64_t device_bytes() const { return segment_->bytes() + room_.device_bytes(); }
  // `by` was asked for all keys and values of the layer up to `end`; of a later call for the layer nothing comes.
  void layer_is_written(const Stream& stream, int32_t layer, int64_t end, const Queue& by);
  // All layers are. Throws as PlanesOnDevice::finish(): then there is nothing of it.
  void wait(const Stream& stream);
  bool is_indexed() const { return !planes_; }  // but for layers with a window

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  IndexRoom& room() { return room_; }

 private:
  SegmentAhead(const Sequence& sequence, SegmentSpan span, const SealContext& context);

  const Sequence& sequence_;
  const SegmentSpan span_;
  Queue& queue_;
  const std::shared_ptr<Segment> segment_;
  IndexRoom room_;
  std::optional<PlanesOnDevice> planes_;  // until wait()
  int32_t layers_ = 0;                    // written
};

}  // namespace wi
