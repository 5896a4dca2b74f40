#include "src/task_plan.h"

#include <algorithm>
#include <vector>

#include "src/pipeline/building.h"
#include "src/pipeline/index.h"
#include "src/segment_bytes.h"

namespace wi {
namespace {

// Lengths of the grid's segments, the longest first, and how far apart those of a length are at least where a prompt
// ends with them: two halves of a longer one would be that one.
struct Length {
  int64_t tokens, apart;
};
std::vector<Length> lengths_of(const PolicyParams& params) {
  const int64_t block = params.segment_tokens, unit = params.decode_segment_tokens;
  std::vector<Length> lengths{{block, block}};
  if (unit >= block) return lengths;
  int64_t size = block;
  while (size % (2 * unit) == 0) lengths.push_back({size /= 2, 2 * size});
  if (size > unit) lengths.push_back({unit, unit});
  return lengths;
}

// What segments of such a session take, by their tokens.
class Segments {
 public:
  Segments(const KvShape& shape, const Policy& policy, const PolicyParams& params)
      : shape_(shape), policy_(policy), params_(params), grid_(params) {}

  uint64_t kv(int64_t tokens) const { return static_cast<uint64_t>(tokens) * shape_.token_bytes(); }
  uint64_t index(int64_t tokens) const {
    return most_index_bytes(shape_, policy_, params_, static_cast<int32_t>(tokens));
  }
  uint64_t making(int64_t tokens) const {
    const auto count = static_cast<int32_t>(tokens);
    return making_bytes(shape_, index_size(shape_, policy_, params_, count), count);
  }
  uint64_t building(int64_t tokens, int workers) const {
    return making(tokens) + building_bytes(shape_, policy_, params_, static_cast<int32_t>(tokens), workers);
  }
  // Of those from `first` to `end`, where a prompt ends there.
  uint64_t indexes(int64_t first, int64_t end) const {
    uint64_t bytes = 0;
    for (SegmentSpan span = grid_.longest(first, end); span.tokens; span = grid_.longest(span.end(), end))
      bytes += index(span.tokens);
    return bytes;
  }
  // Of units from `first`, which is a border of them, to `end`.
  uint64_t unit_indexes(int64_t first, int64_t end) const {
    const int64_t block = params_.segment_tokens,
                  unit = std::min<int64_t>(params_.decode_segment_tokens, block);
    const int64_t count = std::max<int64_t>(end - first, 0), cut = block % unit;
    const int64_t blocks = cut ? count / block + 1 : 0;  // each has a shorter one
    return static_cast<uint64_t>(count / unit) * index(unit) +
           (cut ? static_cast<uint64_t>(blocks) * index(cut) : 0);
  }

