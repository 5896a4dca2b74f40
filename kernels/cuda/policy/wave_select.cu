// The wave policy's Select (RetroInfer §4.2), after wave_score: ranks a lookup's clusters and splits them into
// the retrieval zone (in order of rank, until the token budget is reached), the estimation zone (the next
// ones) and the dropped rest, as kernels/cpu/policy/wave_select.cpp does and with its numbers. Equal ranks: the
// lower cluster first. Nothing is sorted: where a zone ends is looked up in a histogram of the ranks and then
// in two finer ones of that bucket, ten bits each; the zones' lists are in order of place.
//
// A block of 1,024 threads per lookup: what it reads again and again is a few numbers per cluster, and stays
// in L2.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kSelectThreads = 1024;
constexpr int kMostGroupOfSelect = 64;
constexpr float kRankLimit = 0x1p15f;
constexpr int32_t kMostBits = 0x7FFFFFFF;

// The histogram of ranks: clusters whose ranks share a float's exponent and first three bits, and bucket 0 with
// all that are lower. A bucket is the number of clusters, times 2^32, plus that of their tokens. Ranks of a
// second look, with half their precision, lie above all of the first, and wanted clusters above those.
constexpr int32_t kBucketShift = 20;
constexpr int32_t kFirstBucket = (127 - 40) << 3;
constexpr int32_t kSecondLook = (127 + 16) << 23;
constexpr int32_t kWantedRank = kSecondLook + ((127 + 16) << 22) - 1;
constexpr int32_t kBuckets = 1024;
static_assert((kWantedRank >> kBucketShift) - kFirstBucket < kBuckets);
constexpr int kFew = 64;  // wanted tokens at a time

using Bucket = unsigned long long;

struct SelectMemory {
  Bucket buckets[kBuckets], fine[kBuckets];
  int32_t warp_sums[kSelectThreads / kWarp];
  float scratch[kSelectThreads / kWarp];
  float reach[kMostGroupOfSelect];    // of a best token above its centroid, by the cluster's radius
  float lengths[kMostGroupOfSelect];  // of the scaled queries
  float highest[kMostGroupOfSelect], shares[kMostGroupOfSelect];
  int32_t places[kFew], sorted[kFew], sizes[kFew], taken_before[kFew];
  int32_t found, found_above;
  int32_t taken;
};
static_assert(sizeof(SelectMemory) + size_t{kMostGroupOfSelect} * 256 * sizeof(float) <= kLeastShared);

enum class Count { clusters, tokens };

// The clusters whose rank is above the pivot, and as many of those that have it, by number, as it takes to
// reach `wanted`.
struct Zone {
  int32_t pivot;
  int32_t above;  // what those above have together
  int32_t wanted;
  Count unit;
};

__device__ __forceinline__ int32_t bucket_of(int32_t bits) {
  return max((bits >> kBucketShift) - kFirstBucket, 0);
}
__device__ __forceinline__ Bucket entry_of(int32_t tokens) {
  return Bucket{1} << 32 | static_cast<unsigned>(tokens);
}

// As the CPU's: not below exp(x) but for its rounding, and at most 6.2 % above, for x in [-87, 87].
__device__ __forceinline__ float upper_exp(float x) {
  return __int_as_float(__float2int_rz(fmaf(fmaxf(x, -87.0f), 1.44269504f * 0x1p23f, 127 * 0x1p23f)));
}
__device__ __forceinline__ int32_t rank_bits(float rank) {
  return rank > 0 ? __float_as_int(fminf(rank, kRankLimit)) : 0;
}

// One lookup. All threads of the block call everything.
class Selector {
 public:
  __device__ Selector(const LookupArgs& args, Lookup& lookup, const WaveClusters& clusters,
                      SelectMemory& memory, float* query)
      : args_(args),
        lookup_(lookup),
        clusters_(clusters),
        memory_(memory),
        query_(query),
        count_(lookup.partition_count) {}

