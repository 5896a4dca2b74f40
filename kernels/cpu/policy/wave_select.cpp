// The wave policy's Select (RetroInfer §4.2): ranks a lookup's clusters and splits them into the retrieval
// zone (in order of rank, until the token budget or the target coverage is reached), the estimation zone
// (the next ones) and the dropped rest. Equal ranks: the lower cluster first. Nothing is sorted: where a
// zone ends is looked up in a histogram of the ranks, then bisected among the few clusters of one bucket; the
// zones' lists are in order of place, which is how memory likes to be read.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/policy/wave.h"
#include "kernels/cpu/policy/wave_rank.h"
#include "kernels/cpu/policy/wave_score.h"

namespace wi::cpu {
namespace {

// The histogram of ranks: clusters whose ranks share a float's exponent and first three bits, and bucket 0
// with all that are lower. A bucket is the number of clusters, times 2^32, plus that of their tokens.
// Neighbours count in different copies, for most fall into few buckets and would wait for each other.
constexpr int32_t kBucketShift = 20;
constexpr int32_t kFirstBucket = (127 - 40) << 3;                  // ranks below 2^-40
constexpr int32_t kFirstLooks = ((127 + 16) << 3) - kFirstBucket;  // ranks up to kRankLimit
constexpr int32_t kCopies = 4;
constexpr size_t kFew = 128;  // of a bucket

// Ranks of a second look, with half their precision, lie above all of the first.
constexpr int32_t kSecondLook = (127 + 16) << 23;
constexpr int32_t kBuckets = kFirstLooks + (((127 + 16) << 3) + 1) / 2;
int32_t second_rank(int32_t bits) { return kSecondLook + (bits >> 1); }
constexpr int32_t kWantedRank = kSecondLook + ((127 + 16) << 22) - 1;  // above all of those

// Clusters of a lookup, numbered through its segments.
struct Clusters {
  int32_t count;
  RankScratch rank;
  int32_t* first;       // (segments + 1) number of each segment's first cluster
  int32_t* candidates;  // (count + 16)
  int32_t* few_bits;    // (count + 16)
  int32_t* few_sizes;   // (count + 16)
  uint64_t* buckets;    // (kBuckets)
  uint64_t* copies;     // (kCopies - 1, kFirstLooks) while counting
  uint64_t* order;      // (count + 16)
  SecondLook look;
  uint32_t* extents;  // (count + 16), with target_mass
  float* masses;      // (group, count + 16), with target_mass
  double* mass_sums;  // (3, group), with target_mass
};

// The clusters whose rank is above the pivot, and the first `ties` of those that have it.
struct Zone {
  int32_t pivot = INT32_MAX;
  int64_t ties = 0;
};

Clusters scratch_for(const Stream& stream, int worker, const LookupArgs& args, const Lookup& lookup);
void number_clusters(const Lookup& lookup, Clusters& clusters);
void fill_buckets(const Clusters& clusters);
void look_twice(const LookupArgs& args, const Lookup& lookup, Clusters& clusters, int64_t tokens);
void take_wanted(const Lookup& lookup, Clusters& clusters, int64_t most_tokens);
enum class Count { clusters, tokens };
Zone first_ranked(const Clusters& clusters, Count unit, int64_t wanted);
Zone pivot_among(int32_t* bits, int32_t* weights, size_t count, int64_t above, int64_t wanted);
int64_t collect(const Clusters& clusters, const Zone& zone, int64_t* tokens);
int64_t covering(const LookupArgs& args, const Lookup& lookup, Clusters& clusters, int64_t* tokens);
void write_zones(Lookup& lookup, const Clusters& clusters, int64_t retrieved, int64_t estimated);
int64_t bytes_ranked(const LookupArgs& args, const Lookup& lookup, const Clusters& clusters);

// The lookup's scores are there, or are to be filled first.
enum class Scores { there, wanted };

void select_one(const Stream& stream, int worker, const LookupArgs& args, Lookup& lookup, Scores scores) {
  lookup.retrieved_count = lookup.estimated_count = 0;
  if (lookup.partition_count == 0) return;
  const Zones& zones = lookup.zones;
  Clusters clusters = scratch_for(stream, worker, args, lookup);
  if (scores == Scores::wanted)
    score_partitions(args, lookup, {0, lookup.segment_count, 0}, clusters.rank.query);
  rank_partitions(args, lookup, clusters.rank);
  number_clusters(lookup, clusters);
  fill_buckets(clusters);

  int64_t retrieved = 0, tokens = 0;
  if (zones.target_mass > 0) {
    look_twice(args, lookup, clusters, zones.budget);
    take_wanted(lookup, clusters, zones.budget / 2);
    retrieved = covering(args, lookup, clusters, &tokens);
  } else {
    look_twice(args, lookup, clusters, kWaveLooks * zones.budget);
    take_wanted(lookup, clusters, zones.budget / 2);
    retrieved = collect(clusters, first_ranked(clusters, Count::tokens, zones.budget), &tokens);
  }
  write_zones(lookup, clusters, retrieved, std::min<int64_t>(zones.estimated, clusters.count - retrieved));
  count_zones(lookup, tokens, bytes_ranked(args, lookup, clusters));
}

// Into how many runs of segments a lookup is cut for its scores, a third to a half of select's time: 1, but where
// workers are more than twice the lookups and clusters so many that packing the query for each run is little beside them.
int32_t score_runs(const Stream& stream, const LookupArgs& args) {
  constexpr int32_t kClustersOfRun = 256;
  if (2 * args.count >= stream.workers) return 1;
  int32_t most = 0;  // clusters
  for (int32_t i = 0; i < args.count; i++) most = std::max(most, args.lookups[i].partition_count);
  return std::clamp(most / kClustersOfRun, 1, stream.workers / args.count);
}

// Of so many runs with about as many clusters each: whole segments, each in the run that its first cluster is in.
SegmentRun score_run(const Lookup& lookup, int32_t run, int32_t runs) {
  const auto begin_of = [&](int64_t number) { return number * lookup.partition_count / runs; };
  SegmentRun out = {.first = 0, .end = 0, .partitions_before = 0};
  int64_t at = 0;
  for (; out.first < lookup.segment_count && at < begin_of(run); out.first++)
    at += lookup.segments[out.first].partitions;
  out.partitions_before = static_cast<size_t>(at);
  for (out.end = out.first; out.end < lookup.segment_count && at < begin_of(run + 1); out.end++)
    at += lookup.segments[out.end].partitions;
  return out;
}

}  // namespace

void wave_select(const Stream& stream, const LookupArgs& args) {
  if (args.count == 0) return;
  const int32_t runs = score_runs(stream, args);
  if (runs > 1)
    stream.each(int64_t{args.count} * runs, [&](int64_t task, int worker) {
      const Lookup& lookup = args.lookups[task / runs];
      const SegmentRun run = score_run(lookup, static_cast<int32_t>(task % runs), runs);
      if (run.first == run.end) return;
      std::byte* query =
          stream.worker_scratch(stream.self, worker, score_query_bytes(args.group, args.head_dim));
      score_partitions(args, lookup, run, query);
    });
  const Scores scores = runs > 1 ? Scores::there : Scores::wanted;
  stream.each(args.count, [&](int64_t task, int worker) {
    select_one(stream, worker, args, args.lookups[task], scores);
  });
}

namespace {

Clusters scratch_for(const Stream& stream, int worker, const LookupArgs& args, const Lookup& lookup) {
  const size_t n = static_cast<size_t>(lookup.partition_count);
  const size_t group = static_cast<size_t>(args.group);
  const size_t extents = lookup.zones.target_mass > 0 ? n + kRankRoom : 0;
  const size_t masses = group * extents;
  const size_t query_bytes = score_query_bytes(args.group, args.head_dim);
  const size_t counts[] = {query_bytes / sizeof(float),
                           kRankHeads * (n + kRankRoom),
                           n + kRankRoom,
                           n + kRankRoom,
                           static_cast<size_t>(lookup.segment_count) + 1,
                           n + kRankRoom,
                           n + kRankRoom,
                           n + kRankRoom,
                           2 * kBuckets,
                           2 * (kCopies - 1) * kFirstLooks,
                           2 * (n + kRankRoom),
                           n + kRankRoom,
                           n + kRankRoom,
                           query_floats(args),
                           extents,
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
  clusters.count = lookup.partition_count;
  clusters.rank.query = reinterpret_cast<std::byte*>(take());
  clusters.rank.weights = take();
  clusters.rank.bits = take_ints();
  clusters.rank.sizes = take_ints();
  clusters.first = take_ints();
  clusters.candidates = take_ints();
  clusters.few_bits = take_ints();
  clusters.few_sizes = take_ints();
  clusters.buckets = reinterpret_cast<uint64_t*>(take());
  clusters.copies = reinterpret_cast<uint64_t*>(take());
  clusters.order = reinterpret_cast<uint64_t*>(take());
  clusters.look = {.count = 0,
                   .numbers = take_ints(),
                   .rows = reinterpret_cast<const std::byte**>(clusters.order),
                   .residuals = take(),
                   .query = take(),
                   .scores = clusters.rank.weights,
                   .bits = clusters.few_bits};
  clusters.extents = reinterpret_cast<uint32_t*>(take());
  clusters.masses = take();
  clusters.mass_sums = reinterpret_cast<double*>(take());
  return clusters;
}

void number_clusters(const Lookup& lookup, Clusters& clusters) {
  int32_t at = 0;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    clusters.first[s] = at;
    at += lookup.segments[s].partitions;
  }
  clusters.first[lookup.segment_count] = at;
}

int32_t bucket_of(int32_t bits) { return std::max((bits >> kBucketShift) - kFirstBucket, 0); }
uint64_t bucket_entry(int32_t tokens) { return uint64_t{1} << 32 | static_cast<uint32_t>(tokens); }

void fill_buckets(const Clusters& clusters) {
  std::fill_n(clusters.buckets, kBuckets, 0);
  std::fill_n(clusters.copies, (kCopies - 1) * kFirstLooks, 0);
  const auto enter = [&](int32_t i, uint64_t* buckets) {
    buckets[bucket_of(clusters.rank.bits[i])] += bucket_entry(clusters.rank.sizes[i]);
  };
  int32_t i = 0;
  for (; i + kCopies <= clusters.count; i += kCopies) {
    enter(i, clusters.buckets);
    for (int32_t copy = 1; copy < kCopies; copy++)
      enter(i + copy, clusters.copies + (copy - 1) * kFirstLooks);
  }
  for (; i < clusters.count; i++) enter(i, clusters.buckets);
  for (int32_t copy = 1; copy < kCopies; copy++)
    for (int32_t at = 0; at < kFirstLooks; at++)
      clusters.buckets[at] += clusters.copies[(copy - 1) * kFirstLooks + at];
}

// The shortest prefix, in order of rank, that reaches `wanted` (all, if they don't).
Zone first_ranked(const Clusters& clusters, Count unit, int64_t wanted) {
  if (wanted <= 0) return {};
  int32_t bucket = kBuckets;
  int64_t above = 0, reached = 0;  // by the buckets above this one; with it
  while (bucket > 0 && reached < wanted) {
    above = reached;
    const uint64_t next = clusters.buckets[--bucket];
    reached += static_cast<int64_t>(unit == Count::tokens ? next & UINT32_MAX : next >> 32);
  }
  if (reached < wanted) return {.pivot = -1, .ties = 0};
  // The pivot, the highest bits from which on the weights suffice, is in [low, high).
  int32_t low = bucket == 0 ? 0 : (kFirstBucket + bucket) << kBucketShift;
  int32_t high = (kFirstBucket + bucket + 1) << kBucketShift;
  int32_t *bits = clusters.few_bits, *weights = clusters.few_sizes;
  size_t count = ranked_between(clusters.rank.bits, unit == Count::tokens ? clusters.rank.sizes : nullptr,
                                static_cast<size_t>(clusters.count), low, high, bits, weights);
  while (count > kFew && high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    const int64_t from_middle = above + weight_ranked_from(bits, weights, count, middle);
    if (from_middle >= wanted) {
      low = middle;
    } else {
      high = middle;
      above = from_middle;
    }
    count = ranked_between(bits, weights, count, low, high, bits, weights);
  }
  return pivot_among(bits, weights, count, above, wanted);
}

// Of a few, whose ranks are the pivots to try: those on the side where it is not are dropped. above: the weight of all
// that rank higher than these.
Zone pivot_among(int32_t* bits, int32_t* weights, size_t count, int64_t above, int64_t wanted) {
  for (;;) {
    const int32_t pivot = bits[count / 2];
    int64_t higher = above, with_pivot = above;
    for (size_t i = 0; i < count; i++) {
      higher += bits[i] > pivot ? weights[i] : 0;
      with_pivot += bits[i] >= pivot ? weights[i] : 0;
    }
    if (higher < wanted && with_pivot >= wanted) {
      Zone zone = {.pivot = pivot, .ties = 0};
      for (size_t i = 0; i < count && higher < wanted; i++) {
        if (bits[i] != pivot) continue;
        higher += weights[i];
        zone.ties++;
      }
      return zone;
    }
    const bool up = higher >= wanted;
    if (!up) above = with_pivot;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
      const int32_t rank = bits[i];
      bits[kept] = rank, weights[kept] = weights[i];
      kept += up ? rank > pivot : rank < pivot;
    }
    count = kept;
  }
}

// Orders by rank, then by number.
uint64_t order_key(const Clusters& clusters, int32_t cluster) {
  const uint64_t descending = static_cast<uint64_t>(INT32_MAX - clusters.rank.bits[cluster]);
  return descending << 32 | static_cast<uint64_t>(cluster);
}

int32_t number_in(uint64_t order_key) { return static_cast<int32_t>(order_key & INT32_MAX); }

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

void set_rank(Clusters& clusters, int32_t cluster, int32_t rank) {
  int32_t& bits = clusters.rank.bits[cluster];
  clusters.buckets[bucket_of(bits)] -= bucket_entry(clusters.rank.sizes[cluster]);
  bits = rank;
  clusters.buckets[bucket_of(bits)] += bucket_entry(clusters.rank.sizes[cluster]);
}

// Calls visit(place) for the segment's tokens [begin, end), a few at a time in their stored order.
template <class Visit>
void for_each_place(const SegmentView& segment, int32_t begin, int32_t end, Visit visit) {
  constexpr int32_t kFew = 64;
  int32_t places[kFew];
  for (int32_t first = begin; first < end; first += kFew) {
    const int32_t count = std::min(end - first, kFew);
    std::copy_n(segment.places + first, count, places);
    std::sort(places, places + count);
    for (int32_t i = 0; i < count; i++) visit(places[i]);
  }
}

// The best ranked clusters, of so many tokens, get their ranks anew, above all others'.
void look_twice(const LookupArgs& args, const Lookup& lookup, Clusters& clusters, int64_t tokens) {
  SecondLook& look = clusters.look;
  int32_t segment = -1;
  WaveIndex index;
  const size_t row = row_bytes(args.kv, args.head_dim);
  look.count = 0;
  for_each(clusters, first_ranked(clusters, Count::tokens, tokens), [&](int32_t cluster) {
    while (segment < 0 || cluster >= clusters.first[segment + 1])
      if (lookup.segments[++segment].partitions > 0) index = wave_view(lookup.segments[segment].index);
    const size_t at = static_cast<size_t>(cluster - clusters.first[segment]);
    look.numbers[look.count] = cluster;
    look.rows[look.count] = index.axes + at * row;
    // Asked for as soon as they are known: what comes next takes about as long as they do.
    for (size_t line = 0; line < row; line += 64) __builtin_prefetch(index.axes + at * row + line, 0, 2);
    __builtin_prefetch(index.residuals + at, 0, 2);
    look.residuals[look.count++] = index.residuals[at];
  });
  rank_again(args, lookup, look);
  for (size_t i = 0; i < look.count; i++) set_rank(clusters, look.numbers[i], second_rank(look.bits[i]));
}

// Clusters with wanted tokens rank above all others, until they have `most_tokens`.
void take_wanted(const Lookup& lookup, Clusters& clusters, int64_t most_tokens) {
  int64_t taken = 0;
  for (int32_t w = 0; w < lookup.wanted_count; w++) {
    const WantedTokens& wanted = lookup.wanted[w];
    const SegmentView& segment = lookup.segments[wanted.segment];
    const int32_t *offsets = segment.offsets, count = segment.partitions;
    for_each_place(segment, wanted.begin, wanted.end, [&](int32_t place) {
      const int32_t* end = std::upper_bound(offsets, offsets + count, place);
      const int32_t cluster = clusters.first[wanted.segment] + static_cast<int32_t>(end - offsets) - 1;
      if (clusters.rank.bits[cluster] == kWantedRank || taken + clusters.rank.sizes[cluster] > most_tokens)
        return;
      taken += clusters.rank.sizes[cluster];
      set_rank(clusters, cluster, kWantedRank);
    });
  }
}

// Writes the zone's clusters to order, by number, and returns their count.
int64_t collect(const Clusters& clusters, const Zone& zone, int64_t* tokens) {
  int64_t count = 0;
  *tokens = 0;
  for_each(clusters, zone, [&](int32_t cluster) {
    *tokens += clusters.rank.sizes[cluster];
    clusters.order[count++] = order_key(clusters, cluster);
  });
  return count;
}

// Puts into order, by number, the shortest prefix that covers target_mass of every head's estimated attention
// mass (the least covered head decides), not shorter than the floor nor longer than the ceiling; returns its
// count, and its tokens in *tokens. Prefixes are tried at doubling budgets, so that what is sorted stays near what is retrieved.
int64_t covering(const LookupArgs& args, const Lookup& lookup, Clusters& clusters, int64_t* tokens) {
  const int64_t floor = lookup.zones.floor, ceiling = std::max(floor, lookup.zones.budget);
  const int group = args.group;
  for (int32_t s = 0; s < lookup.segment_count; s++) {
    if (lookup.segments[s].partitions == 0) continue;
    const WaveIndex index = wave_view(lookup.segments[s].index);
    std::copy_n(index.extents, index.clusters, clusters.extents + clusters.first[s]);
  }
  std::fill_n(clusters.extents + clusters.count, kRankRoom, 0u);
  const int64_t plane = int64_t{clusters.count} + static_cast<int64_t>(kRankRoom);
  double* total = clusters.mass_sums;
  double* covered = total + group;
  double* steady = covered + group;
  cluster_masses(args, lookup, clusters.look.query, clusters.rank.sizes, clusters.extents, clusters.masses,
                 steady, total);
  const auto reached = [&] {
    for (int h = 0; h < group; h++)
      if (covered[h] < lookup.zones.target_mass * total[h]) return false;
    return true;
  };
  for (int64_t budget = floor;; budget = std::min(ceiling, std::max<int64_t>(64, budget * 2))) {
    int64_t collected = 0;
    const int64_t most = collect(clusters, first_ranked(clusters, Count::tokens, budget), &collected);
    std::sort(clusters.order, clusters.order + most);
    std::copy_n(steady, group, covered);
    int64_t count = 0;
    for (*tokens = 0; count < most && (*tokens < floor || !reached()); count++) {
      const int32_t cluster = number_in(clusters.order[count]);
      *tokens += clusters.rank.sizes[cluster];
      for (int h = 0; h < group; h++) covered[h] += clusters.masses[h * plane + cluster];
    }
    if (budget >= ceiling || reached()) {
      std::sort(clusters.order, clusters.order + count,
                [](uint64_t a, uint64_t b) { return number_in(a) < number_in(b); });
      return count;
    }
  }
}

// The first `retrieved` of order and the `estimated` clusters ranked next, each by number.
void write_zones(Lookup& lookup, const Clusters& clusters, int64_t retrieved, int64_t estimated) {
  struct Places {
    const int32_t* first;
    int32_t segment = 0;
    PartitionRef operator()(int32_t cluster) {
      while (cluster >= first[segment + 1]) segment++;
      return {.segment = segment, .partition = cluster - first[segment]};
    }
  };
  uint64_t last = 0;
  Places place = {clusters.first};
  for (int64_t i = 0; i < retrieved; i++) {
    last = std::max(last, clusters.order[i]);
    lookup.retrieved[i] = place(number_in(clusters.order[i]));
  }
  lookup.retrieved_count = static_cast<int32_t>(retrieved);
  PartitionRef* next = lookup.estimated;
  place = {clusters.first};
  if (estimated > 0) {
    for_each(clusters, first_ranked(clusters, Count::clusters, retrieved + estimated),
             [&](int32_t contender) {
               if (retrieved > 0 && order_key(clusters, contender) <= last) return;
               *next++ = place(contender);
             });
  }
  lookup.estimated_count = static_cast<int32_t>(next - lookup.estimated);
}

// Of the index: every code, scale, size and extent, the axes of what was looked at twice, and where the wanted
// tokens lie.
int64_t bytes_ranked(const LookupArgs& args, const Lookup& lookup, const Clusters& clusters) {
  const int64_t row = static_cast<int64_t>(row_bytes(args.kv, args.head_dim));
  int64_t wanted = 0;  // tokens
  for (int32_t w = 0; w < lookup.wanted_count; w++) wanted += lookup.wanted[w].end - lookup.wanted[w].begin;
  return clusters.count * (int64_t{args.head_dim} + 12) +
         static_cast<int64_t>(clusters.look.count) * (row + int64_t{sizeof(float)}) +
         wanted * int64_t{sizeof(int32_t)};
}

}  // namespace
}  // namespace wi::cpu
