#include "src/store/sequence.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "src/error.h"
#include "src/store/copy_rows.h"

namespace wi {

Sequence::Sequence(KvPools pools, const KvShape& shape, uint64_t budget_bytes)
    : pools_(std::move(pools)), shape_(shape), budget_bytes_(budget_bytes) {}

void Sequence::reserve(int64_t count) {
  const int64_t end = tokens_ + count;
  check(end <= INT32_MAX, WI_E_ARGUMENT, "tokens would be ", end, ", a session holds at most ", INT32_MAX);
  const size_t tail_blocks = tail_blocks_for(count);
  const size_t new_blocks = tail_blocks > tail_.size() ? tail_blocks - tail_.size() : 0;
  check_budget(
      new_blocks * kBlockTokens * shape_.token_bytes() + (sink_ ? 0 : kSinkTokens * shape_.token_bytes()),
      "new tokens");
  // Blocks from the first uncommitted token on are written next: none may be shared. An earlier call that
  // failed may have left empty blocks behind; they are used now.
  if (!sink_) sink_ = BlockRef(new TokenBlock(*pools_.pages, shape_, kSinkTokens));
  if (tokens_ < kSinkTokens) make_writable(sink_);
  for (size_t i = static_cast<size_t>(tail_tokens() / kBlockTokens); i < tail_.size(); ++i)
    make_writable(tail_[i]);
  tail_.reserve(tail_blocks);
  while (tail_.size() < tail_blocks) tail_.emplace_back(new TokenBlock(*pools_.pages, shape_, kBlockTokens));
}

uint64_t Sequence::bytes_to_reserve(int64_t count) const {
  const size_t tail_blocks = tail_blocks_for(count);
  size_t blocks = tail_blocks > tail_.size() ? tail_blocks - tail_.size() : 0;
  for (size_t i = static_cast<size_t>(tail_tokens() / kBlockTokens); i < tail_.size(); ++i)
    blocks += !is_writable(tail_[i]);
  const bool sink = !sink_ || (tokens_ < kSinkTokens && !is_writable(sink_));
  return (blocks * kBlockTokens + (sink ? kSinkTokens : 0)) * shape_.token_bytes();
}

size_t Sequence::tail_blocks_for(int64_t count) const {
  const int64_t tokens = std::max<int64_t>(tokens_ + count - sealed_end_, 0);
  return static_cast<size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

void Sequence::unreserve(int64_t end) noexcept {
  const int64_t blocks = (std::max(end, sealed_end_) - sealed_end_ + kBlockTokens - 1) / kBlockTokens;
  if (blocks < static_cast<int64_t>(tail_.size())) tail_.erase(tail_.begin() + blocks, tail_.end());
}

void Sequence::places(int32_t layer, int64_t first, int64_t count, int64_t row,
                      std::vector<AppendRun>& runs) {
  while (count > 0) {
    const Slot at = slot(first);
    const TokenBlock& block = **at.block;
    const int64_t here = std::min<int64_t>(count, block.capacity() - at.index);
    const size_t offset = static_cast<size_t>(at.index) * shape_.head_bytes();
    runs.push_back({row, here, block.keys(layer, 0) + offset, block.values(layer, 0) + offset,
                    block.head_stride(), shape_.dtype});
    first += here, row += here, count -= here;
  }
}

size_t Sequence::slow_blocks() const {
  const auto fast =
      std::find_if(tail_.begin(), tail_.end(), [](const BlockRef& block) { return !block->is_slow(); });
  return static_cast<size_t>(fast - tail_.begin());
}

void Sequence::spill_tail(const std::shared_ptr<SpillFile>& file, int64_t end,
                          const std::function<void()>& poll) {
  const size_t first = slow_blocks();
  const int64_t whole = (std::min(end, tokens_) - sealed_end_) / kBlockTokens;
  if (whole <= static_cast<int64_t>(first)) return;
  const size_t count = static_cast<size_t>(whole) - first;
  const auto heads = static_cast<size_t>(shape_.kv_heads), layers = static_cast<size_t>(shape_.layers);
  const size_t half = shape_.head_bytes() * kBlockTokens;
  const auto read = [&](size_t block, size_t plane, std::byte* to) {
    tail_[first + block]->copy_tokens(static_cast<int32_t>(plane / heads),
                                      static_cast<int32_t>(plane % heads), 0, kBlockTokens, to, to + half);
  };
  const auto spilled =
      std::make_shared<const SpilledBlocks>(file, count, layers * heads, 2 * half, read, poll);
  std::vector<BlockRef> slow;
  slow.reserve(count);
  for (size_t i = 0; i < count; ++i) slow.emplace_back(new TokenBlock(spilled, i, *tail_[first + i]));
  std::move(slow.begin(), slow.end(), tail_.begin() + static_cast<std::ptrdiff_t>(first));
}

void Sequence::bring_back_tail() {
  check_budget(slow_blocks() * kBlockTokens * shape_.token_bytes(), "recent tokens");
  for (size_t i = 0, slow = slow_blocks(); i < slow; ++i) {
    // The last one first: those that are slow are the first ones, whatever is thrown.
    BlockRef& block = tail_[slow - 1 - i];
    BlockRef fast(new TokenBlock(*pools_.pages, shape_, kBlockTokens));
    fast->copy_from(*block);
    block = std::move(fast);
  }
}

void check_kv_range(DType kv, uint32_t magnitude_bits, int32_t layer, std::string_view whose) {
  if (kv_holds(kv, magnitude_bits)) [[likely]]
    return;
  const float magnitude = std::bit_cast<float>(magnitude_bits);
  check(std::isfinite(magnitude), WI_E_UNSUPPORTED, whose, "layer ", layer,
        " computes keys or values that are not finite: the model's weights are broken or beyond f32");
  fail(WI_E_UNSUPPORTED, whose, "layer ", layer, " has a key or value of ", magnitude, ", more than kv_type ",
       kv == DType::f16 ? "f16 holds (65504): use bf16 or f32" : "bf16 holds (3.39e38): use f32");
}

void Sequence::commit(int64_t count) { tokens_ += count; }

int32_t Sequence::steady_runs(int32_t layer, int32_t head, int64_t end, KvRun* runs) const {
  int32_t count = 0;
  if (sink_ && end > 0)
    runs[count++] = {sink_->keys(layer, head), sink_->values(layer, head),
                     std::min<int64_t>(end, kSinkTokens)};
  int64_t left = end - sealed_end_;
  for (size_t i = 0; left > 0; ++i, left -= kBlockTokens) {
    runs[count++] = {tail_[i]->keys(layer, head), tail_[i]->values(layer, head),
                     std::min<int64_t>(left, kBlockTokens)};
  }
  return count;
}

int32_t Sequence::runs(int32_t layer, int32_t head, int64_t first, int64_t end, KvRun* runs) const {
  const size_t bytes = shape_.head_bytes();
  int32_t count = 0;
  // What of `tokens` consecutive ones from `begin` on is asked for.
  const auto add = [&](const std::byte* keys, const std::byte* values, int64_t begin, int64_t tokens) {
    const int64_t skip = std::max<int64_t>(first - begin, 0), stop = std::min(end - begin, tokens);
    const size_t offset = static_cast<size_t>(skip) * bytes;
    if (skip >= stop) return;
    runs[count++] = keys ? KvRun{keys + offset, values + offset, stop - skip}
                         : KvRun{nullptr, nullptr, stop - skip};  // in the slow tier
  };
  if (sink_ && first < kSinkTokens) add(sink_->keys(layer, head), sink_->values(layer, head), 0, kSinkTokens);
  const SegmentView* const view = views(layer, head);
  for (size_t i = 0; i < segments_.size(); ++i)
    add(static_cast<const std::byte*>(view[i].keys), static_cast<const std::byte*>(view[i].values),
        segments_[i]->first_position(), segments_[i]->tokens());
  const size_t from = static_cast<size_t>(std::max<int64_t>(first - sealed_end_, 0) / kBlockTokens);
  for (size_t i = from; sealed_end_ + static_cast<int64_t>(i) * kBlockTokens < end; ++i)
    add(tail_[i]->is_slow() ? nullptr : tail_[i]->keys(layer, head),
        tail_[i]->is_slow() ? nullptr : tail_[i]->values(layer, head),
        sealed_end_ + static_cast<int64_t>(i) * kBlockTokens, kBlockTokens);
  return count;
}

void Sequence::copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* keys,
                           std::byte* values) const {
  if (count <= 0) return;
  const size_t bytes = shape_.head_bytes();
  const int64_t end = first + count;
  // Of `part`, whose first token is at `begin` and which starts to count at `base`; returns whether more are
  // wanted behind it.
  const auto copy = [&](const auto& part, int64_t begin, int64_t tokens, int64_t base) {
    const int64_t here = std::min(begin + tokens, end) - first;
    if (here > 0) {
      part.copy_tokens(layer, head, base + first - begin, here, keys, values);
      keys += static_cast<size_t>(here) * bytes, values += static_cast<size_t>(here) * bytes;
      first += here;
    }
    return first < end;
  };
  if (first < kSinkTokens && !copy(*sink_, 0, kSinkTokens, 0)) return;
  auto segment = std::partition_point(segments_.begin(), segments_.end(),
                                      [&](const auto& one) { return one->end_position() <= first; });
  for (; segment != segments_.end(); ++segment)
    if (!copy(**segment, (*segment)->first_position(), (*segment)->tokens(), (*segment)->first_position()))
      return;
  size_t block = static_cast<size_t>((first - sealed_end_) / kBlockTokens);
  if (pools_.pages->memory().host_loads()) {
    while (copy(*tail_[block], sealed_end_ + static_cast<int64_t>(block) * kBlockTokens, kBlockTokens, 0))
      ++block;
    return;
  }
  // All blocks' keys, then their values: each would be a copy of its own.
  std::vector<CopyPiece> pieces[2];
  for (; first < end; ++block) {
    const int64_t begin = sealed_end_ + static_cast<int64_t>(block) * kBlockTokens;
    const size_t skip = static_cast<size_t>(first - begin) * bytes,
                 here = static_cast<size_t>(std::min(begin + kBlockTokens, end) - first) * bytes;
    pieces[0].push_back({keys, tail_[block]->keys(layer, head) + skip, here});
    pieces[1].push_back({values, tail_[block]->values(layer, head) + skip, here});
    keys += here, values += here;
    first = begin + kBlockTokens;
  }
  for (const auto& of : pieces) pools_.pages->memory().gather(of);
}

const SegmentView* Sequence::views(int32_t layer, int32_t head) const {
  if (segments_.empty()) return nullptr;
  return views_->view.data() +
         (static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(head)) *
             segments_.size();
}

const SegmentView* Sequence::views_on_device(int32_t layer, int32_t head) const {
  if (segments_.empty()) return nullptr;
  return views_->on_device->data() + (views(layer, head) - views_->view.data());
}

int32_t Sequence::partitions(int32_t layer, int32_t head) const {
  return segments_.empty()
             ? 0
             : views_->partitions[static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) +
                                  static_cast<size_t>(head)];
}