  __device__ void run() {
    if (count_ == 0) {
      if (thread() == 0) lookup_.retrieved_count = lookup_.estimated_count = 0;
      return;
    }
    const int32_t budget = static_cast<int32_t>(min(lookup_.zones.budget, int64_t{0x3FFFFFFF}));
    rank();
    const int32_t looked_at = look_twice(kWaveLooks * budget);
    const int32_t wanted = take_wanted(budget / 2);

    int32_t tokens = 0;  // of this thread's
    const auto any = [](int32_t) { return true; };
    const int32_t retrieved =
        for_each(first_ranked(Count::tokens, budget), any, [&](int32_t cluster, int32_t at, bool member) {
          const unsigned members = __ballot_sync(kAllLanes, member);
          if (lane_of() == 0 && cluster < count_) clusters_.retrieved[cluster / kWarp] = members;
          if (!member) return;
          lookup_.retrieved[at] = clusters_.places[cluster];
          tokens += clusters_.sizes[cluster];
        });
    int32_t retrieved_tokens = 0;
    running_sum(tokens, retrieved_tokens);

    // The retrieved are the first of those that come before the dropped rest.
    const int32_t estimated = min(lookup_.zones.estimated, count_ - retrieved);
    int32_t written = 0;
    if (estimated > 0) {
      const auto new_ones = [&](int32_t cluster) {
        return (clusters_.retrieved[cluster / kWarp] >> cluster % kWarp & 1) == 0;
      };
      written = for_each(first_ranked(Count::clusters, retrieved + estimated), new_ones,
                         [&](int32_t cluster, int32_t at, bool member) {
                           if (!member) return;
                           lookup_.estimated[at] = clusters_.places[cluster];
                           clusters_.list[at] = cluster;
                         });
    }
    for (int head = 0; head < args_.group; head++) {
      float highest = kLowest;
      for (int32_t i = thread(); i < written; i += kSelectThreads)
        highest = fmaxf(highest, score_of(head, clusters_.list[i]));
      highest = block_max(highest, memory_.scratch);
      if (thread() == 0) clusters_.highest[head] = highest;
      __syncthreads();
    }
    if (thread() != 0) return;
    lookup_.retrieved_count = retrieved;
    lookup_.estimated_count = written;
    LookupCounters& counters = *lookup_.counters;
    counters.retrieved_tokens += retrieved_tokens;
    counters.retrieved += retrieved;
    counters.estimated += written;
    counters.dropped += count_ - retrieved - written;
    const int64_t row = static_cast<int64_t>(row_bytes(args_.kv, args_.head_dim));
    counters.index_bytes_read += count_ * (int64_t{args_.head_dim} + 12) +
                                 looked_at * (row + int64_t{sizeof(float)}) +
                                 wanted * int64_t{sizeof(int32_t)};
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ int32_t running_sum(int32_t value, int32_t& total) {
    return block_running_sum(value, memory_.warp_sums, total);
  }

  __device__ float score_of(int head, int32_t cluster) const {
    return lookup_.scores[int64_t{head} * count_ + cluster];
  }
  // What a cluster's best token likely scores, by its radius.
  __device__ float best_score(int head, int32_t cluster) const {
    const float above = fminf(memory_.reach[head] * wave_radius(clusters_.extents[cluster]), 1e30f);
    return score_of(head, cluster) + above;
  }
  __device__ float& look_score(int head, int32_t at) const {
    return clusters_.look_scores[int64_t{head} * count_ + at];
  }

  // Fills shares and highest with the softmaxes of score(head, i), i < count, and leaves their sums, or one by
  // them, in shares.
  template <class Score>
  __device__ void softmaxes(int32_t count, Score score) {
    for (int head = 0; head < args_.group; head++) {
      float highest = kLowest;
      for (int32_t i = thread(); i < count; i += kSelectThreads) highest = fmaxf(highest, score(head, i));
      highest = block_max(highest, memory_.scratch);
      __syncthreads();
      float sum = 0;
      for (int32_t i = thread(); i < count; i += kSelectThreads) sum += upper_exp(score(head, i) - highest);
      sum = block_sum(sum, memory_.scratch);
      if (thread() == 0) {
        memory_.highest[head] = highest;
        memory_.shares[head] = 1 / sum;
      }
      __syncthreads();
    }
  }
  template <class Score>
  __device__ int32_t summed_rank(int32_t i, Score score) const {
    float rank = 0;
    for (int head = 0; head < args_.group; head++)
      rank = fmaf(upper_exp(score(head, i) - memory_.highest[head]), memory_.shares[head], rank);
    return rank_bits(rank);
  }

  // The sum over the group of the softmax, over the lookup's clusters, of what their best tokens likely score.
  __device__ void rank() {
    for (int head = warp_of(); head < args_.group; head += kSelectThreads / kWarp) {
      float squares = 0;
      for (int i = lane_of(); i < args_.head_dim; i += kWarp) {
        const float number = lookup_.query[head * args_.head_dim + i];
        squares = fmaf(number, number, squares);
        query_[head * args_.head_dim + i] = number * args_.scale;
      }
      squares = warp_sum(squares);
      if (lane_of() == 0) {
        memory_.reach[head] =
            kWaveBestAbove * args_.scale * sqrtf(squares / static_cast<float>(args_.head_dim));
        memory_.lengths[head] = args_.scale * sqrtf(squares);
      }
    }
    for (int i = thread(); i < kBuckets; i += kSelectThreads) memory_.buckets[i] = 0;
    __syncthreads();
    const auto score = [&](int head, int32_t cluster) { return best_score(head, cluster); };
    softmaxes(count_, score);
    for (int32_t i = thread(); i < count_; i += kSelectThreads) {
      const int32_t bits = summed_rank(i, score);
      clusters_.bits[i] = bits;
      atomicAdd(&memory_.buckets[bucket_of(bits)], entry_of(clusters_.sizes[i]));
    }
    __syncthreads();
  }

  __device__ void set_rank(int32_t cluster, int32_t rank) {
    const Bucket entry = entry_of(clusters_.sizes[cluster]);
    atomicAdd(&memory_.buckets[bucket_of(clusters_.bits[cluster])], Bucket{0} - entry);
    atomicAdd(&memory_.buckets[bucket_of(rank)], entry);
    clusters_.bits[cluster] = rank;
  }

  // The best ranked clusters, of so many tokens, get their ranks anew, above all others': along the axis in
  // which its keys vary most a cluster is long. Returns how many.
  __device__ int32_t look_twice(int32_t tokens) {
    const auto any = [](int32_t) { return true; };
    const int32_t looked_at =
        for_each(first_ranked(Count::tokens, tokens), any, [&](int32_t cluster, int32_t at, bool member) {
          if (member) clusters_.list[at] = cluster;
        });
    __syncthreads();
    if (args_.kv == DType::f32)
      look_along_axes<DType::f32>(looked_at);
    else if (args_.kv == DType::bf16)
      look_along_axes<DType::bf16>(looked_at);
    else
      look_along_axes<DType::f16>(looked_at);
    __syncthreads();
    const auto score = [&](int head, int32_t i) { return look_score(head, i); };
    if (looked_at > 0) softmaxes(looked_at, score);
    for (int32_t i = thread(); i < looked_at; i += kSelectThreads)
      set_rank(clusters_.list[i], kSecondLook + (summed_rank(i, score) >> 1));
    __syncthreads();
    return looked_at;
  }

  // A warp takes a cluster.
  template <DType kKv>
  __device__ void look_along_axes(int32_t looked_at) {
    constexpr int kEach = 256 / kWarp;  // dimensions of a lane
    const int dim = args_.head_dim;
    for (int32_t i = warp_of(); i < looked_at; i += kSelectThreads / kWarp) {
      const int32_t cluster = clusters_.list[i];
      const PartitionRef place = clusters_.places[cluster];
      const WaveIndex index = wave_view(lookup_.segments[place.segment].index);
      const Kv<kKv>* row = reinterpret_cast<const Kv<kKv>*>(index.axes) + int64_t{place.partition} * dim;
      const float residual = index.residuals[place.partition];
      float axis[kEach];
#pragma unroll
      for (int j = 0; j < kEach; j++) {
        const int at = j * kWarp + lane_of();
        axis[j] = at < dim ? to_float(row[at]) : 0.0f;
      }
#pragma unroll 1
      for (int head = 0; head < args_.group; head++) {
        float along = 0;
#pragma unroll
        for (int j = 0; j < kEach; j++) {
          const int at = j * kWarp + lane_of();
          if (at < dim) along = fmaf(axis[j], query_[head * dim + at], along);
        }
        along = warp_sum(along);
        const float across = memory_.lengths[head] * residual;
        const float deviation = sqrtf(fmaf(along, along, across * across));
        if (lane_of() == 0)
          look_score(head, i) = score_of(head, cluster) + fminf(kWaveBestAlong * deviation, 1e30f);
      }
    }
  }

  // Clusters with wanted tokens rank above all others, until they have `most_tokens`. Returns how many tokens
  // are wanted.
  __device__ int32_t take_wanted(int32_t most_tokens) {
    if (thread() == 0) memory_.taken = 0;
    int32_t all = 0;
    for (int32_t w = 0; w < lookup_.wanted_count; w++) {
      const WantedTokens wanted = lookup_.wanted[w];
      all += wanted.end - wanted.begin;
      for (int32_t begin = wanted.begin; begin < wanted.end; begin += kFew)
        take_few(wanted.segment, begin, min(wanted.end - begin, kFew), most_tokens);
    }
    __syncthreads();
    return all;
  }

  // In their stored order, as the CPU takes them.
  __device__ void take_few(int32_t number, int32_t begin, int32_t count, int32_t most_tokens) {
    const SegmentView& segment = lookup_.segments[number];
    __syncthreads();
    int32_t place = 0, before = 0;  // tokens of earlier segments' clusters
    if (thread() < count) {
      place = segment.places[begin + thread()];
      memory_.places[thread()] = place;
    }
    for (int32_t s = 0; s < number; s++) before += lookup_.segments[s].partitions;
    __syncthreads();
    if (thread() < count) {
      int32_t order = 0;
      for (int32_t i = 0; i < count; i++) order += memory_.places[i] < place;
      int32_t low = 0, high = segment.partitions - 1;  // the last that begins at or before it
      while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (segment.offsets[middle] <= place)
          low = middle;
        else
          high = middle - 1;
      }
      const int32_t cluster = before + low;
      memory_.sorted[order] = cluster;
      memory_.sizes[order] = clusters_.sizes[cluster];
      memory_.taken_before[order] = clusters_.bits[cluster] == kWantedRank;
    }
    __syncthreads();
    if (thread() != 0) return;
    int32_t last = -1;  // a cluster's tokens follow each other
    for (int32_t i = 0; i < count; i++) {
      const int32_t cluster = memory_.sorted[i], size = memory_.sizes[i];
      if (cluster == last || memory_.taken_before[i] || memory_.taken + size > most_tokens) continue;
      memory_.taken += size;
      set_rank(cluster, kWantedRank);
      last = cluster;
    }
  }

