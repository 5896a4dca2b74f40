// What a policy is: three operations (Index, Select, Estimate; design after SPIN's unified framework) over
// sealed segments. Attending exactly and retrieving are shared by all policies. One file per policy and
// backend; a policy's row in the backend's table is all that the rest of the library knows of it.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/types.h"

namespace wi {

struct PolicyParams {
  int32_t segment_tokens = 8192;
  int32_t decode_segment_tokens = 256;
  int32_t tokens_per_centroid = 16;
  int32_t kmeans_iterations = 10;
  int32_t local_window = 64;
  int32_t max_cluster_tokens = 64;  // larger clusters are split, so that none eats the budget alone
  float budget = 0.018f;            // share of the indexed tokens retrieved
  float estimation = 0.232f;        // share of the clusters estimated
  float target_mass = 0;            // > 0: retrieve until this share of the mass is covered
  float budget_floor = 0.00225f;    // with target_mass
  float budget_ceiling = 0.072f;
  int32_t repeats = 2;  // places where the newest tokens stood before, to be followed
};

struct SlowPlane;  // of src/buffer: keys and values that are not in the fast tier
struct HotPages;   // hot_pages.h

// One sealed segment as a policy sees it: one layer, one KV head. On a device all of it is in the device's memory,
// the lists of segments and of lookups too.
struct SegmentView {
  const void* keys = nullptr;        // (tokens, head_dim) KV dtype, partition by partition
  const void* values = nullptr;      // (tokens, head_dim) likewise
  const SlowPlane* slow = nullptr;   // where they are instead; null: in the fast tier
  const int32_t* offsets = nullptr;  // (partitions + 1) where each partition begins in the stored order
  const int32_t* places = nullptr;   // (tokens) in order of position: each token's place in the stored order
  const void* index = nullptr;       // the policy's own bytes, position-independent; null if it keeps none
  int32_t tokens = 0;
  int32_t partitions = 0;
  // Of a device, where keys and values are in pinned memory (hot_pages.h): the number of the segment's first page, 0
  // where they are in the device's own; and the frame of each page, hot_page_slots(tokens, partitions).
  uint64_t first_page = 0;
  int32_t* frames = nullptr;