void Sequence::seal(std::shared_ptr<const Segment> segment) {
  const int64_t first = segment->first_position();
  const auto blocks = static_cast<std::ptrdiff_t>((segment->end_position() - sealed_end_) / kBlockTokens);
  const std::vector<std::shared_ptr<const Segment>> before = segments_;
  while (!segments_.empty() && segments_.back()->first_position() >= first) segments_.pop_back();
  try {
    push_segment(std::move(segment));
  } catch (...) {
    segments_ = before;
    throw;
  }
  tail_.erase(tail_.begin(), tail_.begin() + blocks);
}

// The views are built first, so that a failure leaves the list as it was.
void Sequence::push_segment(std::shared_ptr<const Segment> segment) {
  segments_.push_back(std::move(segment));
  try {
    rebuild_views();
  } catch (...) {
    segments_.pop_back();
    throw;
  }
  sealed_end_ = segments_.back()->end_position();
}

void Sequence::adopt(std::shared_ptr<const Segment> segment, const BlockRef& sink) {
  check(tokens_ == 0 || tokens_ == segment->first_position(), WI_E_INTERNAL, "adopted segment starts at ",
        segment->first_position(), ", the sequence ends at ", tokens_);
  check_budget(segment->bytes(), "a reused segment");
  sink_ = sink;
  tail_.clear();
  tokens_ = segment->end_position();
  push_segment(std::move(segment));
}