  // The highest bucket from which on, with what is above all of them, `wanted` is reached; false: it is not.
  __device__ bool find(const Bucket* buckets, Count unit, int32_t above, int32_t wanted, int32_t& bucket,
                       int32_t& above_bucket) {
    const int32_t own = kBuckets - 1 - thread();
    const Bucket entry = buckets[own];
    const int32_t weight = static_cast<int32_t>(unit == Count::tokens ? entry & 0xFFFFFFFFu : entry >> 32);
    if (thread() == 0) memory_.found = memory_.found_above = -1;
    int32_t total = 0;
    const int32_t before = above + running_sum(weight, total);
    if (before < wanted && before + weight >= wanted) {
      memory_.found = own;
      memory_.found_above = before;
    }
    __syncthreads();
    bucket = memory_.found;
    above_bucket = memory_.found_above;
    __syncthreads();
    return bucket >= 0;
  }

  // The finer histogram of ranks that `within` holds for, by ten of their bits.
  template <class Within>
  __device__ void fill_fine(int shift, Within within) {
    memory_.fine[thread()] = 0;
    __syncthreads();
    for (int32_t i = thread(); i < count_; i += kSelectThreads) {
      const int32_t bits = clusters_.bits[i];
      if (within(bits))
        atomicAdd(&memory_.fine[bits >> shift & (kBuckets - 1)], entry_of(clusters_.sizes[i]));
    }
    __syncthreads();
  }

