#include "src/pipeline/lanes.h"

#include <algorithm>
#include <cmath>

namespace wi {
namespace {

constexpr size_t kPassBytes = size_t{64} << 20;  // of lists and scores; at least one row always runs

template <class T>
T* grown(std::vector<T>& buffer, size_t count) {
  // Headroom, because the lists grow with every sealed segment and a step should not allocate.
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
}

}  // namespace

void Lanes::open(std::span<const AttendRow> rows, int32_t layer, int32_t group, const float* queries,
                 float* out, float* lse) {
  const KvShape& shape = rows.front().sequence->shape();
  rows_ = rows;
  layer_ = layer;
  group_ = group;
  kv_heads_ = shape.kv_heads;
  head_dim_ = shape.head_dim;
  window_ = shape.window(layer);
  queries_ = queries;
  out_ = out;
  lse_ = lse ? lse : grown(own_lse_, rows.size() * static_cast<size_t>(kv_heads_ * group));
  first_ = count_ = 0;
}

bool Lanes::next_pass() {
  first_ += count_;
  count_ = 0;
  if (first_ >= rows_.size()) return false;

  const AttendRow& head_row = rows_[first_];
  kv_ = head_row.sequence->shape().dtype;
  size_t bytes = 0, steady = 0, room = 0;
  for (size_t i = first_; i < rows_.size(); ++i) {
    const AttendRow& row = rows_[i];
    if (row.policy != head_row.policy || row.sequence->shape().dtype != kv_) break;
    bytes += lane_bytes(row);
    if (count_ && bytes > kPassBytes) break;
    steady += static_cast<size_t>(steady_room(row)) * static_cast<size_t>(kv_heads_);
    for (int32_t head = 0; head < kv_heads_; ++head) room += static_cast<size_t>(partitions(row, head));
    ++count_;
  }

  Lane* lane = grown(lanes_, count_ * static_cast<size_t>(kv_heads_));
  KvRun* steady_at = grown(steady_, steady);
  PartitionRef* retrieved_at = grown(retrieved_, room);
  PartitionRef* estimated_at = grown(estimated_, room);
  KvRun* runs_at = grown(runs_, room);
  float* scores_at = grown(scores_, room * static_cast<size_t>(group_));
  for (size_t i = first_; i < first_ + count_; ++i) {
    const AttendRow& row = rows_[i];
    for (int32_t head = 0; head < kv_heads_; ++head, ++lane) {
      const size_t query_head =
          i * static_cast<size_t>(kv_heads_ * group_) + static_cast<size_t>(head * group_);
      const size_t own = static_cast<size_t>(partitions(row, head));
      *lane = Lane{};
      lane->query = queries_ + query_head * static_cast<size_t>(head_dim_);
      // Coverage is a statistic, and that of one head costs a quarter of what that of four does: KV heads
      // take turns, and so do steps.
      lane->coverage_head = static_cast<int32_t>((row.end + head) % group_);
      lane->steady = steady_at;
      if (window_) {
        const int64_t oldest = std::max<int64_t>(row.end - window_, 0);
        lane->steady_count = row.sequence->runs(layer_, head, oldest, row.end, steady_at);
      } else {
        lane->segments = row.sequence->views(layer_, head);
        lane->segment_count = static_cast<int32_t>(row.sequence->segments().size());
        lane->partition_count = static_cast<int32_t>(own);
        lane->indexed_tokens = row.sequence->indexed_tokens();
        lane->zones = zones_of(*row.params, lane->indexed_tokens, lane->partition_count);
        lane->wanted = row.wanted.data();
        lane->wanted_count = static_cast<int32_t>(row.wanted.size());
        lane->steady_count = row.sequence->steady_runs(layer_, head, row.end, steady_at);
      }
      steady_at += steady_room(row);
      lane->retrieved = retrieved_at;
      lane->estimated = estimated_at;
      lane->runs = runs_at;
      lane->scores = scores_at;
      retrieved_at += own;
      estimated_at += own;
      runs_at += own;
      scores_at += own * static_cast<size_t>(group_);
      lane->out = out_ + query_head * static_cast<size_t>(head_dim_);
      lane->lse = lse_ + query_head;
    }
  }
  return true;
}

void Lanes::report() const {
  const LanesArgs lanes = args();
  const Policy& policy = *rows_[first_].policy;
  const uint64_t token_bytes = 2 * row_bytes(lanes.kv, lanes.head_dim);
  for (int32_t i = 0; i < lanes.lane_count; ++i) {
    const Lane& lane = lanes.lanes[i];
    StepStats& stats = *rows_[first_ + static_cast<size_t>(i / kv_heads_)].stats;
    int64_t tokens = lane.retrieved_tokens;
    for (int32_t r = 0; r < lane.steady_count; ++r) tokens += lane.steady[r].tokens;
    stats.kv_bytes_read += static_cast<uint64_t>(tokens) * token_bytes;
    stats.retrieved_tokens += static_cast<uint64_t>(lane.retrieved_tokens);
    stats.estimated_clusters += static_cast<uint64_t>(lane.estimated_count);
    stats.dropped_clusters += static_cast<uint64_t>(lane.dropped_count);
    stats.buffer_hits += static_cast<uint64_t>(lane.run_count);
    stats.index_bytes_read += static_cast<uint64_t>(lane.index_bytes_read);
    if (!policy.estimate || window_) continue;  // nothing is left out of a window
    stats.estimated_coverage_sum += static_cast<double>(lane.estimated_coverage);
    stats.certified_coverage_sum += static_cast<double>(lane.certified_coverage);
    stats.certified_coverage_min =
        std::min(stats.certified_coverage_min, static_cast<double>(lane.certified_coverage));
    stats.coverage_count += 1;
  }
}

LanesArgs Lanes::args() const {
  LanesArgs args;
  args.lanes = const_cast<Lane*>(lanes_.data());
  args.lane_count = static_cast<int32_t>(count_) * kv_heads_;
  args.group = group_;
  args.head_dim = head_dim_;
  args.kv = kv_;
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  return args;
}

int32_t Lanes::partitions(const AttendRow& row, int32_t head) const {
  return window_ ? 0 : row.sequence->partitions(layer_, head);
}

int32_t Lanes::steady_room(const AttendRow& row) const {
  return window_ ? row.sequence->max_runs() : row.sequence->max_steady_runs();
}

size_t Lanes::lane_bytes(const AttendRow& row) const {
  size_t room = 0;
  for (int32_t head = 0; head < kv_heads_; ++head) room += static_cast<size_t>(partitions(row, head));
  return room * (2 * sizeof(PartitionRef) + sizeof(KvRun) + static_cast<size_t>(group_) * sizeof(float));
}

size_t Lanes::bytes() const {
  return lanes_.size() * sizeof(Lane) + (steady_.size() + runs_.size()) * sizeof(KvRun) +
         (retrieved_.size() + estimated_.size()) * sizeof(PartitionRef) +
         (scores_.size() + own_lse_.size()) * sizeof(float);
}

}  // namespace wi
