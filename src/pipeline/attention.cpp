#include "src/pipeline/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/hot_pages.h"

namespace wi {
namespace {

constexpr size_t kPassBytes = size_t{64} << 20;  // of lists and scores; at least one row always runs
constexpr int32_t kLayersAhead = 8;
constexpr size_t kListsAhead = size_t{16} << 20;  // of layers that are laid out together, but for one layer's

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
  passes_.clear();
  next_ = 0;
  left_from_ = rows.size();
  staged_ = 0;
  wanted_there_ = nullptr;
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
  if (!lse) lse = grown(own_lse_, rows_.size() * static_cast<size_t>(kv_heads_ * group_));
  const Activations here{queries, out, lse};
  if (next_ == passes_.size() || passes_[next_].layer != layer || activations_ != here) {
    activations_ = here;
    prepare(layer, layers_at_once(layer), 0);
  }
  layer_ = layer;
}

bool Attention::next_pass() {
  if (next_ == passes_.size() && left_from_ < rows_.size()) prepare(layer_, 1, left_from_);
  if (next_ == passes_.size() || passes_[next_].layer != layer_) return false;
  pass_ = passes_[next_++];
  if (queue_ && pass_.pinned && retrieval_)
    pass_.args.hot = retrieval_->hot_pages(*queue_, 2 * kHotPageTokens * row_bytes(pass_.args.kv, head_dim_));
  return true;
}

// A device gets lists of many layers at once: between two kernels a copy costs more than a small kernel. Those of the
// first alone, so that it begins; of all, where nothing begins before all is asked for.
int32_t Attention::layers_at_once(int32_t layer) const {
  if (!queue_) return 1;
  if (queue_->in_step()) return rows_.front().sequence->shape().layers;
  return layer > 0 ? kLayersAhead : 1;
}

// Lays out the passes of `count` layers from this one on, in order, and of its rows from `from` on; their lists are in the
// same room, for a pass begins when the one before has ended. On a host passes with many lists wait for those before.
void Attention::prepare(int32_t layer, int32_t count, size_t from) {
  passes_.clear();
  next_ = 0;
  const int32_t end = std::min(layer + count, std::max(rows_.front().sequence->shape().layers, layer + 1));
  size_t lookups = 0, steady = 0, room = 0, runs = 0;
  const auto staged_bytes = [&] { return lookups * sizeof(Lookup) + steady * sizeof(KvRun); };
  left_from_ = rows_.size();
  for (int32_t l = layer; l < end && (l == layer || staged_bytes() < kListsAhead); ++l)
    for (size_t first = from; first < rows_.size();) {
      if (!queue_ && staged_bytes() > kListsAhead) {
        left_from_ = first;
        break;
      }
      const Needs needs = plan(l, first);
      lookups += passes_.back().count * static_cast<size_t>(kv_heads_);
      steady += needs.steady;
      room = std::max(room, needs.room);
      runs = std::max(runs, needs.runs);
      first += passes_.back().count;
    }
  if (queue_) count_staged(staged_bytes());
  Lookup* lookup = grown(lookups_, lookups);
  KvRun* steady_at = grown(steady_, steady);
  const Lists all = lists(room, runs);
  for (LaidOut& pass : passes_) {
    pass.args.lookups = lookup;
    fill(pass, all, steady_at);
    lookup += pass.args.count;
  }
  if (queue_) stage(lookups, steady);
}

// The next rows from `first` on that share a policy and a KV type and fit the buffers.
Attention::Needs Attention::plan(int32_t layer, size_t first) {
  const Row& head_row = rows_[first];
  const bool windowed = window(layer) != 0;
  LaidOut& pass = passes_.emplace_back();
  pass.layer = layer;
  pass.first = first;
  pass.args.kv = head_row.sequence->shape().dtype;
  Needs needs;
  size_t bytes = 0;
  for (size_t i = first; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.policy != head_row.policy || row.sequence->shape().dtype != pass.args.kv) break;
    bytes += list_bytes(layer, row);
    if (pass.count && bytes > kPassBytes) break;
    if (pass.count && queue_ && (pass.count + 1) * static_cast<size_t>(kv_heads_) > kMostLookups) break;
    needs.steady += static_cast<size_t>(steady_room(layer, row)) * static_cast<size_t>(kv_heads_);
    for (int32_t head = 0; head < kv_heads_; ++head) {
      const int32_t own = partitions(layer, row, head);
      needs.room += static_cast<size_t>(own);
      needs.runs += static_cast<size_t>(run_room(row, own));
    }
    pass.slow = pass.slow || (!windowed && row.sequence->slow_segments() > 0);
    pass.pinned = pass.pinned || (!windowed && row.sequence->pinned_segments() > 0);
    ++pass.count;
  }
  pass.args.all_segments = queue_ && head_row.policy->selects_all && !pass.slow && !pass.pinned;
  return needs;
}

