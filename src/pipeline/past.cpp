#include "src/pipeline/past.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/cancel.h"

namespace wi {

void Past::open(const Stream& stream, const Sequence& sequence, const Part& part, const Part& next) {
  const KvShape& shape = sequence.shape();
  const size_t heads = static_cast<size_t>(shape.kv_heads), row = shape.head_bytes();
  const size_t room = static_cast<size_t>(sequence.max_runs());
  if (runs_.size() < heads * room) runs_.resize(heads * room);
  runs_of_head_.resize(heads);
  run_counts_.resize(heads);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    KvRun* const runs = runs_.data() + static_cast<size_t>(head) * room;
    runs_of_head_[static_cast<size_t>(head)] = runs;
    run_counts_[static_cast<size_t>(head)] = sequence.runs(part.layer, head, part.first, part.end, runs);
  }
  if (!sequence.slow_segments()) return;

  fetch(stream, sequence, part);
  if (rows_.size() < now_.rows) rows_.resize(now_.rows);
  stream.each(static_cast<int64_t>(now_.pieces.size()), [&](int64_t i, int) {
    const Piece& piece = now_.pieces[static_cast<size_t>(i)];
    std::byte *const keys = rows_.data() + piece.rows, *const values =
                                                           keys + row * static_cast<size_t>(piece.count);
    piece.slow->unpack(piece.plane, piece.first, piece.count, now_.read.data() + piece.read, keys, values);
    runs_[static_cast<size_t>(piece.head) * room + static_cast<size_t>(piece.run)] = {keys, values,
                                                                                      piece.count};
  });
  throw_if_cancelled(stream);

  if (next.layer < 0 || !ahead_) return;
  try {
    plan(sequence, next, next_);
  } catch (const std::bad_alloc&) {
    return;  // then when it is wanted, if there is memory by then
  }
  if (next_.pieces.empty()) return;
  ahead_->begin(next_.requests, stream.cancel);
  reading_next_ = true;
}

void Past::close() noexcept {
  if (std::exchange(reading_next_, false)) ahead_->drop();
}

// The part's pieces are in now_, and read.
void Past::fetch(const Stream& stream, const Sequence& sequence, const Part& part) {
  if (reading_next_ && next_.part == part) {
    reading_next_ = false;
    ahead_->wait();
    std::swap(now_, next_);
    return;
  }
  close();
  plan(sequence, part, now_);
  if (now_.pieces.empty()) return;
  const std::shared_ptr<SpillFile>& file = now_.pieces[0].slow->file();
  if (file_ != file) {
    ahead_.reset();
    file_ = file;
  }
  if (!ahead_) ahead_ = std::make_unique<ReadAhead>(file_);
  ahead_->begin(now_.requests, stream.cancel);
  ahead_->wait();
}

void Past::plan(const Sequence& sequence, const Part& part, Slow& slow) {
  const KvShape& shape = sequence.shape();
  const size_t row = shape.head_bytes();
  slow.part = part;
  slow.pieces.clear();
  size_t read = 0, rows = 0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    // As Sequence::runs() has them: the sink, then segment by segment.
    int32_t run = part.first < std::min<int64_t>(kSinkTokens, sequence.tokens()) ? 1 : 0;
    for (const auto& segment : sequence.segments()) {
      const int64_t from = std::max(part.first, segment->first_position()),
                    to = std::min(part.end, segment->end_position());
      if (from >= to) continue;
      if (const SlowKv* const there = segment->slow()) {
        const size_t plane =
            static_cast<size_t>(part.layer) * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(head);
        const auto count = static_cast<int32_t>(to - from);
        slow.pieces.push_back({there, plane, static_cast<int32_t>(from - segment->first_position()), count,
                               read, rows, head, run});
        read += 2 * row * static_cast<size_t>(count + 2 * kFrameTokens);  // with the pages that it cuts
        rows += 2 * row * static_cast<size_t>(count);
      }
      ++run;
    }
  }
  slow.rows = rows;
  if (slow.read.size() < read) slow.read.resize(read);
  slow.requests.clear();
  for (const Piece& piece : slow.pieces)
    slow.requests.push_back(
        piece.slow->request(piece.plane, piece.first, piece.count, slow.read.data() + piece.read));
}

}  // namespace wi
