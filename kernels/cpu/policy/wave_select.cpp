// The wave policy's Select (RetroInfer §4.2): ranks a lane's clusters and splits them into the retrieval
// zone (in order of rank, until the token budget or the target coverage is reached), the estimation zone
// (the next ones) and the dropped rest. Equal ranks: the lower cluster first. Nothing is sorted but the
// retrieval zone; thresholds are found by bisecting the ranks' bit patterns, each step one vector pass.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/policy/wave.h"
#include "kernels/cpu/policy/wave_rank.h"
#include "kernels/cpu/policy/wave_score.h"

namespace wi::cpu {
namespace {

// Clusters of a lane, numbered through its segments.
struct Clusters {
  int32_t count;
  RankScratch rank;
  int32_t* sizes;       // (count + 16)
  int32_t* first;       // (segments + 1) number of each segment's first cluster
  int32_t* candidates;  // (count + 16)
  int32_t* few_bits;    // (count / 8 + 16)
  int32_t* few_sizes;   // (count / 8 + 16)
  uint64_t* order;      // (count)
  float* query;         // query_floats(), with target_mass
  float* masses;        // (group, count), with target_mass
  double* mass_sums;    // (3, group), with target_mass
};

// The clusters whose rank is above the pivot, and the first `ties` of those that have it.
struct Zone {
  int32_t pivot = INT32_MAX;
  int64_t ties = 0;
};

Clusters scratch_for(const Stream& stream, int worker, const LanesArgs& args, const Lane& lane);
void number_clusters(const Lane& lane, Clusters& clusters);
Zone first_ranked(const Clusters& clusters, const int32_t* weights, int64_t wanted);
int64_t collect(const Clusters& clusters, const Zone& zone, int64_t* tokens);
int64_t covering(const LanesArgs& args, Lane& lane, Clusters& clusters);
void write_zones(Lane& lane, const Clusters& clusters, int64_t retrieved, int64_t estimated);

int64_t share_of(float share, int64_t count) {
  // In f32: 0.1f of 1000 is 100, not a little more.
  if (!(share > 0)) return 0;
  return share >= 1 ? count : static_cast<int64_t>(std::ceil(share * static_cast<float>(count)));
}

void select_lane(const Stream& stream, int worker, const LanesArgs& args, Lane& lane) {
  lane.retrieved_count = lane.estimated_count = lane.dropped_count = 0;
  lane.retrieved_tokens = 0;
  if (lane.partition_count == 0) return;
  const PolicyParams& params = *args.params;
  Clusters clusters = scratch_for(stream, worker, args, lane);
  rank_partitions(args, lane, clusters.rank);
  number_clusters(lane, clusters);

  int64_t retrieved = 0;
  if (params.target_mass > 0) {
    retrieved = covering(args, lane, clusters);
  } else {
    const Zone zone = first_ranked(clusters, clusters.sizes, share_of(params.budget, lane.indexed_tokens));
    retrieved = collect(clusters, zone, &lane.retrieved_tokens);
  }
  const float share = std::clamp(params.estimation, 0.0f, 1.0f);
  const int64_t estimated = std::lround(share * static_cast<float>(clusters.count));
  write_zones(lane, clusters, retrieved, std::min(estimated, clusters.count - retrieved));
}

}  // namespace

void wave_select(const Stream& stream, const LanesArgs& args) {
  stream.each(args.lane_count,
              [&](int64_t task, int worker) { select_lane(stream, worker, args, args.lanes[task]); });
}

namespace {

Clusters scratch_for(const Stream& stream, int worker, const LanesArgs& args, const Lane& lane) {
  const size_t n = static_cast<size_t>(lane.partition_count);
  const size_t masses = args.params->target_mass > 0 ? n * args.group : 0;
  const size_t group = static_cast<size_t>(args.group);
  const size_t query_bytes = score_query_bytes(args.group, args.head_dim);
  const size_t counts[] = {query_bytes / sizeof(float),
                           kRankHeads * (n + kRankRoom),
                           n + kRankRoom,
                           n + kRankRoom,
                           static_cast<size_t>(lane.segment_count) + 1,
                           n + kRankRoom,
                           n / 8 + kRankRoom,
                           n / 8 + kRankRoom,
                           2 * n,
                           masses ? query_floats(args) : 0,
                           masses,
                           6 * group};
  size_t total = 0;
  for (size_t count : counts) total += (count + 15) / 16 * 16;
  float* at = stream.worker_array<float>(worker, total);
  size_t i = 0;
  const auto take = [&] {
    float* array = at;
    at += (counts[i++] + 15) / 16 * 16;
    return array;
  };
  const auto take_ints = [&] { return reinterpret_cast<int32_t*>(take()); };
  Clusters clusters;
  clusters.count = lane.partition_count;
  clusters.rank.query = reinterpret_cast<std::byte*>(take());
  clusters.rank.weights = take();
  clusters.rank.bits = take_ints();
  clusters.sizes = take_ints();
  clusters.first = take_ints();
  clusters.candidates = take_ints();
  clusters.few_bits = take_ints();
  clusters.few_sizes = take_ints();
  clusters.order = reinterpret_cast<uint64_t*>(take());
  clusters.query = take();
  clusters.masses = take();
  clusters.mass_sums = reinterpret_cast<double*>(take());
  return clusters;
}

void number_clusters(const Lane& lane, Clusters& clusters) {
  int32_t at = 0;
  for (int32_t s = 0; s < lane.segment_count; s++) {
    clusters.first[s] = at;
    if (lane.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lane.segments[s].index);
    std::copy_n(index.sizes, index.clusters, clusters.sizes + at);
    at += index.clusters;
  }
  clusters.first[lane.segment_count] = at;
}

// The shortest prefix, in order of rank, whose weights reach `wanted` (all, if they don't). weights: null
// counts clusters.
Zone first_ranked(const Clusters& clusters, const int32_t* weights, int64_t wanted) {
  if (wanted <= 0) return {};
  const int32_t* bits = clusters.rank.bits;
  size_t count = static_cast<size_t>(clusters.count);
  int64_t all = weight_ranked_from(bits, weights, count, 0);
  if (wanted > all) return {.pivot = -1, .ties = 0};
  // The pivot, the highest bits from which on the weights suffice, is in [low, high).
  int32_t low = 0, high = INT32_MAX;
  int64_t from_low = all, from_high = 0, outside = 0;
  while (high - low > 1) {
    if (bits == clusters.rank.bits && from_low - from_high <= clusters.count / 8) {
      // Few are left: go on with only those. Each weighs at least 1.
      count = ranked_between(bits, weights, count, low, high, clusters.few_bits, clusters.few_sizes);
      bits = clusters.few_bits;
      weights = clusters.few_sizes;
      outside = from_high;
    }
    const int32_t middle = low + (high - low) / 2;
    const int64_t from_middle = outside + weight_ranked_from(bits, weights, count, middle);
    if (from_middle >= wanted) {
      low = middle;
      from_low = from_middle;
    } else {
      high = middle;
      from_high = from_middle;
    }
  }
  Zone zone = {.pivot = low, .ties = 0};
  for (size_t i = 0; i < count && from_high < wanted; i++) {
    if (bits[i] != low) continue;
    from_high += weights ? weights[i] : 1;
    zone.ties++;
  }
  return zone;
}

// Sorts by rank, then by number.
uint64_t order_key(const Clusters& clusters, int32_t cluster) {
  const uint64_t descending = static_cast<uint64_t>(INT32_MAX - clusters.rank.bits[cluster]);
  return descending << 32 | static_cast<uint64_t>(cluster);
}

// Calls visit(cluster) for each of the zone, by number.
template <class Visit>
void for_each(const Clusters& clusters, const Zone& zone, Visit visit) {
  const size_t count = static_cast<size_t>(clusters.count);
  const size_t candidates =
      ranked_from(clusters.rank.bits, count, std::max(zone.pivot, 0), clusters.candidates);
  int64_t ties = 0;
  for (size_t i = 0; i < candidates; i++) {
    const int32_t cluster = clusters.candidates[i];
    if (clusters.rank.bits[cluster] == zone.pivot && ties++ >= zone.ties) continue;
    visit(cluster);
  }
}

// Writes the zone's clusters to order, by rank, and returns their count.
int64_t collect(const Clusters& clusters, const Zone& zone, int64_t* tokens) {
  int64_t count = 0;
  *tokens = 0;
  for_each(clusters, zone, [&](int32_t cluster) {
    *tokens += clusters.sizes[cluster];
    clusters.order[count++] = order_key(clusters, cluster);
  });
  std::sort(clusters.order, clusters.order + count);
  return count;
}

// Orders the shortest prefix that covers target_mass of every head's estimated attention mass (the least
// covered head decides), not shorter than the floor nor longer than the ceiling; returns its count.
// Prefixes are tried at doubling budgets, so that what is sorted stays near what is retrieved.
int64_t covering(const LanesArgs& args, Lane& lane, Clusters& clusters) {
  const PolicyParams& params = *args.params;
  const int64_t floor = share_of(params.budget_floor, lane.indexed_tokens);
  const int64_t ceiling = std::max(floor, share_of(params.budget_ceiling, lane.indexed_tokens));
  const int group = args.group;
  double* total = clusters.mass_sums;
  double* covered = total + group;
  double* steady = covered + group;
  cluster_masses(args, lane, clusters.query, clusters.sizes, clusters.masses, steady, total);
  const auto reached = [&] {
    for (int h = 0; h < group; h++)
      if (covered[h] < params.target_mass * total[h]) return false;
    return true;
  };
  for (int64_t budget = floor;; budget = std::min(ceiling, std::max<int64_t>(64, budget * 2))) {
    int64_t tokens = 0;
    const int64_t most = collect(clusters, first_ranked(clusters, clusters.sizes, budget), &tokens);
    std::copy_n(steady, group, covered);
    int64_t count = 0;
    for (lane.retrieved_tokens = 0; count < most && (lane.retrieved_tokens < floor || !reached()); count++) {
      const int32_t cluster = static_cast<int32_t>(clusters.order[count] & INT32_MAX);
      lane.retrieved_tokens += clusters.sizes[cluster];
      for (int h = 0; h < group; h++) covered[h] += clusters.masses[int64_t{h} * clusters.count + cluster];
    }
    if (budget >= ceiling || reached()) return count;
  }
}

// The first `retrieved` of order, by rank; the next `estimated` clusters, by number; and what is left.
void write_zones(Lane& lane, const Clusters& clusters, int64_t retrieved, int64_t estimated) {
  for (int64_t i = 0; i < retrieved; i++) {
    const int32_t cluster = static_cast<int32_t>(clusters.order[i] & INT32_MAX);
    const int32_t* after = std::upper_bound(clusters.first, clusters.first + lane.segment_count, cluster);
    const int32_t segment = static_cast<int32_t>(after - clusters.first) - 1;
    lane.retrieved[i] = {.segment = segment, .partition = cluster - clusters.first[segment]};
  }
  lane.retrieved_count = static_cast<int32_t>(retrieved);
  if (estimated > 0) {
    int32_t segment = 0;
    for_each(clusters, first_ranked(clusters, nullptr, retrieved + estimated), [&](int32_t cluster) {
      if (retrieved > 0 && order_key(clusters, cluster) <= clusters.order[retrieved - 1]) return;
      while (cluster >= clusters.first[segment + 1]) segment++;
      lane.estimated[lane.estimated_count++] = {.segment = segment,
                                                .partition = cluster - clusters.first[segment]};
    });
  }
  lane.dropped_count = clusters.count - lane.retrieved_count - lane.estimated_count;
}

}  // namespace
}  // namespace wi::cpu