void Sequence::restore_tail(BlockRef sink, std::vector<BlockRef> tail, int64_t tokens) {
  sink_ = std::move(sink);
  tail_ = std::move(tail);
  tokens_ = tokens;
  settle();
}

void Sequence::truncate(int64_t tokens, int64_t sealed_end, std::shared_ptr<const Segment> cut) {
  if (tokens >= tokens_ && sealed_end >= sealed_end_) return settle();
  const auto blocks_of = [](int64_t count) {
    return static_cast<size_t>(std::max<int64_t>(count + kBlockTokens - 1, 0) / kBlockTokens);
  };
  Sequence next = *this;
  next.tokens_ = tokens;
  next.building_.reset();
  while (!next.segments_.empty() && (next.segments_.back()->end_position() > sealed_end ||
                                     (cut && next.segments_.back()->end_position() > cut->first_position())))
    next.segments_.pop_back();
  const bool has_cut = cut != nullptr;
  if (cut) next.segments_.push_back(std::move(cut));
  next.sealed_end_ = next.segments_.empty() ? kSinkTokens : next.segments_.back()->end_position();

  // First what was sealed, then of the old tail what stays; borders of segments are borders of blocks.
  const int64_t unsealed_end = std::min(tokens, sealed_end_);
  const size_t unsealed = blocks_of(unsealed_end - next.sealed_end_);
  const size_t kept = std::min(blocks_of(tokens - sealed_end_), tail_.size());
  const size_t brought_back =
      unsealed ? std::min(kept, slow_blocks()) : 0;  // slow ones come before all others
  next.tail_.clear();
  if (unsealed || has_cut) {
    const size_t still_slow = std::min(kept, slow_blocks()) - brought_back;
    next.check_budget((unsealed + kept - still_slow) * kBlockTokens * shape_.token_bytes(),
                      "truncation into a segment");
  }
  if (unsealed) {
    for (size_t i = 0; i < unsealed; ++i)
      next.tail_.push_back(
          BlockRef(new TokenBlock(*pools_.pages, shape_, kBlockTokens)));  // never without an owner
    for (const auto& segment : segments_)
      if (segment->end_position() > next.sealed_end_ && segment->first_position() < unsealed_end)
        next.copy_to_tail(*segment, unsealed_end);
  }
  for (size_t i = 0; i < brought_back; ++i) {
    next.tail_.push_back(BlockRef(new TokenBlock(*pools_.pages, shape_, kBlockTokens)));
    next.tail_.back()->copy_from(*tail_[i]);
  }
  next.tail_.insert(next.tail_.end(), tail_.begin() + static_cast<std::ptrdiff_t>(brought_back),
                    tail_.begin() + static_cast<std::ptrdiff_t>(kept));
  next.rebuild_views();
  next.settle();
  *this = std::move(next);
}

