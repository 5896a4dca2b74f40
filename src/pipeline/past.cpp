#include "src/pipeline/past.h"

#include <algorithm>

#include "src/cancel.h"

namespace wi {

void Past::open(const Stream& stream, const Sequence& sequence, int32_t layer, int64_t first, int64_t end) {
  const KvShape& shape = sequence.shape();
  const size_t heads = static_cast<size_t>(shape.kv_heads), row = shape.head_bytes();
  const size_t room = static_cast<size_t>(sequence.max_runs());
  if (runs_.size() < heads * room) runs_.resize(heads * room);
  runs_of_head_.resize(heads);
  run_counts_.resize(heads);
  pieces_.clear();
  size_t read = 0, rows = 0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    KvRun* const runs = runs_.data() + static_cast<size_t>(head) * room;
    runs_of_head_[static_cast<size_t>(head)] = runs;
    run_counts_[static_cast<size_t>(head)] = sequence.runs(layer, head, first, end, runs);
    if (!sequence.slow_segments()) continue;
    // As runs() has them: the sink, then segment by segment.
    int32_t number = first < std::min<int64_t>(kSinkTokens, sequence.tokens()) ? 1 : 0;
    const SegmentView* view = sequence.views(layer, head);
    for (const auto& segment : sequence.segments()) {
      const bool is_slow = view++->slow != nullptr;
      const int64_t from = std::max(first, segment->first_position()),
                    to = std::min(end, segment->end_position());
      if (from >= to) continue;
      if (is_slow) {
        const SlowKv* const slow = segment->slow();
        const size_t plane = static_cast<size_t>(layer) * heads + static_cast<size_t>(head);
        const auto count = static_cast<int32_t>(to - from);
        pieces_.push_back({slow, plane, static_cast<int32_t>(from - segment->first_position()), count, read,
                           rows, runs + number});
        read += 2 * row * static_cast<size_t>(count + 2 * kFrameTokens);  // with the pages that it cuts
        rows += 2 * row * static_cast<size_t>(count);
      }
      ++number;
    }
  }
  if (pieces_.empty()) return;

  if (read_.size() < read) read_.resize(read);
  if (rows_.size() < rows) rows_.resize(rows);
  requests_.clear();
  for (const Piece& piece : pieces_)
    requests_.push_back(
        piece.slow->request(piece.plane, piece.first, piece.count, read_.data() + piece.read));
  if (file_ != pieces_[0].slow->file()) {
    reader_.reset();
    file_ = pieces_[0].slow->file();
  }
  if (!reader_) reader_ = std::make_unique<SpillReader>(file_);
  reader_->read(requests_, stream.cancel);
  stream.each(static_cast<int64_t>(pieces_.size()), [&](int64_t i, int) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    std::byte *const keys = rows_.data() + piece.rows, *const values =
                                                           keys + row * static_cast<size_t>(piece.count);
    piece.slow->unpack(piece.plane, piece.first, piece.count, read_.data() + piece.read, keys, values);
    *piece.run = {keys, values, piece.count};
  });
  throw_if_cancelled(stream);
}

}  // namespace wi