  // The shortest prefix, in order of rank, that reaches `wanted` (all, if they don't).
  __device__ Zone first_ranked(Count unit, int32_t wanted) {
    if (wanted <= 0) return {kMostBits, 0, 0, unit};
    int32_t bucket = 0, above = 0, high = 0;
    if (!find(memory_.buckets, unit, 0, wanted, bucket, above)) return {-1, 0, wanted, unit};
    high = kFirstBucket + bucket;
    if (bucket == 0) {  // all that are lower share it
      fill_fine(kBucketShift, [](int32_t bits) { return bits >> kBucketShift <= kFirstBucket; });
      find(memory_.fine, unit, above, wanted, high, above);
    }
    int32_t middle = 0, low = 0;
    fill_fine(10, [&](int32_t bits) { return bits >> kBucketShift == high; });
    find(memory_.fine, unit, above, wanted, middle, above);
    const int32_t upper = high << 10 | middle;
    fill_fine(0, [&](int32_t bits) { return bits >> 10 == upper; });
    find(memory_.fine, unit, above, wanted, low, above);
    return {upper << 10 | low, above, wanted, unit};
  }

  // Calls visit(cluster, at, member) for every number up to a multiple of the block's threads; at: how many
  // members of the zone that keep() holds for come before. Returns how many they are.
  template <class Keep, class Visit>
  __device__ int32_t for_each(const Zone& zone, Keep keep, Visit visit) {
    int32_t kept = 0, reached = zone.above;
    for (int32_t first = 0; first < count_; first += kSelectThreads) {
      const int32_t cluster = first + thread();
      const bool real = cluster < count_;
      const int32_t bits = real ? clusters_.bits[cluster] : -1;
      const bool tie = real && bits == zone.pivot;
      bool member = real && bits > zone.pivot;
      if (__syncthreads_or(tie)) {
        const int32_t weight = !tie ? 0 : zone.unit == Count::tokens ? clusters_.sizes[cluster] : 1;
        int32_t all = 0;
        const int32_t before = reached + running_sum(weight, all);
        member = member || (tie && before < zone.wanted);
        reached += all;
      }
      member = member && keep(cluster);
      int32_t members = 0;
      const int32_t at = kept + running_sum(member, members);
      visit(cluster, at, member);
      kept += members;
    }
    __syncthreads();
    return kept;
  }