  KvRun run(int32_t partition, size_t row_bytes) const {
    const size_t at = static_cast<size_t>(offsets[partition]) * row_bytes;
    return {static_cast<const std::byte*>(keys) + at, static_cast<const std::byte*>(values) + at,
            offsets[partition + 1] - offsets[partition]};
  }
};

// Build the index of one (layer, KV head) of a segment and lay its tokens out partition by partition.
// Runs on one worker; different heads run side by side. Deterministic: same input, same bytes.
struct IndexArgs {
  const KvRun* runs;  // the segment's tokens in order of position
  int32_t run_count;
  int32_t tokens;  // over all runs
  int32_t head_dim;
  DType kv;
  const PolicyParams* params;
  void* keys;       // out (tokens, head_dim)
  void* values;     // out (tokens, head_dim)
  int32_t* places;  // out (tokens) as SegmentView has them
  void* index;      // out, index_capacity() bytes, 64-byte aligned, zeroed by the caller
};
struct IndexResult {
  int32_t partitions = 0;
  size_t index_bytes = 0;  // used, from the start
};

// Index in pieces of some tenth of a millisecond at 1,024 tokens, for whoever can't wait for all of it. They
// are done in order, each on any worker, with what those before left in `state`, which is 64-byte aligned and
// need not be zeroed. Together they write what index() writes.
struct IndexPieces {
  int32_t (*count)(const IndexArgs& args);  // depends on sizes and parameters alone
  size_t (*state_bytes)(const IndexArgs& args);
  IndexResult (*run)(const IndexArgs& args, std::byte* state, int32_t piece);  // the last one's result counts
};

struct PartitionRef {
  int32_t segment;    // in the lookup's list
  int32_t partition;  // in the segment
};

// Tokens [begin, end) of a segment, in order of position, that a query should see whatever their rank.
struct WantedTokens {
  int32_t segment;  // in the lookup's list
  int32_t begin, end;
};

// What a query's zones may take: its session's parameters as numbers.
struct Zones {
  int64_t budget = 0;     // tokens to retrieve; with target_mass the most
  int64_t floor = 0;      // with target_mass: the least
  float target_mass = 0;  // > 0: until this share of the mass is covered
  int32_t estimated = 0;  // partitions to estimate
};

// A share of tokens, as every policy rounds it: up, and in f32, so that 0.1f of 1000 is 100 and not a little
// more.
inline int64_t share_of(float share, int64_t tokens) {
  if (!(share > 0)) return 0;
  return share >= 1 ? tokens : static_cast<int64_t>(std::ceil(share * static_cast<float>(tokens)));
}

inline Zones zones_of(const PolicyParams& params, int64_t indexed_tokens, int32_t partitions) {
  const bool to_target = params.target_mass > 0;
  const float estimated = std::clamp(params.estimation, 0.0f, 1.0f) * static_cast<float>(partitions);
  return {.budget = share_of(to_target ? params.budget_ceiling : params.budget, indexed_tokens),
          .floor = to_target ? share_of(params.budget_floor, indexed_tokens) : 0,
          .target_mass = to_target ? params.target_mass : 0,
          .estimated = static_cast<int32_t>(std::lround(estimated))};
}

// What lookups did, added up by the operations that did it: of one row's KV head, over the layers of a step.
// alignas: rows' heads are looked up on different workers.
struct alignas(64) LookupCounters {
  int64_t attended_tokens = 0;                        // exactly, by attend
  int64_t retrieved_tokens = 0;                       // of those, what select picked
  int64_t index_bytes_read = 0;                       // by select and estimate
  int64_t retrieved = 0, estimated = 0, dropped = 0;  // partitions, by select
  int64_t misses = 0;                                 // of those retrieved, what was not in the fast tier
  // By estimate, of lookups' coverage_head: shares of attention mass.
  double estimated_coverage_sum = 0, certified_coverage_sum = 0, certified_coverage_min = 1;
  int64_t coverage_count = 0;
};

// One query position of one session at one KV head: the unit of select, retrieve, attend and estimate.
// The pipeline fills the inputs, select and retrieve fill the middle, attend and estimate the output.
struct Lookup {
  const float* query = nullptr;  // (group, head_dim) rotated, not scaled
  Zones zones;
  // sealed past
  const SegmentView* segments = nullptr;
  int32_t segment_count = 0;
  int32_t partition_count = 0;  // over all segments
  int64_t indexed_tokens = 0;
  const WantedTokens* wanted = nullptr;  // the most wanted first
  int32_t wanted_count = 0;
  int32_t coverage_head = 0;  // the query head of the group whose coverage is to be reported
  // steady zone: the head, the unsealed tail up to the query's own position
  const KvRun* steady = nullptr;
  int32_t steady_count = 0;
  // select writes these; each list has room for partition_count entries
  PartitionRef* retrieved = nullptr;
  int32_t retrieved_count = 0;
  PartitionRef* estimated = nullptr;
  int32_t estimated_count = 0;
  // (group, partition_count) q·c/√d, lookup order: segments, then partitions. Estimate may spoil them.
  float* scores = nullptr;
  // retrieve writes these: the retrieved partitions as runs in the fast tier; room for run_room, at least
  // partition_count. Of lookups that read all segments (LookupArgs): null, and run_count is segment_count.
  KvRun* runs = nullptr;
  int32_t run_room = 0, run_count = 0;
  // output: normalised attention and its LSE (natural log) per query head of the group
  float* out = nullptr;                // (group, head_dim); query head h of the group starts at h * head_dim
  float* lse = nullptr;                // (group)
  LookupCounters* counters = nullptr;  // added to by select, retrieve, attend and estimate
};

// Lookups of one layer of one step. All share head_dim, group and KV type.
struct LookupArgs {
  Lookup* lookups;
  int32_t count;
  int32_t group;  // query heads per KV head
  int32_t head_dim;
  DType kv;
  float scale;  // 1/√head_dim, applied to every q·k
  // Of a device: each segment is read as a whole and where it lies, by attend, which takes it from the lookup's list;
  // select and retrieve have nothing to do.
  bool all_segments = false;
  // Of the largest lookup, for devices, which cut their work up before they see it; none changes a bit.
  int64_t usual_tokens = 0;  // attended exactly, about
  int32_t most_partitions = 0, most_segments = 0;
  // Of a device whose lookups have segments in pinned memory: where retrieve looks for their pages; null: there is
  // none, and they are read where they lie. The host's own struct.
  const HotPages* hot = nullptr;
};

// Counts what select did. retrieved_tokens: of what it picked.
inline void count_zones(const Lookup& lookup, int64_t retrieved_tokens, int64_t index_bytes = 0) {
  LookupCounters& counters = *lookup.counters;
  counters.retrieved_tokens += retrieved_tokens;
  counters.retrieved += lookup.retrieved_count;
  counters.estimated += lookup.estimated_count;
  counters.dropped += lookup.partition_count - lookup.retrieved_count - lookup.estimated_count;
  counters.index_bytes_read += index_bytes;
}

struct Policy {
  const char* name;
  // Of the layout of its index, for indexes in files: one of another version is built anew. 0: it keeps none.
  uint32_t index_version = 0;
  bool wants_repeats = false;  // whether select looks at the lookups' wanted tokens
  // Whether a lookup's stages have more in common than a lookup has parts: one worker then does them all, while
  // its cache has what select wrote and estimate reads.
  bool depth_first = false;
  // Of a device: whether select picks every segment, each of which is one partition, so that it need not be asked where
  // all of them are in the device's own memory.
  bool selects_all = false;
  // Upper bounds for one head of a segment of this many tokens.
  int32_t (*most_partitions)(const PolicyParams& params, int32_t tokens);
  size_t (*index_capacity)(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv);
  IndexResult (*index)(const Stream& stream, int worker, const IndexArgs& args);
  const IndexPieces* pieces = nullptr;  // null: index() takes no longer than a piece may
  // Of a device: index() of several planes of one shape at once. All of their pointers are the device's, places and
  // index too, which nobody need have zeroed; keys and values, in and out, may be in pinned memory. workspace: (count,
  // index_workspace()) bytes of the device's, 256-byte aligned. What it writes and the results are there when the queue
  // is finished. Null: the host's index() makes it, of copies.
  void (*index_planes)(const Stream& stream, const IndexArgs* planes, int32_t count, void* workspace,
                       IndexResult* results) = nullptr;
  size_t (*index_workspace)(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv) = nullptr;
  // The index of the first args.tokens tokens of a segment that has more: what is left of each of its
  // partitions, in their order, without looking for new ones. As index(), but args.index has as many bytes as the
  // whole segment's index. Null: index() looks for nothing and does as well.
  IndexResult (*cut)(const Stream& stream, int worker, const IndexArgs& args, const SegmentView& whole);
  // SegmentView's offsets of a layout that index(), pieces or cut() made. Null: a segment is one partition.
  void (*partition_offsets)(const void* index, int32_t partitions, int32_t tokens, int32_t* offsets);
  // Ranks the partitions and splits them into zones: fills retrieved, estimated, scores, and counts.
  void (*select)(const Stream& stream, const LookupArgs& args);
  // Merges the estimated partitions into out and lse, and counts coverage. Null: estimates nothing.
  void (*estimate)(const Stream& stream, const LookupArgs& args);
  // Whether untrusted bytes (of a session file) are an index that the operations above can read safely.
  // Null: the policy keeps none, and a segment is one partition.
  bool (*index_valid)(const void* index, size_t bytes, int32_t partitions, int32_t tokens, int32_t head_dim,
                      DType kv);
  const char* description;  // one line, for hosts that let their users choose
};

}  // namespace wi
