#include "src/pipeline/past.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "src/cancel.h"
#include "src/memory/breaks.h"

namespace wi {
namespace {

// Of waiting for the disk: so often whoever wants a break in a chunk gets it.
constexpr std::chrono::milliseconds kPoll{2};

bool has_slow(const Sequence& sequence) { return sequence.slow_segments() || sequence.slow_blocks(); }

}  // namespace

void Past::start(const Stream& stream, const Sequence& sequence, int32_t layers, int64_t end,
                 Queue* queue) noexcept {
  layers_ = layers;
  end_ = end;
  queue_ = queue;
  pinned_.start();
  if (layers > 0 && has_slow(sequence)) read_ahead(stream, sequence, first_of(0));
}

Past::Part Past::following(const Part& part) const {
  if (part.end < end_) return part_from(part.layer, part.end);
  if (part.layer + 1 < layers_) return first_of(part.layer + 1);
  return {};
}

void Past::open(const Stream& stream, const Sequence& sequence, const Part& part) {
  const KvShape& shape = sequence.shape();
  const size_t heads = static_cast<size_t>(shape.kv_heads);
  const size_t room = static_cast<size_t>(sequence.max_runs());
  if (runs_.size() < heads * room) runs_.resize(heads * room);
  runs_of_head_.resize(heads);
  run_counts_.resize(heads);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    KvRun* const runs = runs_.data() + static_cast<size_t>(head) * room;
    runs_of_head_[static_cast<size_t>(head)] = runs;
    run_counts_[static_cast<size_t>(head)] = sequence.runs(part.layer, head, part.first, part.end, runs);
  }
  if (sequence.pinned_segments())
    return pinned_.open(*queue_, sequence, part, following(part), runs_.data(), room);
  if (!has_slow(sequence)) return;
  if (in_slow_tier(sequence, part)) {
    fetch(stream, sequence, part);
    unpack(stream, sequence);
    throw_if_cancelled(stream);
  }
  if (reading_.layer < 0) read_ahead(stream, sequence, following(part));
}

void Past::close() noexcept {
  if (std::exchange(reading_, {}).layer >= 0) ahead_->drop();
}

// The part's pieces, read.
void Past::fetch(const Stream& stream, const Sequence& sequence, const Part& part) {
  if (reading_.layer >= 0) {
    assert(reading_ == part);
    // Others that share this thread have their turn meanwhile.
    while (!ahead_->wait(kPoll)) take_break(stream);
    reading_ = {};
    return;
  }
  plan(sequence, part);
  use_file_of(pieces_[0]);
  ahead_->read(requests_, stream.cancel);
}

void Past::unpack(const Stream& stream, const Sequence& sequence) {
  const size_t row = sequence.shape().head_bytes(), room = static_cast<size_t>(sequence.max_runs());
  if (rows_.size() < rows_bytes_) rows_.resize(rows_bytes_);
  stream.each(static_cast<int64_t>(pieces_.size()), [&](int64_t i, int) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    std::byte* const keys = rows_.data() + piece.rows;
    std::byte* const values = keys + row * static_cast<size_t>(piece.count);
    if (piece.slow)
      piece.slow->unpack(piece.plane, piece.first, piece.count, read_.data() + piece.read, keys, values);
    else
      copy_block(piece, row, keys, values);
    runs_[static_cast<size_t>(piece.head) * room + static_cast<size_t>(piece.run)] = {keys, values,
                                                                                      piece.count};
  });
}

void Past::copy_block(const Piece& piece, size_t row, std::byte* keys, std::byte* values) const {
  const size_t bytes = static_cast<size_t>(piece.count) * row;
  const std::byte* const from = read_.data() + piece.read + static_cast<size_t>(piece.first) * row;
  std::memcpy(keys, from, bytes);
  std::memcpy(values, from + piece.block->head_stride() / 2, bytes);
}

