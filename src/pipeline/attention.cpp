#include "src/pipeline/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/hot_pages.h"

namespace wi {
namespace {

constexpr size_t kPassBytes = size_t{64} << 20;  // of lists and scores; at least one row always runs
// Of a device's pass: a launch has 65,535 of them at most, and each has room there for partial results of its chunks,
// half a megabyte in an 8B model.
constexpr size_t kMostLookups = 512;

template <class T>
T* grown(std::vector<T>& buffer, size_t count) {
  // Headroom, because the lists grow with every sealed segment and a step should not allocate.
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
}

}  // namespace

void Attention::begin(std::span<const Row> rows, int32_t group, Retrieval* retrieval, Queue* queue) {
  const KvShape& shape = rows.front().sequence->shape();
  rows_ = rows;
  group_ = group;
  retrieval_ = retrieval;
  queue_ = queue;
  kv_heads_ = shape.kv_heads;
  head_dim_ = shape.head_dim;
  counters_.assign(rows.size() * static_cast<size_t>(kv_heads_), LookupCounters{});
  counted_ = counters_.data();
  if (retrieval_) retrieval_->count_beside(counted_, counters_.size());
  if (!queue_) return;
  const size_t bytes = counters_.size() * sizeof(LookupCounters);
  counted_ = reinterpret_cast<LookupCounters*>(queue_->room(Queue::kCounters, bytes));
  queue_->upload(counted_, counters_.data(), bytes);
}

void Attention::fetch() {
  if (queue_) queue_->download(counters_.data(), counted_, counters_.size() * sizeof(LookupCounters));
}

void Attention::open(int32_t layer, const float* queries, float* out, float* lse) {
  layer_ = layer;
  window_ = rows_.front().sequence->shape().window(layer);
  queries_ = queries;
  out_ = out;
  lse_ = lse ? lse : grown(own_lse_, rows_.size() * static_cast<size_t>(kv_heads_ * group_));
  first_ = count_ = 0;
}

bool Attention::next_pass() {
  first_ += count_;
  count_ = 0;
  if (first_ >= rows_.size()) return false;

  const Row& head_row = rows_[first_];
  kv_ = head_row.sequence->shape().dtype;
  slow_ = pinned_ = false;
  size_t bytes = 0, steady = 0, room = 0, runs = 0;
  for (size_t i = first_; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.policy != head_row.policy || row.sequence->shape().dtype != kv_) break;
    bytes += list_bytes(row);
    if (count_ && bytes > kPassBytes) break;
    if (count_ && queue_ && (count_ + 1) * static_cast<size_t>(kv_heads_) > kMostLookups) break;
    steady += static_cast<size_t>(steady_room(row)) * static_cast<size_t>(kv_heads_);
    for (int32_t head = 0; head < kv_heads_; ++head) {
      const int32_t own = partitions(row, head);
      room += static_cast<size_t>(own);
      runs += static_cast<size_t>(run_room(row, own));
    }
    slow_ = slow_ || (!window_ && row.sequence->slow_segments() > 0);
    pinned_ = pinned_ || (!window_ && row.sequence->pinned_segments() > 0);
    ++count_;
  }