  const LookupArgs& args_;
  Lookup& lookup_;
  const WaveClusters& clusters_;
  SelectMemory& memory_;
  float* query_;  // (group, head_dim) scaled
  int32_t count_;
};

__global__ void __launch_bounds__(kSelectThreads, 1)
    wave_select_kernel(LookupArgs args, WaveSelectWorkspace workspace) {
  SelectMemory& memory = *reinterpret_cast<SelectMemory*>(block_memory());
  const WaveClusters clusters = wave_clusters(
      workspace.memory + blockIdx.x * wave_clusters_bytes(args.group, workspace.most_partitions),
      workspace.most_partitions);
  float* query = reinterpret_cast<float*>(block_memory() + sizeof(SelectMemory));
  Selector(args, args.lookups[blockIdx.x], clusters, memory, query).run();
}

cudaError_t wave_select(cudaStream_t stream, const LookupArgs& args, const WaveSelectWorkspace& workspace) {
  if (args.group < 1 || args.group > kMostGroupOfSelect || args.head_dim < 1 || args.head_dim > 256)
    return cudaErrorInvalidValue;
  const size_t shared = sizeof(SelectMemory) +
                        static_cast<size_t>(args.group) * static_cast<size_t>(args.head_dim) * sizeof(float);
  return launch(wave_select_kernel, static_cast<unsigned>(args.count), kSelectThreads, shared, stream, args,
                workspace);
}

}  // namespace wi::cuda
