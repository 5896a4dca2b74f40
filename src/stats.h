// What a step did and how long its stages took. Stages add up to a session's statistics.
#pragma once

#include <chrono>
#include <cstdint>

#include "waveinfer.h"

namespace wi {

class Sequence;

struct StepStats {
  uint64_t weights_ns = 0, select_ns = 0, retrieve_ns = 0, attend_ns = 0, estimate_ns = 0, index_ns = 0;
  uint64_t kv_bytes_read = 0, index_bytes_read = 0;  // kv_bytes_read counts keys and values only
  uint64_t retrieved_tokens = 0, estimated_clusters = 0, dropped_clusters = 0;
  uint64_t buffer_hits = 0, buffer_misses = 0;
  // Of a slow tier that is a file: what became of the misses, and what that cost.
  uint64_t buffer_admissions = 0, buffer_refusals = 0, buffer_late = 0, buffer_evictions = 0,
           buffer_stalls = 0;
  uint64_t sealed_tokens = 0;  // for which an index was made; a cut makes none
  double estimated_coverage_sum = 0, certified_coverage_sum = 0, certified_coverage_min = 1;
  uint64_t coverage_count = 0;  // lookups summed

  void add(const StepStats& other);
  // Of it, what it found in the fast tier and what it had to bring there.
  void add_buffer(const StepStats& other);
};

// What a sequence and its steps say about themselves, in the ABI's form; the rest of `out` is left alone.
void fill_stats(const Sequence& sequence, const StepStats& steps, wi_session_stats& out);

// Adds the time from its construction to its end to a counter: StageTimer timer(stats.select_ns);
class StageTimer {
 public:
  explicit StageTimer(uint64_t& total_ns) : total_ns_(total_ns), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() {
    total_ns_ += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_)
            .count());
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  uint64_t& total_ns_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace wi