  Lookup* lookup = grown(lookups_, count_ * static_cast<size_t>(kv_heads_));
  KvRun* steady_at = grown(steady_, steady);
  const Lists all = lists(room, runs);
  size_t at = 0, runs_at = 0;  // in all of them
  args_ = {};
  for (size_t i = first_; i < first_ + count_; ++i) {
    const Row& row = rows_[i];
    for (int32_t head = 0; head < kv_heads_; ++head, ++lookup) {
      const size_t query_head =
          i * static_cast<size_t>(kv_heads_ * group_) + static_cast<size_t>(head * group_);
      const size_t own = static_cast<size_t>(partitions(row, head));
      *lookup = Lookup{};
      lookup->query = queries_ + query_head * static_cast<size_t>(head_dim_);
      // Coverage is a statistic, and that of one head costs a quarter of what that of four does: KV heads
      // take turns, and so do steps.
      const int64_t end = row.position + 1;
      lookup->coverage_head = static_cast<int32_t>((end + head) % group_);
      lookup->steady = steady_at;
      if (window_) {
        const int64_t oldest = std::max<int64_t>(end - window_, 0);
        lookup->steady_count = row.sequence->runs(layer_, head, oldest, end, steady_at);
      } else {
        lookup->segments =
            queue_ ? row.sequence->views_on_device(layer_, head) : row.sequence->views(layer_, head);
        lookup->segment_count = static_cast<int32_t>(row.sequence->segments().size());
        lookup->partition_count = static_cast<int32_t>(own);
        lookup->indexed_tokens = row.sequence->indexed_tokens();
        lookup->zones = zones_of(*row.params, lookup->indexed_tokens, lookup->partition_count);
        lookup->wanted = row.wanted.data();
        lookup->wanted_count = static_cast<int32_t>(row.wanted.size());
        lookup->steady_count = row.sequence->steady_runs(layer_, head, end, steady_at);
      }
      args_.usual_tokens = std::max(args_.usual_tokens, end - lookup->indexed_tokens + lookup->zones.budget);
      args_.most_partitions = std::max(args_.most_partitions, lookup->partition_count);
      args_.most_segments = std::max(args_.most_segments, lookup->segment_count);
      steady_at += steady_room(row);
      lookup->retrieved = all.retrieved + at;
      lookup->estimated = all.estimated + at;
      lookup->runs = all.runs + runs_at;
      lookup->run_room = run_room(row, static_cast<int32_t>(own));
      lookup->scores = all.scores + at * static_cast<size_t>(group_);
      at += own;
      runs_at += static_cast<size_t>(lookup->run_room);
      lookup->out = out_ + query_head * static_cast<size_t>(head_dim_);
      lookup->lse = lse_ + query_head;
      lookup->counters = counted_ + i * static_cast<size_t>(kv_heads_) + static_cast<size_t>(head);
    }
  }
  args_.lookups = lookups_.data();
  args_.count = static_cast<int32_t>(count_) * kv_heads_;
  args_.group = group_;
  args_.head_dim = head_dim_;
  args_.kv = kv_;
  args_.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  if (queue_) stage(steady);
  if (queue_ && pinned_ && retrieval_)
    args_.hot = retrieval_->hot_pages(*queue_, 2 * kHotPageTokens * row_bytes(kv_, head_dim_));
  return true;
}

// Room for so many partitions of this pass's lookups, and runs.
Attention::Lists Attention::lists(size_t room, size_t runs) {
  const size_t scores = room * static_cast<size_t>(group_);
  if (!queue_)
    return {grown(retrieved_, room), grown(estimated_, room), grown(runs_, runs), grown(scores_, scores)};
  const auto with_headroom = [](size_t count) {  // as grown() has it, and aligned
    return (count + count / 4 + 63) & ~size_t{63};
  };
  const size_t each = with_headroom(room), of_runs = with_headroom(runs);
  std::byte* const at = queue_->room(
      Queue::kLists, of_runs * sizeof(KvRun) +
                         each * (2 * sizeof(PartitionRef) + static_cast<size_t>(group_) * sizeof(float)));
  auto* const first_run = reinterpret_cast<KvRun*>(at);
  auto* const retrieved = reinterpret_cast<PartitionRef*>(first_run + of_runs);
  return {retrieved, retrieved + each, first_run, reinterpret_cast<float*>(retrieved + 2 * each)};
}

// A run a partition; on a device one for each page that may be in a frame, of what a policy with a budget retrieves.
int32_t Attention::run_room(const Row& row, int32_t partitions) const {
  if (!queue_ || !row.sequence->pinned_segments() || !partitions) return partitions;
  const int64_t budget = zones_of(*row.params, row.sequence->indexed_tokens(), partitions).budget;
  return partitions + static_cast<int32_t>(budget / kHotPageTokens) + kMostHotPages;
}

