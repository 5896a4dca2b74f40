#include "src/store/sequence.h"

#include <algorithm>
#include <cstring>

#include "src/error.h"

namespace wi {

Sequence::Sequence(std::shared_ptr<HostPool> pool, const KvShape& shape, uint64_t budget_bytes)
    : pool_(std::move(pool)), shape_(shape), budget_bytes_(budget_bytes) {}

void Sequence::reserve(int64_t count) {
  const int64_t end = tokens_ + count;
  check(end <= INT32_MAX, WI_E_ARGUMENT, "tokens would be ", end, ", a session holds at most ", INT32_MAX);
  const size_t tail_blocks =
      end > sealed_end_ ? static_cast<size_t>((end - sealed_end_ + kBlockTokens - 1) / kBlockTokens) : 0;
  const size_t new_blocks = tail_blocks > tail_.size() ? tail_blocks - tail_.size() : 0;
  check_budget(
      new_blocks * kBlockTokens * shape_.token_bytes() + (sink_ ? 0 : kSinkTokens * shape_.token_bytes()),
      "new tokens");
  // Blocks from the first uncommitted token on are written next: none may be shared. An earlier call that
  // failed may have left empty blocks behind; they are used now.
  if (!sink_) sink_ = BlockRef(new TokenBlock(*pool_, shape_, kSinkTokens));
  if (tokens_ < kSinkTokens) make_writable(sink_);
  for (size_t i = static_cast<size_t>(tail_tokens() / kBlockTokens); i < tail_.size(); ++i)
    make_writable(tail_[i]);
  tail_.reserve(tail_blocks);
  while (tail_.size() < tail_blocks) tail_.emplace_back(new TokenBlock(*pool_, shape_, kBlockTokens));
}

void Sequence::write(const Backend& backend, int32_t layer, int64_t first, int64_t count, const float* keys,
                     const float* values, int64_t stride) {
  const int64_t width = shape_.head_dim;
  const size_t head_bytes = shape_.head_bytes();
  for (int64_t row = 0; row < count; ++row) {
    const Slot at = slot(first + row);
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const size_t offset = static_cast<size_t>(at.index) * head_bytes;
      backend.to_kv(keys + row * stride + head * width, shape_.dtype, (*at.block)->keys(layer, head) + offset,
                    width);
      backend.to_kv(values + row * stride + head * width, shape_.dtype,
                    (*at.block)->values(layer, head) + offset, width);
    }
  }
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

const SegmentView* Sequence::views(int32_t layer, int32_t head) const {
  if (segments_.empty()) return nullptr;
  return views_->view.data() +
         (static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(head)) *
             segments_.size();
}

int32_t Sequence::partitions(int32_t layer, int32_t head) const {
  return segments_.empty()
             ? 0
             : views_->partitions[static_cast<size_t>(layer) * static_cast<size_t>(shape_.kv_heads) +
                                  static_cast<size_t>(head)];
}

void Sequence::seal(std::shared_ptr<const Segment> segment) {
  const auto blocks = static_cast<std::ptrdiff_t>(segment->tokens() / kBlockTokens);
  push_segment(std::move(segment));
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
}

// Tokens of a segment that is cut go back to the tail, in order of position.
void Sequence::truncate(int64_t tokens) {
  if (tokens >= tokens_) return;
  Sequence cut = *this;
  cut.tokens_ = tokens;
  while (!cut.segments_.empty() && cut.segments_.back()->end_position() > tokens) {
    std::shared_ptr<const Segment> segment = cut.segments_.back();
    cut.segments_.pop_back();
    cut.tail_.clear();
    cut.sealed_end_ = segment->first_position();
    const int64_t kept = tokens - cut.sealed_end_;
    if (kept <= 0) continue;
    cut.check_budget(
        static_cast<size_t>((kept + kBlockTokens - 1) / kBlockTokens * kBlockTokens) * shape_.token_bytes(),
        "truncation into a segment");
    for (int64_t start = 0; start < kept; start += kBlockTokens)
      cut.tail_.emplace_back(new TokenBlock(*pool_, shape_, kBlockTokens));
    const size_t bytes = shape_.head_bytes();
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const SegmentView view = segment->view(layer, head);
        for (int32_t i = 0; i < view.tokens; ++i) {
          const int64_t offset = view.positions[i] - cut.sealed_end_;
          if (offset >= kept) continue;
          const TokenBlock& block = *cut.tail_[static_cast<size_t>(offset / kBlockTokens)];
          const size_t to = static_cast<size_t>(offset % kBlockTokens) * bytes,
                       from = static_cast<size_t>(i) * bytes;
          std::memcpy(block.keys(layer, head) + to, static_cast<const std::byte*>(view.keys) + from, bytes);
          std::memcpy(block.values(layer, head) + to, static_cast<const std::byte*>(view.values) + from,
                      bytes);
        }
      }
    }
  }
  const int64_t tail_blocks = (cut.tail_tokens() + kBlockTokens - 1) / kBlockTokens;
  if (static_cast<size_t>(tail_blocks) < cut.tail_.size()) cut.tail_.resize(static_cast<size_t>(tail_blocks));
  cut.rebuild_views();
  *this = std::move(cut);
}

size_t Sequence::bytes() const {
  size_t total = sink_ ? sink_->bytes() : 0;
  for (const auto& segment : segments_) total += segment->bytes();
  for (const auto& block : tail_) total += block->bytes();
  return total;
}

size_t Sequence::index_bytes() const {
  size_t total = 0;
  for (const auto& segment : segments_) total += segment->index_bytes();
  return total;
}

void Sequence::check_budget(size_t more_bytes, const char* purpose) const {
  if (!budget_bytes_ || !more_bytes) return;
  const size_t used = bytes();
  check(used + more_bytes <= budget_bytes_, WI_E_BUDGET, purpose, " need ", more_bytes,
        " bytes, the session uses ", used, " of kv_budget_bytes ", budget_bytes_);
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
  if (block.unique()) return;
  BlockRef copy(new TokenBlock(*pool_, shape_, block->capacity()));
  copy->copy_from(*block);
  block = std::move(copy);
}

void Sequence::rebuild_views() {
  auto views = std::make_shared<Views>();
  views->view.reserve(segments_.size() * static_cast<size_t>(shape_.layers) *
                      static_cast<size_t>(shape_.kv_heads));
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      int32_t partitions = 0;
      for (const auto& segment : segments_) {
        views->view.push_back(segment->view(layer, head));
        partitions += views->view.back().partitions;
      }
      views->partitions.push_back(partitions);
    }
  }
  views_ = std::move(views);
}

}  // namespace wi