// The first part from that one on of which there is something to read. It goes into the buffer that unpack() has
// emptied: reading ahead takes no memory of its own. What fails here is tried again when the part is wanted.
void Past::read_ahead(const Stream& stream, const Sequence& sequence, Part part) noexcept {
  assert(reading_.layer < 0);
  while (part.layer >= 0 && !in_slow_tier(sequence, part)) part = following(part);
  if (part.layer < 0) return;
  try {
    plan(sequence, part);
    use_file_of(pieces_[0]);
  } catch (const Error&) {
    return;
  } catch (const std::bad_alloc&) {
    return;
  }
  if (!file_->reads_ahead()) return;
  ahead_->begin(requests_, stream.cancel);
  reading_ = part;
}

void Past::use_file_of(const Piece& piece) {
  const std::shared_ptr<SpillFile>& file = piece.slow ? piece.slow->file() : piece.block->file();
  if (file_ != file) {
    ahead_.reset();
    file_ = file;
  }
  if (!ahead_) ahead_ = std::make_unique<ReadAhead>(file_);
}

bool Past::in_slow_tier(const Sequence& sequence, const Part& part) {
  const std::span<const std::shared_ptr<const Segment>> segments = sequence.segments();
  const SegmentView* const views = sequence.views(part.layer, 0);
  for (size_t i = 0; i < segments.size(); ++i)
    if (views[i].slow && segments[i]->first_position() < part.end && segments[i]->end_position() > part.first)
      return true;
  const int64_t first = sequence.sealed_end(),
                end = first + static_cast<int64_t>(sequence.slow_blocks()) * kBlockTokens;
  return first < end && first < part.end && end > part.first;
}

void Past::plan(const Sequence& sequence, const Part& part) {
  const KvShape& shape = sequence.shape();
  const size_t row = shape.head_bytes();
  const std::span<const std::shared_ptr<const Segment>> segments = sequence.segments();
  pieces_.clear();
  size_t read = 0, rows = 0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const SegmentView* const views = sequence.views(part.layer, head);
    // As Sequence::runs() has them: the sink, then segment by segment.
    int32_t run = part.first < std::min<int64_t>(kSinkTokens, sequence.tokens()) ? 1 : 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = *segments[i];
      const int64_t from = std::max(part.first, segment.first_position()),
                    to = std::min(part.end, segment.end_position());
      if (from >= to) continue;
      if (views[i].slow) {
        const Segment::SlowPlace there = segment.slow_place(part.layer, head);
        const auto count = static_cast<int32_t>(to - from);
        pieces_.push_back({there.kv, nullptr, there.plane,
                           static_cast<int32_t>(from - segment.first_position()), count, read, rows, head,
                           run});
        read += 2 * row * static_cast<size_t>(count + 2 * kFrameTokens);  // with the pages that it cuts
        rows += 2 * row * static_cast<size_t>(count);
      }
      ++run;
    }
    // Then block by block.
    for (size_t i = 0, slow = sequence.slow_blocks(); i < slow; ++i) {
      const TokenBlock& block = *sequence.tail()[i];
      const int64_t begin = sequence.sealed_end() + static_cast<int64_t>(i) * kBlockTokens;
      const int64_t from = std::max(part.first, begin), to = std::min(part.end, begin + kBlockTokens);
      if (from >= to) continue;
      const size_t plane =
          static_cast<size_t>(part.layer) * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(head);
      const auto count = static_cast<int32_t>(to - from);
      pieces_.push_back(
          {nullptr, &block, plane, static_cast<int32_t>(from - begin), count, read, rows, head, run++});
      read += block.head_stride();
      rows += 2 * row * static_cast<size_t>(count);
    }
  }
  rows_bytes_ = rows;
  if (read_.size() < read) read_.resize(read);
  requests_.clear();
  for (const Piece& piece : pieces_) {
    std::byte* const to = read_.data() + piece.read;
    requests_.push_back(piece.slow ? piece.slow->request(piece.plane, piece.first, piece.count, to)
                                   : piece.block->request(part.layer, piece.head, to));
  }
}

uint64_t Past::most_bytes(const KvShape& shape, int64_t tokens) {
  const auto part = static_cast<uint64_t>(std::min(tokens, kPartTokens));
  return 2 * part * 2 * static_cast<uint64_t>(shape.kv_heads) * shape.head_bytes() + SpillReader::kMostBuffer;
}

}  // namespace wi