// The segment's tokens from sealed_end() to `end`, each to its place.
void Sequence::copy_to_tail(const Segment& segment, int64_t end) {
  const int64_t first = std::max(segment.first_position(), sealed_end_);
  const int64_t count = std::min(segment.end_position(), end) - first;
  std::vector<AppendRun> runs;
  std::vector<std::byte> room;
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    runs.clear();
    places(layer, first, count, 0, runs);
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      copy_rows(segment, segment.slow() != nullptr, layer, head, first, shape_.head_bytes(), runs,
                pools_.pages->memory(), room);
    }
  }
}

size_t Sequence::bytes() const {
  size_t total = sink_ ? sink_->bytes() : 0;
  for (const auto& segment : segments_) total += segment->bytes();
  for (const auto& block : tail_) total += block->bytes();
  return total;
}

size_t Sequence::slow_bytes() const {
  size_t total = 0;
  for (const auto& segment : segments_)
    if (segment->is_slow()) total += segment->leaving_bytes();
  for (size_t i = 0, slow = slow_blocks(); i < slow; ++i) total += tail_[i]->kv_bytes();
  return total;
}

size_t Sequence::index_bytes() const {
  size_t total = 0;
  for (const auto& segment : segments_) total += segment->index_bytes();
  return total;
}

bool Sequence::within_budget(size_t more_bytes) const {
  return !budget_bytes_ || !more_bytes || bytes() + more_bytes <= budget_bytes_;
}