// About how many tokens a lookup attends to exactly.
int64_t Attention::exact_tokens(const Row& row, const Lookup& lookup, int32_t window) const {
  const int64_t end = row.position + 1;
  if (window) return std::min<int64_t>(window, end);
  if (!row.policy->partition_offsets) return end;  // a segment is one partition: all are retrieved
  return end - lookup.indexed_tokens + lookup.zones.budget;
}

// The lookups of a pass, from args.lookups on. steady: where the next ones' steady runs go.
void Attention::fill(LaidOut& pass, const Lists& all, KvRun*& steady) {
  LookupArgs& args = pass.args;
  Lookup* lookup = args.lookups;
  const int32_t layer = pass.layer, window = this->window(layer);
  size_t at = 0, runs_at = 0;  // in all of them
  for (size_t i = pass.first; i < pass.first + pass.count; ++i) {
    const Row& row = rows_[i];
    for (int32_t head = 0; head < kv_heads_; ++head, ++lookup) {
      const size_t query_head =
          i * static_cast<size_t>(kv_heads_ * group_) + static_cast<size_t>(head * group_);
      const size_t own = static_cast<size_t>(partitions(layer, row, head));
      *lookup = Lookup{};
      lookup->query = activations_.queries + query_head * static_cast<size_t>(head_dim_);
      // Coverage is a statistic, and that of one head costs a quarter of what that of four does: KV heads
      // take turns, and so do steps.
      const int64_t end = row.position + 1;
      lookup->coverage_head = static_cast<int32_t>((end + head) % group_);
      lookup->steady = steady;
      if (window) {
        const int64_t oldest = std::max<int64_t>(end - window, 0);
        lookup->steady_count = row.sequence->runs(layer, head, oldest, end, steady);
      } else {
        lookup->segments =
            queue_ ? row.sequence->views_on_device(layer, head) : row.sequence->views(layer, head);
        lookup->segment_count = static_cast<int32_t>(row.sequence->segments().size());
        lookup->partition_count = static_cast<int32_t>(own);
        lookup->indexed_tokens = row.sequence->indexed_tokens();
        lookup->zones = zones_of(*row.params, lookup->indexed_tokens, lookup->partition_count);
        lookup->wanted = row.wanted.data();
        lookup->wanted_count = static_cast<int32_t>(row.wanted.size());
        lookup->steady_count = row.sequence->steady_runs(layer, head, end, steady);
      }
      args.usual_tokens = std::max(args.usual_tokens, exact_tokens(row, *lookup, window));
      args.most_partitions = std::max(args.most_partitions, lookup->partition_count);
      args.most_segments = std::max(args.most_segments, lookup->segment_count);
      steady += steady_room(layer, row);
      lookup->retrieved = all.retrieved + at;
      lookup->estimated = all.estimated + at;
      if (args.all_segments)
        lookup->run_count = lookup->segment_count;
      else
        lookup->runs = all.runs + runs_at;
      lookup->run_room = run_room(row, static_cast<int32_t>(own));
      lookup->scores = all.scores + at * static_cast<size_t>(group_);
      at += own;
      runs_at += static_cast<size_t>(lookup->run_room);
      lookup->out = activations_.out + query_head * static_cast<size_t>(head_dim_);
      lookup->lse = activations_.lse + query_head;
      lookup->counters = counted_ + i * static_cast<size_t>(kv_heads_) + static_cast<size_t>(head);
    }
  }
  if (queue_) {  // the same for many steps, so that they are alike
    const auto unit = std::max<uint64_t>(std::bit_floor(static_cast<uint64_t>(args.usual_tokens)) / 8, 64);
    args.usual_tokens =
        static_cast<int64_t>((static_cast<uint64_t>(args.usual_tokens) + unit - 1) / unit * unit);
  }
  args.count = static_cast<int32_t>(pass.count) * kv_heads_;
  args.group = group_;
  args.head_dim = head_dim_;
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
}

