// The attention of a step: which rows look up which sequences, layer by layer, and the buffers that select,
// retrieve, attend and estimate fill. Rows are taken in passes, so that a batch over a million tokens does
// not need every row's lists at once. Buffers only grow.
//
// In a layer with a window a lookup's steady zone is what the window shows and there is no sealed past, so
// that the stages do there what they do in a sequence of which nothing is sealed yet, whatever the policy.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/buffer/retrieval.h"
#include "src/memory/device.h"
#include "src/pipeline/row.h"
#include "src/stats.h"

namespace wi {

// Lookups that go through the stages together, and where the stages note how long they took.
struct Pass {
  const Policy& policy;
  const LookupArgs args;
  StepStats& times;
  Retrieval* slow;  // for those whose segments are in the slow tier; null: none is
};

// Of a device's pass: a launch has 65,535 of them at most, and each has room there for partial results of its chunks,
// half a megabyte in an 8B model.
constexpr size_t kMostLookups = 512;
// Of a device, what lists that were copied there take until the queue is finished, for which the host waits once: a
// chunk of a prompt that is read sparsely has hundreds of megabytes of them.
constexpr size_t kMostStaged = size_t{32} << 20;

class Attention {
 public:
  // What changes from step to step comes in here, and what lookups counted leaves at finish(), for the rows'
  // statistics. All rows' sequences are of one shape but for the KV type. group: query heads per KV head.
  // retrieval: of this step; null: no sequence is in a slow tier. queue: null on the host's own processor; where
  // there is one, lookups and their lists are in the device's memory, and the numbers of a step's lookups leave with
  // fetch(), before the queue is finished, and finish(), after it.
  void begin(std::span<const Row> rows, int32_t group, Retrieval* retrieval, Queue* queue = nullptr);
  void fetch();
  void finish();

  // queries and out: (rows, kv_heads * group, head_dim); lse: (rows, kv_heads * group) or null.
  void open(int32_t layer, const float* queries, float* out, float* lse);
  // The lookups of the next rows that share a policy and a KV type and fit the buffers, whatever their
  // sessions' parameters. False: no rows are left.
  bool next_pass();
  // Calls stages(stream, pass) once with all lookups of this pass, so that every worker is at each stage; or,
  // where the policy likes it so and there are lookups for all workers, for each lookup on some worker, while
  // that worker's cache has what select wrote and estimate reads. Adds the stages' shares of the time that
  // passed to `times`.
  template <class Stages>
  void run(const Stream& stream, StepStats& times, Stages&& stages) {
    run(stream, {*rows_[pass_.first].policy, args(), times, pass_.slow ? retrieval_ : nullptr}, stages);
  }
  template <class Stages>
  void run(const Stream& stream, const Pass& pass, Stages&& stages) {
    const LookupArgs& all = pass.args;
    // All that a layer wants of the slow tier is asked for at once.
    if (!pass.policy.depth_first || !stream.alone || all.count < stream.workers || pass.slow)
      return stages(stream, pass);
    start_clocks(stream.workers);
    stream.each(all.count, [&](int64_t i, int worker) {
      LookupArgs one = all;
      one.lookups += i;
      one.count = 1;
      stages(stream.alone(stream, worker),
             Pass{pass.policy, one, times_of_[static_cast<size_t>(worker)].times, nullptr});
    });
    add_times(pass.times);
  }

  LookupArgs args() const { return pass_.args; }
  size_t bytes() const;

 private:
  struct Activations {
    const float* queries = nullptr;
    float *out = nullptr, *lse = nullptr;
    bool operator==(const Activations&) const = default;
  };
  struct LaidOut {  // a pass
    int32_t layer = 0;
    size_t first = 0, count = 0;  // rows
    LookupArgs args{};
    bool slow = false, pinned = false;  // some of it is in that tier
  };
  struct Needs {
    size_t steady = 0, room = 0, runs = 0;
  };
  struct Lists {
    PartitionRef *retrieved, *estimated;
    KvRun* runs;
    float* scores;
  };
  int32_t layers_at_once(int32_t layer) const;
  void prepare(int32_t layer, int32_t count, size_t from);
  Needs plan(int32_t layer, size_t first);
  void fill(LaidOut& pass, const Lists& all, KvRun*& steady);
  int64_t exact_tokens(const Row& row, const Lookup& lookup, int32_t window) const;
  void stage(size_t lookups, size_t steady);
  void count_staged(size_t bytes);
  size_t stage_wanted();
  int32_t window(int32_t layer) const;  // 0: none
  int32_t partitions(int32_t layer, const Row& row, int32_t head) const;
  int32_t steady_room(int32_t layer, const Row& row) const;
  size_t list_bytes(int32_t layer, const Row& row) const;
  Lists lists(size_t room, size_t runs);
  int32_t run_room(const Row& row, int32_t partitions) const;
  void start_clocks(int workers);
  void add_times(StepStats& times) const;

  std::span<const Row> rows_;
  int32_t layer_ = 0, group_ = 1, kv_heads_ = 1, head_dim_ = 0;
  Activations activations_;
  Retrieval* retrieval_ = nullptr;
  Queue* queue_ = nullptr;
  LookupCounters* counted_ = nullptr;           // (rows, kv_heads) where stages count
  std::vector<LaidOut> passes_;                 // of this layer and some after it
  size_t next_ = 0;                             // of passes_
  size_t left_from_ = 0;                        // of the layer's rows, the first without a pass yet
  size_t staged_ = 0;                           // bytes of lists that the queue has, and of these:
  const WantedTokens* wanted_there_ = nullptr;  // (rows, kMostWanted); null: no row's policy looks at them
  LaidOut pass_;                                // this one

  std::vector<LookupCounters> counters_;  // (rows, kv_heads)
  std::vector<Lookup> lookups_;
  std::vector<KvRun> steady_;
  std::vector<PartitionRef> retrieved_, estimated_;
  std::vector<KvRun> runs_;
  std::vector<float> scores_;
  std::vector<float> own_lse_;        // where the caller wants none
  std::vector<WantedTokens> wanted_;  // (rows, kMostWanted) for a device

  struct alignas(64) WorkerTimes {
    StepStats times;
  };
  std::vector<WorkerTimes> times_of_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace wi