 private:
  const KvShape& shape_;
  const Policy& policy_;
  const PolicyParams& params_;
  const SegmentGrid grid_;
};

}  // namespace

// Whatever the prompt is, the call that makes a segment of it finds at most the tokens of that and of the window
// unsealed, keeps them, and goes on to make shorter ones behind it; or, behind a whole one, any. Of segments of one
// length, the last two of a prompt meet the most.
uint64_t most_while_reading(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                            int64_t chunk_tokens, int64_t tokens) {
  const Segments segments(shape, policy, params);
  const int64_t block = params.segment_tokens, window = params.local_window;
  const std::vector<Length> lengths = lengths_of(params);
  const int64_t sealed_end = SegmentGrid(params).sealed_end(tokens);
  uint64_t most = 0;
  // base: of the segments before it all are whole ones.
  const auto meet = [&](int64_t base, int64_t first, const Length& length) {
    const int64_t end = first + length.tokens;
    if (end + window <= chunk_tokens || end + window > tokens)
      return;  // of the first call, which keeps nothing
    const bool whole = length.tokens == block;
    const int64_t before = std::min(end + window, tokens) - 1;  // the call had at most so many when it began
    const int64_t most_then = std::min(tokens, before + chunk_tokens);
    const int64_t then = length.apart > length.tokens
                             ? std::min(most_then, first + length.apart + window + kBlockTokens)
                             : most_then;
    const uint64_t held = segments.kv(kSinkTokens + in_blocks(then - kSinkTokens) + kBlockTokens) +
                          static_cast<uint64_t>((base - kSinkTokens) / block) * segments.index(block) +
                          segments.indexes(base, first);
    most = std::max(most, held + segments.making(length.tokens));
    const int64_t kept = std::min(in_blocks(before - first), in_blocks(length.tokens + window));
    for (const Length& next : lengths) {
      const bool shorter = next.tokens < length.tokens || (whole && block <= chunk_tokens + window) ||
                           next.apart == next.tokens;
      if (!shorter || end + next.tokens + window > most_then) continue;
      most = std::max(
          most, held + segments.index(length.tokens) + segments.kv(kept) + segments.making(next.tokens));
      break;
    }
  };
  const int64_t whole_end = kSinkTokens + (sealed_end - kSinkTokens) / block * block;
  for (const int64_t base : {whole_end, whole_end - block}) {
    if (base < kSinkTokens) break;
    // All of the block before would be one segment.
    const int64_t sealed = base == whole_end ? sealed_end - base : block - 1;
    for (const Length& length : lengths) {
      if (length.tokens == block) continue;
      int64_t at = (sealed - length.tokens) / length.apart * length.apart;
      for (int times = 0; sealed >= length.tokens && at >= 0 && times < 2; ++times, at -= length.apart)
        meet(base, base + at, length);
    }
  }
  for (int64_t base = whole_end - block, times = 0; base >= kSinkTokens && times < 2; ++times, base -= block)
    meet(base, base, lengths[0]);
  return most;
}

// A unit is begun when its tokens are there, and those before it are sealed some time after theirs.
uint64_t most_while_writing(const KvShape& shape, const Policy& policy, const PolicyParams& params,
                            int64_t tokens, int workers) {
  const int64_t unit = std::min<int64_t>(params.decode_segment_tokens, params.segment_tokens);
  if (kSinkTokens + unit > tokens) return 0;
  const Segments segments(shape, policy, params);
  return segments.kv(kSinkTokens + in_blocks(tokens - kSinkTokens)) +
         segments.unit_indexes(kSinkTokens, tokens - params.local_window - kBuildTokens) +
         segments.building(unit, workers);
}

namespace {

// A sequence on numbers alone, as run_prefill() of session.cpp and seal_prompt() of pipeline/index.cpp treat one.
class Walk {
 public:
  Walk(const Sequence& sequence, const Policy& policy, const PolicyParams& params, int workers)
      : segments_(sequence.shape(), policy, params),
        params_(params),
        grid_(params),
        tokens_(sequence.tokens()),
        sealed_end_(sequence.sealed_end()),
        next_(sequence.settled_end()),
        held_(sequence.bytes()),
        workers_(workers) {
    for (const auto& segment : sequence.segments())
      if (segment->first_position() >= next_)
        open_.push_back(
            {{segment->first_position(), segment->tokens()}, segment->bytes(), segment.use_count() > 1});
    for (const BlockRef& block : sequence.tail()) shared_blocks_.push_back(!block.unique());
    blocks_ = static_cast<int64_t>(shared_blocks_.size());
    if (sequence.being_built()) {  // what it gets at its end is to come; forks may keep the rest
      const SegmentSpan unit = grid_.unit(sealed_end_);
      others_ = building(unit) - segments_.index(unit.tokens);
    }
    most(0);
  }

  void read(const TaskTokens& task) {
    const int64_t final_tokens = tokens_ + task.prompt;
    if (ends_in_block() && !shared_blocks_.empty() && shared_blocks_.back()) {
      others_ += segments_.kv(kBlockTokens);  // they keep it, and this one has a copy
      shared_blocks_.back() = false;
    }
    for (int64_t left = task.prompt, count; left > 0; left -= count) {
      count = std::min(task.chunk, left);
      kept_ = 0;
      kept_end_ = sealed_end_ + blocks_ * kBlockTokens;
      if (count > task.sparse_read) seal(final_tokens, count);
      if (ends_in_block()) kept_ += segments_.kv(kBlockTokens);
      append(count);
      seal(final_tokens, 0);
    }
    kept_ = 0;
  }

