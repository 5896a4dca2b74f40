// The lanes of one layer of one step: which queries attend to which sequences, and the buffers that select,
// retrieve, attend and estimate fill. Rows are taken in passes, so that a batch over a million tokens does
// not need every row's lists at once. Buffers only grow.
//
// In a layer with a window a lane's steady zone is what the window shows and there is no sealed past, so that
// the stages do there what they do in a sequence of which nothing is sealed yet, whatever the policy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/pipeline/stage_runner.h"
#include "src/stats.h"
#include "src/store/sequence.h"

namespace wi {

// One query position: it sees the sequence's tokens below `end`, its own included.
struct AttendRow {
  const Sequence* sequence = nullptr;
  int64_t end = 0;
  const Policy* policy = nullptr;
  const PolicyParams* params = nullptr;
  StepStats* stats = nullptr;
  std::span<const WantedTokens> wanted = {};
};

class Lanes {
 public:
  // queries and out: (rows, kv_heads * group, head_dim); lse: (rows, kv_heads * group) or null.
  void open(std::span<const AttendRow> rows, int32_t layer, int32_t group, const float* queries, float* out,
            float* lse);
  // Fills the lanes of the next rows that share a policy and a KV type and fit the buffers, whatever their
  // sessions' parameters. False: no rows
  // are left.
  bool next_pass();

  // Takes this pass through the stages (StageRunner); then adds what the lanes report to their rows'
  // statistics.
  template <class Stages>
  void run(const Stream& stream, StepStats& times, Stages&& stages) {
    runner_.run(stream, *rows_[first_].policy, args(), times, stages);
    report();
  }

  LanesArgs args() const;
  size_t bytes() const;

 private:
  int32_t partitions(const AttendRow& row, int32_t head) const;
  int32_t steady_room(const AttendRow& row) const;
  size_t lane_bytes(const AttendRow& row) const;
  void report() const;

  std::span<const AttendRow> rows_;
  int32_t layer_ = 0, group_ = 1, kv_heads_ = 1, head_dim_ = 0;
  int32_t window_ = 0;  // of the layer; 0: none
  DType kv_ = DType::f16;
  const float* queries_ = nullptr;
  float* out_ = nullptr;
  float* lse_ = nullptr;
  size_t first_ = 0, count_ = 0;  // rows of this pass

  std::vector<Lane> lanes_;
  std::vector<KvRun> steady_;
  std::vector<PartitionRef> retrieved_, estimated_;
  std::vector<KvRun> runs_;
  std::vector<float> scores_;
  std::vector<float> own_lse_;  // where the caller wants none

  StageRunner runner_;
};

}  // namespace wi