// The lookups of this pass, and what they point to of the host's, go to the device; `steady` runs.
void Attention::stage(size_t steady) {
  const KvRun* const runs = queue_->stage(steady_.data(), steady);
  if (!runs) return;  // nothing of this step is launched any more, and its end says why
  const Row* row = nullptr;
  const WantedTokens* wanted = nullptr;
  for (int32_t i = 0; i < args_.count; ++i) {
    Lookup& lookup = lookups_[static_cast<size_t>(i)];
    lookup.steady = runs + (lookup.steady - steady_.data());
    const Row& own = rows_[first_ + static_cast<size_t>(i / kv_heads_)];
    if (row != &own) {
      row = &own;
      wanted = own.wanted.empty() ? nullptr : queue_->stage(own.wanted.data(), own.wanted.size());
    }
    lookup.wanted = wanted;
  }
  args_.lookups = queue_->stage(lookups_.data(), static_cast<size_t>(args_.count));
}

void Attention::finish() {
  for (size_t i = 0; i < counters_.size(); ++i) {
    const LookupCounters& counters = counters_[i];
    const Row& row = rows_[i / static_cast<size_t>(kv_heads_)];
    const auto count = [](int64_t number) { return static_cast<uint64_t>(number); };
    StepStats& stats = *row.stats;
    stats.kv_bytes_read +=
        count(counters.attended_tokens) * 2 * row_bytes(row.sequence->shape().dtype, head_dim_);
    stats.retrieved_tokens += count(counters.retrieved_tokens);
    stats.estimated_clusters += count(counters.estimated);
    stats.dropped_clusters += count(counters.dropped);
    stats.buffer_hits += count(counters.retrieved - counters.misses);
    stats.buffer_misses += count(counters.misses);
    if (retrieval_) {
      const Retrieval::Counts& of = retrieval_->counts(i);
      stats.buffer_admissions += of.admissions;
      stats.buffer_refusals += of.refusals;
      stats.buffer_late += of.late;
      stats.buffer_evictions += of.evictions;
      stats.buffer_stalls += of.stalls;
    }
    stats.index_bytes_read += count(counters.index_bytes_read);
    stats.estimated_coverage_sum += counters.estimated_coverage_sum;
    stats.certified_coverage_sum += counters.certified_coverage_sum;
    stats.certified_coverage_min = std::min(stats.certified_coverage_min, counters.certified_coverage_min);
    stats.coverage_count += count(counters.coverage_count);
  }
}

int32_t Attention::partitions(const Row& row, int32_t head) const {
  return window_ ? 0 : row.sequence->partitions(layer_, head);
}

int32_t Attention::steady_room(const Row& row) const {
  return window_ ? row.sequence->max_runs() : row.sequence->max_steady_runs();
}

size_t Attention::list_bytes(const Row& row) const {
  size_t room = 0, runs = 0;
  for (int32_t head = 0; head < kv_heads_; ++head) {
    const int32_t own = partitions(row, head);
    room += static_cast<size_t>(own);
    runs += static_cast<size_t>(run_room(row, own));
  }
  return room * (2 * sizeof(PartitionRef) + static_cast<size_t>(group_) * sizeof(float)) +
         runs * sizeof(KvRun);
}

size_t Attention::bytes() const {
  return lookups_.size() * sizeof(Lookup) + (steady_.size() + runs_.size()) * sizeof(KvRun) +
         (retrieved_.size() + estimated_.size()) * sizeof(PartitionRef) +
         (scores_.size() + own_lse_.size()) * sizeof(float);
}

void Attention::start_clocks(int workers) {
  times_of_.assign(static_cast<size_t>(workers), {});
  start_ = std::chrono::steady_clock::now();
}

// Workers' times side by side, shrunk to the time that passed.
void Attention::add_times(StepStats& times) const {
  constexpr uint64_t StepStats::*kStages[] = {&StepStats::select_ns, &StepStats::retrieve_ns,
                                              &StepStats::attend_ns, &StepStats::estimate_ns};
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start_;
  double all = 1;
  for (const WorkerTimes& worker : times_of_)
    for (auto stage : kStages) all += static_cast<double>(worker.times.*stage);
  const double share = static_cast<double>(passed.count()) / all;
  for (const WorkerTimes& worker : times_of_)
    for (auto stage : kStages)
      times.*stage += static_cast<uint64_t>(share * static_cast<double>(worker.times.*stage));
}

}  // namespace wi