// Room for so many partitions of a pass's lookups, and runs.
Attention::Lists Attention::lists(size_t room, size_t runs) {
  const size_t scores = room * static_cast<size_t>(group_);
  if (!queue_)
    return {grown(retrieved_, room), grown(estimated_, room), grown(runs_, runs), grown(scores_, scores)};
  const auto aligned = [](size_t count) { return (count + 63) & ~size_t{63}; };
  const size_t each = aligned(room), of_runs = aligned(runs);
  const size_t bytes = of_runs * sizeof(KvRun) +
                       each * (2 * sizeof(PartitionRef) + static_cast<size_t>(group_) * sizeof(float));
  std::byte* const at = queue_->room(Queue::kLists, bytes, bytes / 4);  // as grown() has it
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

// What was laid out, and what it points to of the host's, goes to the device.
void Attention::stage(size_t lookups, size_t steady) {
  const KvRun* const runs = queue_->stage(steady_.data(), steady);
  if (!runs) return;  // nothing of this step is launched any more, and its end says why
  for (const LaidOut& pass : passes_)
    for (int32_t i = 0; i < pass.args.count; ++i) {
      Lookup& lookup = pass.args.lookups[i];
      lookup.steady = runs + (lookup.steady - steady_.data());
      const size_t row = pass.first + static_cast<size_t>(i / kv_heads_);
      lookup.wanted = wanted_there_ ? wanted_there_ + row * kMostWanted : nullptr;
    }
  Lookup* const there = queue_->stage(lookups_.data(), lookups);
  if (!there) return;
  for (LaidOut& pass : passes_) pass.args.lookups = there + (pass.args.lookups - lookups_.data());
}

// Lists of so many bytes come next, and the rows' wanted tokens before the first of them. If that is too much beside
// what is staged, that is let go of: all of it is done then.
void Attention::count_staged(size_t bytes) {
  if (staged_ > 0 && staged_ + bytes > kMostStaged) {
    queue_->finish();
    staged_ = 0;
  }
  if (staged_ == 0) staged_ = stage_wanted();
  staged_ += bytes;
}

// In one copy for all layers, with as much room for rows without any: what is staged after them is where it was in the
// last step. Returns its bytes; 0: no row's policy looks at them.
size_t Attention::stage_wanted() {
  wanted_there_ = nullptr;
  if (std::none_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.policy->wants_repeats; }))
    return 0;
  const size_t count = rows_.size() * kMostWanted;
  WantedTokens* const all = grown(wanted_, count);
  for (size_t i = 0; i < rows_.size(); ++i)
    std::copy(rows_[i].wanted.begin(), rows_[i].wanted.end(), all + i * kMostWanted);
  wanted_there_ = queue_->stage(all, count);
  return count * sizeof(WantedTokens);
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

int32_t Attention::window(int32_t layer) const { return rows_.front().sequence->shape().window(layer); }

int32_t Attention::partitions(int32_t layer, const Row& row, int32_t head) const {
  return window(layer) ? 0 : row.sequence->partitions(layer, head);
}

// On a device in eights: most steps in which a tail gets a block have all that lies behind it where the last step had
// it, and are alike.
int32_t Attention::steady_room(int32_t layer, const Row& row) const {
  const int32_t runs = window(layer) ? row.sequence->max_runs() : row.sequence->max_steady_runs();
  return queue_ ? (runs + 7) / 8 * 8 : runs;
}

size_t Attention::list_bytes(int32_t layer, const Row& row) const {
  size_t room = 0, runs = 0;
  for (int32_t head = 0; head < kv_heads_; ++head) {
    const int32_t own = partitions(layer, row, head);
    room += static_cast<size_t>(own);
    runs += static_cast<size_t>(run_room(row, own));
  }
  const size_t steady = static_cast<size_t>(steady_room(layer, row)) * static_cast<size_t>(kv_heads_);
  return room * (2 * sizeof(PartitionRef) + static_cast<size_t>(group_) * sizeof(float)) +
         (runs + steady) * sizeof(KvRun) + static_cast<size_t>(kv_heads_) * sizeof(Lookup);
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
