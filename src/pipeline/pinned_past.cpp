#include "src/pipeline/pinned_past.h"

#include <algorithm>
#include <span>

namespace wi {

void PinnedPast::open(Queue& queue, const Sequence& sequence, const PastPart& part, const PastPart& next,
                      KvRun* runs, size_t most) {
  if (windows_[current_].part != part) current_ = 1 - current_;
  Window& now = windows_[current_];
  if (now.part != part) {
    queue.fetch_after();
    fetch(queue, sequence, part, now);
  }
  queue.await_fetched();
  for (const Piece& piece : now.pieces) {
    KvRun& run = runs[static_cast<size_t>(piece.head) * most + static_cast<size_t>(piece.run)];
    run.keys = now.room + piece.at;
    run.values = now.room + piece.at + piece.bytes;
  }
  // The part before this one is attended to by what the queue was asked for so far: its window is free after that.
  queue.fetch_after();
  Window& other = windows_[1 - current_];
  other.part = {};
  if (next.layer >= 0) fetch(queue, sequence, next, other);
}

void PinnedPast::fetch(Queue& queue, const Sequence& sequence, const PastPart& part, Window& to) {
  const KvShape& shape = sequence.shape();
  const size_t row = shape.head_bytes();
  const std::span<const std::shared_ptr<const Segment>> segments = sequence.segments();
  to.pieces.clear();
  size_t bytes = 0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const SegmentView* const views = sequence.views(part.layer, head);
    // As Sequence::runs() has them: the sink, then segment by segment.
    int32_t run = part.first < std::min<int64_t>(kSinkTokens, sequence.tokens()) ? 1 : 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const int64_t begin = segments[i]->first_position();
      const int64_t from = std::max(part.first, begin), end = std::min(part.end, segments[i]->end_position());
      if (from >= end) continue;
      if (sequence.in_pinned_memory(i)) {
        const size_t skip = static_cast<size_t>(from - begin) * row,
                     half = static_cast<size_t>(end - from) * row;
        to.pieces.push_back({head, run, static_cast<const std::byte*>(views[i].keys) + skip,
                             static_cast<const std::byte*>(views[i].values) + skip, half, bytes});
        bytes += 2 * half;
      }
      ++run;
    }
  }
  to.part = part;
  if (to.pieces.empty()) return;
  const size_t most =
      static_cast<size_t>(part.end - part.first) * 2 * row * static_cast<size_t>(shape.kv_heads);
  to.room =
      queue.room(&to == windows_ ? Queue::kPast : Queue::kNextPast, most);  // the next part is no longer
  for (const Piece& piece : to.pieces) {
    queue.fetch(to.room + piece.at, piece.keys, piece.bytes);
    queue.fetch(to.room + piece.at + piece.bytes, piece.values, piece.bytes);
  }
}

}  // namespace wi
