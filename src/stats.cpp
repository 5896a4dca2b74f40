#include "src/stats.h"

#include <algorithm>

#include "src/store/sequence.h"

namespace wi {

void StepStats::add(const StepStats& other) {
  weights_ns += other.weights_ns;
  select_ns += other.select_ns;
  retrieve_ns += other.retrieve_ns;
  attend_ns += other.attend_ns;
  estimate_ns += other.estimate_ns;
  index_ns += other.index_ns;
  kv_bytes_read += other.kv_bytes_read;
  index_bytes_read += other.index_bytes_read;
  retrieved_tokens += other.retrieved_tokens;
  estimated_clusters += other.estimated_clusters;
  dropped_clusters += other.dropped_clusters;
  add_buffer(other);
  sealed_tokens += other.sealed_tokens;
  estimated_coverage_sum += other.estimated_coverage_sum;
  certified_coverage_sum += other.certified_coverage_sum;
  certified_coverage_min = std::min(certified_coverage_min, other.certified_coverage_min);
  coverage_count += other.coverage_count;
}

void StepStats::add_buffer(const StepStats& other) {
  buffer_hits += other.buffer_hits;
  buffer_misses += other.buffer_misses;
  buffer_admissions += other.buffer_admissions;
  buffer_refusals += other.buffer_refusals;
  buffer_late += other.buffer_late;
  buffer_evictions += other.buffer_evictions;
  buffer_stalls += other.buffer_stalls;
}

void fill_stats(const Sequence& sequence, const StepStats& steps, wi_session_stats& out) {
  // Who leaves out without an estimate does not know what that was.
  const double nothing_measured = steps.dropped_clusters ? 0 : 1;
  const auto mean = [&](double sum) {
    return steps.coverage_count ? sum / static_cast<double>(steps.coverage_count) : nothing_measured;
  };
  out.segments = static_cast<int32_t>(sequence.segments().size());
  out.tokens = static_cast<uint64_t>(sequence.tokens());
  out.kv_bytes = sequence.bytes();
  out.index_bytes = sequence.index_bytes();
  out.slow_bytes = sequence.slow_bytes();
  out.kv_bytes_read = steps.kv_bytes_read + steps.index_bytes_read;
  out.index_bytes_read = steps.index_bytes_read;
  out.retrieved_tokens = steps.retrieved_tokens;
  out.estimated_clusters = steps.estimated_clusters;
  out.dropped_clusters = steps.dropped_clusters;
  out.buffer_hits = steps.buffer_hits;
  out.buffer_misses = steps.buffer_misses;
  out.buffer_admissions = steps.buffer_admissions;
  out.buffer_refusals = steps.buffer_refusals;
  out.buffer_late = steps.buffer_late;
  out.buffer_evictions = steps.buffer_evictions;
  out.buffer_stalls = steps.buffer_stalls;
  out.index_ns = steps.index_ns;
  out.weights_ns = steps.weights_ns;
  out.select_ns = steps.select_ns;
  out.retrieve_ns = steps.retrieve_ns;
  out.attend_ns = steps.attend_ns;
  out.estimate_ns = steps.estimate_ns;
  out.estimated_coverage = mean(steps.estimated_coverage_sum);
  out.certified_coverage = mean(steps.certified_coverage_sum);
  out.certified_coverage_min = steps.coverage_count ? steps.certified_coverage_min : nothing_measured;
}

}  // namespace wi
