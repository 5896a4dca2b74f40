#include "src/stats.h"

#include <algorithm>

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
  buffer_hits += other.buffer_hits;
  buffer_misses += other.buffer_misses;
  estimated_coverage_sum += other.estimated_coverage_sum;
  certified_coverage_sum += other.certified_coverage_sum;
  certified_coverage_min = std::min(certified_coverage_min, other.certified_coverage_min);
  coverage_count += other.coverage_count;
}

}  // namespace wi
