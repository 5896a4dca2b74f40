// What wave_select.cpp asks of its vector half (wave_rank.cpp): one lookup at a time, on the calling worker.
#pragma once

#include "kernels/policy.h"

namespace wi::cpu {

// A lookup's working memory, n = lookup.partition_count.
constexpr size_t kRankRoom = 16;  // of any vector
constexpr int kRankHeads = 4;     // at a time
constexpr float kRankLimit = 0x1p15f;
struct RankScratch {
  std::byte* query;  // score_query_bytes()
  float* weights;    // (kRankHeads, n + kRankRoom)
  int32_t* bits;     // (n + kRankRoom)
  int32_t* sizes;    // (n + kRankRoom)
};

// Segments [first, end) of a lookup, whose partitions before them are so many.
struct SegmentRun {
  int32_t first, end;
  size_t partitions_before;
};

// Fills what the run's partitions have in lookup.scores. query: score_query_bytes() of scratch.
void score_partitions(const LookupArgs& args, const Lookup& lookup, const SegmentRun& run, std::byte* query);

// Fills the partitions' sizes and, from lookup.scores, each partition's rank: the sum over the group of the softmax,
// over the lookup's partitions, of what its best token likely scores, q·c/√d + kWaveBestAbove · |q| · radius /
// d; as the bits of a float in [0, kRankLimit], which compare as the ranks do (NaN counts as 0).
void rank_partitions(const LookupArgs& args, const Lookup& lookup, const RankScratch& scratch);

// A second look at some clusters: rank_again() fills bits with their ranks among each other, the sum over the
// group of the softmax of what their best tokens likely score, knowing their axes; in [0, kRankLimit]
// likewise. The lists have room for kRankRoom more.
struct SecondLook {
  size_t count;
  int32_t* numbers;        // in the lookup
  const std::byte** rows;  // their axes, on their way into the cache
  float* residuals;
  float* query;   // query_floats()
  float* scores;  // (kRankHeads, count + kRankRoom)
  int32_t* bits;  // out
};
void rank_again(const LookupArgs& args, const Lookup& lookup, const SecondLook& look);

// Σ weights[i] over bits[i] ≥ pivot ≥ 0; null weights count 1 each. All weights together fit 31 bits.
int64_t weight_ranked_from(const int32_t* bits, const int32_t* weights, size_t count, int32_t pivot);

// The i with bits[i] ≥ pivot ≥ 0, ascending; returns how many. out: room for count + 16.
size_t ranked_from(const int32_t* bits, size_t count, int32_t pivot, int32_t* out);

// Copies the entries with low ≤ bits < high; returns how many. Null weights count 1 each. The outputs have
// room for kRankRoom more.
size_t ranked_between(const int32_t* bits, const int32_t* weights, size_t count, int32_t low, int32_t high,
                      int32_t* out_bits, int32_t* out_weights);

// Estimated attention mass per cluster and query head, masses (group, n + 16) (wave_mass-inl.h), of the
// steady zone (group), exact, and of all together (group); each head in a unit of its own. query: scratch,
// query_floats(). sizes and extents have room for 16 more.
size_t query_floats(const LookupArgs& args);
void cluster_masses(const LookupArgs& args, const Lookup& lookup, float* query, const int32_t* sizes,
                    const uint32_t* extents, float* masses, double* steady, double* total);

}  // namespace wi::cpu