void Sequence::check_budget(size_t more_bytes, const char* purpose) const {
  if (within_budget(more_bytes)) return;
  fail(WI_E_BUDGET, purpose, " need ", more_bytes, " bytes, the session uses ", bytes(),
       " of kv_budget_bytes ", budget_bytes_);
}

void Sequence::set_budget(uint64_t bytes) {
  const size_t used = this->bytes();
  check(!bytes || used <= bytes, WI_E_BUDGET, "kv_budget_bytes is ", bytes, ", the session uses ", used);
  budget_bytes_ = bytes;
}

Sequence::Slot Sequence::slot(int64_t position) {
  if (position < kSinkTokens) return {&sink_, static_cast<int32_t>(position)};
  const int64_t offset = position - sealed_end_;
  return {&tail_[static_cast<size_t>(offset / kBlockTokens)], static_cast<int32_t>(offset % kBlockTokens)};
}

void Sequence::make_writable(BlockRef& block) {
  if (is_writable(block)) return;
  BlockRef copy(new TokenBlock(*pools_.pages, shape_, block->capacity()));
  copy->copy_from(*block);
  block = std::move(copy);
}

void Sequence::refresh(DeviceViews::Reading* reading) {
  if (!views_ || segments_.empty()) return;
  const auto slow = std::count_if(segments_.begin(), segments_.end(),
                                  [](const auto& segment) { return segment->is_slow(); });
  const bool moved = static_cast<size_t>(slow) != slow_segments() + pinned_segments();
  const std::shared_ptr<DeviceViews> on_device = views_->on_device;
  if (on_device && !DeviceViews::refresh(on_device, segments_, reading)) {
    rebuild_views();
    DeviceViews::refresh(views_->on_device, segments_, reading);  // nobody else has it
  } else if (moved) {
    rebuild_views(on_device);
  }
}

// Of one moment: a segment that leaves the fast tier meanwhile is in it for all views but a device's, which it may be
// out of. on_device: of the same segments; null: is made.
void Sequence::rebuild_views(std::shared_ptr<DeviceViews> on_device) {
  auto views = std::make_shared<Views>();
  std::vector<const SlowKv*> slow;  // (segments)
  for (const auto& segment : segments_) {
    const bool is_slow = segment->is_slow();  // first: what it says lies there by now
    slow.push_back(segment->slow());
    views->slow += slow.back() != nullptr;
    views->is_pinned.push_back(is_slow && !slow.back());
    views->pinned += views->is_pinned.back();
  }
  views->view.reserve(segments_.size() * static_cast<size_t>(shape_.layers) *
                      static_cast<size_t>(shape_.kv_heads));
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      int32_t partitions = 0;
      for (size_t i = 0; i < segments_.size(); ++i) {
        views->view.push_back(segments_[i]->view(layer, head, slow[i]));
        partitions += views->view.back().partitions;
      }
      views->partitions.push_back(partitions);
    }
  }
  if (!on_device && pools_.pages->memory().of_device() && !segments_.empty())
    on_device = std::make_shared<DeviceViews>(*pools_.pages, shape_, segments_);
  views->on_device = std::move(on_device);
  views_ = std::move(views);
}

}  // namespace wi