  void write(int64_t count) {
    others_ += segments_.kv(std::count(shared_blocks_.begin(), shared_blocks_.end(), true) * kBlockTokens);
    append(count);
    const SegmentSpan unit = grid_.unit(sealed_end_);
    if (count == 0 || unit.end() > tokens_) return;
    const int64_t sealed = tokens_ - params_.local_window - kBuildTokens;
    if (unit.end() <= sealed)
      held_ += segments_.index(unit.tokens) + segments_.unit_indexes(unit.end(), sealed);
    most(std::max(building(unit), building({0, regular_})));
  }

  uint64_t most() const { return most_; }

 private:
  struct Open {
    SegmentSpan span;
    uint64_t bytes;
    bool shared;
  };

  uint64_t building(const SegmentSpan& span) const { return segments_.building(span.tokens, workers_); }

  bool ends_in_block() const { return tokens_ % kBlockTokens != kSinkTokens; }

  void most(uint64_t making) { most_ = std::max(most_, held_ + kept_ + others_ + making); }

  void append(int64_t count) {
    tokens_ += count;
    const int64_t blocks = std::max<int64_t>(in_blocks(tokens_ - sealed_end_) / kBlockTokens, 0);
    if (blocks > blocks_) {
      held_ += segments_.kv((blocks - blocks_) * kBlockTokens);
      blocks_ = blocks;
    }
    most(0);
  }

  void seal(int64_t final_tokens, int64_t coming) {
    const int64_t end = grid_.sealed_end(final_tokens);
    size_t stay = 0;
    for (;; ++stay) {
      if (stay == open_.size() || open_[stay].span.tokens != grid_.longest(next_, end).tokens) break;
      next_ = open_[stay].span.end();
    }
    open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(stay));
    for (;;) {
      const SegmentSpan span = grid_.longest(next_, end);
      if (!span.tokens || span.end() <= sealed_end_ || span.end() > tokens_ ||
          span.end() + params_.local_window > tokens_ + coming)
        return;
      most(segments_.making(span.tokens));
      for (const Open& open : open_) leave(open.bytes, open.shared, true);
      open_.clear();
      for (; sealed_end_ < span.end(); sealed_end_ += kBlockTokens, --blocks_) {
        const bool shared = !shared_blocks_.empty() && shared_blocks_.front();
        if (!shared_blocks_.empty()) shared_blocks_.erase(shared_blocks_.begin());
        leave(segments_.kv(kBlockTokens), shared, sealed_end_ < kept_end_);
      }
      held_ += segments_.kv(span.tokens) + segments_.index(span.tokens);
      next_ = span.end();
      most(0);
    }
  }

  void leave(uint64_t bytes, bool shared, bool kept) {
    held_ -= bytes;
    if (shared)
      others_ += bytes;
    else if (kept)
      kept_ += bytes;
  }

  const Segments segments_;
  const PolicyParams& params_;
  const SegmentGrid grid_;
  const int32_t regular_ = std::min(params_.decode_segment_tokens, params_.segment_tokens);
  int64_t tokens_, sealed_end_, next_;  // next_: up to where it is cut as its prompt will be
  std::vector<Open> open_;              // behind that
  std::vector<bool> shared_blocks_;     // of the tail, while they are those of the sequence
  int64_t blocks_ = 0, kept_end_ = 0;
  uint64_t held_, kept_ = 0, others_ = 0, most_ = 0;  // kept_: by the call; others_: beside both
  const int workers_;
};

}  // namespace

TaskBytes bytes_of_task(const Sequence& sequence, const Policy& policy, const PolicyParams& params,
                        const TaskTokens& task, int workers) {
  Walk walk(sequence, policy, params, workers);
  const uint64_t now = walk.most();
  walk.read(task);
  walk.write(task.answer);
  return {now, walk.most()};
}

}  // namespace wi
