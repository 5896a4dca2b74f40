// The wave policy's Select (RetroInfer §4.2), after wave_score: ranks a lookup's clusters and splits them into
// the retrieval zone (in order of rank, until the token budget is reached), the estimation zone (the next
// ones) and the dropped rest, as kernels/cpu/policy/wave_select.cpp does and with its numbers. Equal ranks: the
// lower cluster first. Nothing is sorted: where a zone ends is looked up in a histogram of the ranks and then
// among the few clusters of that bucket; the zones' lists are in order of place.
//
// A block per lookup. It reads what best tokens likely score twice, for the softmaxes' sums and for the ranks,
// which is as fast as a multiprocessor reads L2; ranks and their histogram then stay in shared memory. What is
// left are chains of loads, each gone through once for all clusters of a list, and barriers.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / kWarp;
constexpr int kSelectHeads = 4;  // at a time
constexpr float kRankLimit = 0x1p15f;

// The histogram of ranks: clusters whose ranks share a float's exponent and first bits, five of a first look's
// and four of a second's; both from 2^-56 to 2^8, with all that are lower, or higher, in the buckets at the
// ends. Ranks of a second look, with half their precision, lie above all of the first, and wanted clusters
// above those.
constexpr int kLowestExponent = 127 - 56, kOctaves = 64;
constexpr int32_t kSecondLook = (127 + 16) << 23;
constexpr int32_t kWantedRank = kSecondLook + ((127 + 16) << 22) - 1;
constexpr int kFirstShift = 23 - 5, kSecondShift = 22 - 4;
constexpr int kFirstBuckets = kOctaves << 5, kSecondBuckets = kOctaves << 4;
constexpr int kBuckets = kFirstBuckets + kSecondBuckets;
constexpr int kFineBuckets = 512;
static_assert(kBuckets % kSelectThreads == 0 && kFineBuckets % kSelectThreads == 0);
constexpr int kCandidates = 256;        // of a bucket, to be compared with each other
constexpr int kLooks = kSelectThreads;  // clusters at a time
constexpr int kFew = 64;                // wanted tokens at a time

// A cluster's rank, then its number, the lower the better; clusters that are none have negative ones.
using Key = int64_t;
constexpr Key kNone = INT64_MAX;  // no key is as high
constexpr Key kAll = 0;           // all are

template <int kCount>
struct Histogram {
  uint32_t clusters[kCount], tokens[kCount];
};
struct Candidates {
  Key keys[kCandidates];
  int32_t weights[kCandidates];
};
struct Looks {
  const std::byte* rows[kLooks];
  int32_t numbers[kLooks];
  float residuals[kLooks];
};
struct Wanted {
  int32_t places[kFew], sorted[kFew], sizes[kFew], taken_before[kFew];
};

struct alignas(16) SelectMemory {
  WaveClusters clusters;  // here rather than in every thread's registers

  Histogram<kBuckets> buckets;
  union {  // one after the other
    Histogram<kFineBuckets> fine;
    Candidates candidates;
    Looks looks;
    Wanted wanted;
  };
  float scratch[kSelectHeads][kSelectWarps];
  int32_t warp_sums[kSelectWarps];
  float lengths[kMostWaveGroup];  // of the scaled queries
  float highest[kMostWaveGroup], shares[kMostWaveGroup];
  Key pivot;
  int32_t found, above, among, candidate_count;
  int32_t taken;
};
constexpr size_t kMostQueryBytes = size_t{kMostWaveGroup} * 256 * sizeof(float);
static_assert(sizeof(SelectMemory) + kMostQueryBytes <= kLeastShared);

enum class Count { clusters, tokens };

// Asks for the line about an address that will be read; nothing waits for it.
constexpr int kLine = 128;
__device__ __forceinline__ void fetch_to_l2([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

__device__ __forceinline__ int clamped(int bucket, int buckets) { return min(max(bucket, 0), buckets - 1); }
__device__ __forceinline__ int bucket_of(int32_t bits) {
  if (bits < kSecondLook) return clamped((bits >> kFirstShift) - (kLowestExponent << 5), kFirstBuckets);
  return kFirstBuckets +
         clamped(((bits - kSecondLook) >> kSecondShift) - (kLowestExponent << 4), kSecondBuckets);
}
// The least bits that a bucket, or one above it, has.
__device__ __forceinline__ int32_t least_bits(int bucket) {
  if (bucket == 0) return 0;
  if (bucket < kFirstBuckets) return ((kLowestExponent << 5) + bucket) << kFirstShift;
  if (bucket == kFirstBuckets) return kSecondLook;
  if (bucket == kBuckets) return kWantedRank + 1;
  return kSecondLook + (((kLowestExponent << 4) + bucket - kFirstBuckets) << kSecondShift);
}
__device__ __forceinline__ Key key_of(int32_t bits, int32_t cluster) {
  return Key{bits} << 32 | Key{0x7FFFFFFF - cluster};
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
  // own_bits: room in shared memory for as many ranks, which else are in device memory.
  __device__ Selector(const LookupArgs& args, Lookup& lookup, SelectMemory& memory, float* query,
                      int32_t* own_bits, int32_t own_count, int32_t score_blocks)
      : args_(args),
        lookup_(lookup),
        clusters_(memory.clusters),
        memory_(memory),
        query_(query),
        scores_(lookup.scores),
        count_(lookup.partition_count),
        words_((count_ + kWarp - 1) / kWarp),
        bits_(words_ * kWarp <= own_count ? own_bits : memory.clusters.bits),
        score_blocks_(score_blocks) {}

  __device__ void run() {
    if (count_ == 0) {
      if (thread() == 0) lookup_.retrieved_count = lookup_.estimated_count = 0;
      return;
    }
    const int32_t budget = static_cast<int32_t>(min(lookup_.zones.budget, int64_t{0x3FFFFFFF}));
    rank();
    const int32_t looked_at = look_twice(kWaveLooks * budget);
    const int32_t wanted = take_wanted(budget / 2);

    const Key last = first_ranked(Count::tokens, budget);
    const int32_t retrieved = collect(last, kNone, clusters_.retrieved);
    const int32_t retrieved_tokens = write_retrieved(retrieved);
    // The retrieved are the first of those that come before the dropped rest.
    const int32_t most = min(lookup_.zones.estimated, count_ - retrieved);
    const int32_t estimated =
        most > 0 ? collect(first_ranked(Count::clusters, retrieved + most), last, nullptr) : 0;
    write_estimated(estimated);
    if (thread() != 0) return;
    lookup_.retrieved_count = retrieved;
    lookup_.estimated_count = estimated;
    LookupCounters& counters = *lookup_.counters;
    counters.retrieved_tokens += retrieved_tokens;
    counters.retrieved += retrieved;
    counters.estimated += estimated;
    counters.dropped += count_ - retrieved - estimated;
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
    return scores_[int64_t{head} * count_ + cluster];
  }
  __device__ float* likely(int head) const { return clusters_.likely + int64_t{head} * clusters_.room; }

  // Calls use(head, value) with what each of these heads' values of all threads combine to, in an order that
  // depends on nothing.
  template <class Combine, class Use>
  __device__ void combine_heads(int first_head, const float (&values)[kSelectHeads], float rest,
                                Combine combine, Use use) {
    const auto over_warp = [&](float value) {
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2)
        value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
      return value;
    };
#pragma unroll
    for (int h = 0; h < kSelectHeads; h++) {
      const float value = over_warp(values[h]);
      if (lane_of() == 0) memory_.scratch[h][warp_of()] = value;
    }
    __syncthreads();
    if (warp_of() < kSelectHeads && first_head + warp_of() < args_.group) {
      const float value = over_warp(lane_of() < kSelectWarps ? memory_.scratch[warp_of()][lane_of()] : rest);
      if (lane_of() == 0) use(first_head + warp_of(), value);
    }
    __syncthreads();
  }

  // ---- ranks

  // Of likely's first `count` of each head: the highest.
  __device__ void find_highest(int32_t count) {
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      float highest[kSelectHeads] = {kLowest, kLowest, kLowest, kLowest};
      for (int32_t i = thread(); i < count; i += kSelectThreads) {
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++)
          if (first + h < args_.group) highest[h] = fmaxf(highest[h], likely(first + h)[i]);
      }
      combine_heads(
          first, highest, kLowest, [](float a, float b) { return fmaxf(a, b); },
          [&](int head, float value) { memory_.highest[head] = value; });
    }
  }

  // And one by the sum of the softmax, by highest.
  __device__ void find_shares(int32_t count) {
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      float sums[kSelectHeads] = {}, highest[kSelectHeads];
#pragma unroll
      for (int h = 0; h < kSelectHeads; h++)
        highest[h] = first + h < args_.group ? memory_.highest[first + h] : 0.0f;
#pragma unroll 2
      for (int32_t i = thread(); i < count / 4; i += kSelectThreads) {
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++) {
          if (first + h >= args_.group) continue;
          const float4 scores = reinterpret_cast<const float4*>(likely(first + h))[i];
          sums[h] += (upper_exp(scores.x - highest[h]) + upper_exp(scores.y - highest[h])) +
                     (upper_exp(scores.z - highest[h]) + upper_exp(scores.w - highest[h]));
        }
      }
      if (thread() < count % 4) {
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++)
          if (first + h < args_.group)
            sums[h] += upper_exp(likely(first + h)[count / 4 * 4 + thread()] - highest[h]);
      }
      combine_heads(
          first, sums, 0.0f, [](float a, float b) { return a + b; },
          [&](int head, float value) { memory_.shares[head] = 1 / value; });
    }
  }

  // Calls visit(i, bits, numbers) with the ranks of i, i + 1, i + 2 and i + 3, of which some may not be there,
  // and what `along` has for them.
  template <class Visit>
  __device__ void for_each_rank(int32_t count, const int32_t* along, Visit visit) {
#pragma unroll 1
    for (int32_t i = thread() * 4; i < count; i += kSelectThreads * 4) {
      const int4 loaded = *reinterpret_cast<const int4*>(along + i);
      float ranks[4] = {};
#pragma unroll 4
      for (int head = 0; head < args_.group; head++) {
        const float4 scores = *reinterpret_cast<const float4*>(likely(head) + i);
        const float highest = memory_.highest[head], share = memory_.shares[head];
        ranks[0] = fmaf(upper_exp(scores.x - highest), share, ranks[0]);
        ranks[1] = fmaf(upper_exp(scores.y - highest), share, ranks[1]);
        ranks[2] = fmaf(upper_exp(scores.z - highest), share, ranks[2]);
        ranks[3] = fmaf(upper_exp(scores.w - highest), share, ranks[3]);
      }
      const int32_t bits[4] = {rank_bits(ranks[0]), rank_bits(ranks[1]), rank_bits(ranks[2]),
                               rank_bits(ranks[3])};
      const int32_t numbers[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      visit(i, bits, numbers);
    }
  }

  // The sum over the group of the softmax, over the lookup's clusters, of what their best tokens likely score.
  __device__ void rank() {
    for (int head = warp_of(); head < args_.group; head += kSelectWarps) {
      float highest = kLowest;
      for (int i = lane_of(); i < score_blocks_; i += kWarp)
        highest = fmaxf(highest, clusters_.maxima[head * kMostScoreBlocks + i]);
      highest = warp_max(highest);
      if (lane_of() == 0) memory_.highest[head] = highest;
    }
    for (int i = thread(); i < kBuckets; i += kSelectThreads)
      memory_.buckets.clusters[i] = memory_.buckets.tokens[i] = 0;
    scale_queries();
    // Clusters that are none, up to a whole word of them.
    if (thread() < words_ * kWarp - count_) bits_[count_ + thread()] = -1;
    __syncthreads();
    find_shares(count_);
    for_each_rank(count_, clusters_.sizes, [&](int32_t i, const int32_t(&bits)[4], const int32_t(&sizes)[4]) {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i + j < count_) count_in(bits[j], 1, sizes[j]);
      const int4 all = {bits[0], i + 1 < count_ ? bits[1] : -1, i + 2 < count_ ? bits[2] : -1,
                        i + 3 < count_ ? bits[3] : -1};
      *reinterpret_cast<int4*>(bits_ + i) = all;
      *reinterpret_cast<int4*>(clusters_.bits + i) = all;
    });
    __syncthreads();
  }

  __device__ void count_in(int32_t bits, int clusters, int32_t tokens) {
    const int bucket = bucket_of(bits);
    atomicAdd(&memory_.buckets.clusters[bucket], static_cast<unsigned>(clusters));
    atomicAdd(&memory_.buckets.tokens[bucket], static_cast<unsigned>(tokens));
  }
  __device__ void set_rank(int32_t cluster, int32_t size, int32_t rank) {
    count_in(bits_[cluster], -1, -size);
    count_in(rank, 1, size);
    bits_[cluster] = rank;
    clusters_.bits[cluster] = rank;
  }

  // ---- the second look

  // The scaled queries, with all eights' first halves before their second ones, and their lengths.
  __device__ void scale_queries() {
    const int dim = args_.head_dim;
    for (int head = warp_of(); head < args_.group; head += kSelectWarps) {
      float squares = 0;
#pragma unroll 4
      for (int i = lane_of(); i < dim; i += kWarp) {
        const float number = lookup_.query[head * dim + i];
        squares = fmaf(number, number, squares);
        query_[head * dim + i / 4 % 2 * (dim / 2) + i / 8 * 4 + i % 4] = number * args_.scale;
      }
      squares = warp_sum(squares);
      if (lane_of() == 0) memory_.lengths[head] = args_.scale * sqrtf(squares);
    }
  }

  // The best ranked clusters, of so many tokens, get their ranks anew, above all others': along the axis in
  // which its keys vary most a cluster is long. Returns how many.
  __device__ int32_t look_twice(int32_t tokens) {
    const int32_t looked_at = collect(first_ranked(Count::tokens, tokens), kNone, nullptr);
    if (looked_at == 0) return 0;
    if (args_.kv == DType::f32)
      look_along_axes<DType::f32>(looked_at);
    else if (args_.kv == DType::bf16)
      look_along_axes<DType::bf16>(looked_at);
    else
      look_along_axes<DType::f16>(looked_at);
    find_highest(looked_at);
    find_shares(looked_at);
    for_each_rank(looked_at, clusters_.list,
                  [&](int32_t i, const int32_t(&bits)[4], const int32_t(&numbers)[4]) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                      if (i + j < looked_at)
                        set_rank(numbers[j], clusters_.sizes[numbers[j]], kSecondLook + (bits[j] >> 1));
                  });
    __syncthreads();
    return looked_at;
  }

  template <DType kKv>
  __device__ void look_along_axes(int32_t looked_at) {
    for (int32_t first = 0; first < looked_at; first += kLooks) {
      const int32_t count = min(looked_at - first, int32_t{kLooks});
      __syncthreads();  // whoever had the memory before is done
      if (thread() < count) {
        const int32_t cluster = clusters_.list[first + thread()];
        const PartitionRef place = clusters_.places[cluster];
        const WaveIndex index = wave_view(lookup_.segments[place.segment].index);
        memory_.looks.numbers[thread()] = cluster;
        memory_.looks.residuals[thread()] = index.residuals[place.partition];
        const int64_t bytes = args_.head_dim * static_cast<int64_t>(sizeof(Kv<kKv>));
        const std::byte* row = index.axes + place.partition * bytes;
        memory_.looks.rows[thread()] = row;
        for (int64_t line = 0; line < bytes; line += kLine) fetch_to_l2(row + line);
      }
      __syncthreads();
      for (int head = 0; head < args_.group; head += kSelectHeads) look_at_some<kKv>(first, count, head);
    }
    __syncthreads();
  }

  // Eight lanes take a cluster, each eight dimensions of 64, and then one or a few of the heads.
  template <DType kKv>
  __device__ void look_at_some(int32_t first, int32_t count, int first_head) {
    const int dim = args_.head_dim, part = lane_of() % 8;
    const int head = first_head + part % kSelectHeads;
    const bool answers = part < kSelectHeads && head < args_.group;

    for (int32_t base = 0; base < count; base += kSelectThreads / 8) {
      const int32_t i = base + thread() / 8, own = min(i, count - 1);
      const Kv<kKv>* row = reinterpret_cast<const Kv<kKv>*>(memory_.looks.rows[own]);
      const float score = answers ? score_of(head, memory_.looks.numbers[own]) : 0.0f;
      float along[kSelectHeads] = {};
#pragma unroll 2
      for (int at = part * 8; at < dim; at += 64) {
        float axis[8];
        load_floats(row + at, axis);
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++)
          if (first_head + h < args_.group)
            along[h] = product(axis, query_ + (first_head + h) * dim + at / 2, along[h]);
      }
      float mine = 0;
#pragma unroll
      for (int h = 0; h < kSelectHeads; h++) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2) along[h] += __shfl_xor_sync(kAllLanes, along[h], step);
        if (part == h) mine = along[h];
      }
      if (!answers || i >= count) continue;
      const float across = memory_.lengths[head] * memory_.looks.residuals[own];
      const float deviation = sqrtf(fmaf(mine, mine, across * across));
      likely(head)[first + i] = score + fminf(kWaveBestAlong * deviation, 1e30f);
    }
  }
  __device__ float product(const float (&axis)[8], const float* query, float sum) const {
    const float4 early = *reinterpret_cast<const float4*>(query);
    const float4 later = *reinterpret_cast<const float4*>(query + args_.head_dim / 2);
    sum = fmaf(axis[0], early.x, sum);
    sum = fmaf(axis[1], early.y, sum);
    sum = fmaf(axis[2], early.z, sum);
    sum = fmaf(axis[3], early.w, sum);
    sum = fmaf(axis[4], later.x, sum);
    sum = fmaf(axis[5], later.y, sum);
    sum = fmaf(axis[6], later.z, sum);
    return fmaf(axis[7], later.w, sum);
  }

  // ---- wanted tokens

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

  // In their stored order, as the CPU takes them. Eight lanes look for a token's cluster.
  __device__ void take_few(int32_t number, int32_t begin, int32_t count, int32_t most_tokens) {
    const SegmentView& segment = lookup_.segments[number];
    Wanted& few = memory_.wanted;
    __syncthreads();
    if (thread() < count) few.places[thread()] = segment.places[begin + thread()];
    int32_t before = 0;  // clusters of earlier segments
    for (int32_t s = 0; s < number; s++) before += lookup_.segments[s].partitions;
    __syncthreads();
    const int own = thread() / 8;
    const int32_t place = few.places[min(own, count - 1)];
    int32_t order = 0;
    for (int i = lane_of() % 8; i < count; i += 8) order += few.places[i] < place;
    order = sum_of_eight(order);
    const int32_t cluster = before + partition_at(segment, place);
    if (own < count && lane_of() % 8 == 0) {
      few.sorted[order] = cluster;
      few.sizes[order] = clusters_.sizes[cluster];
      few.taken_before[order] = bits_[cluster] == kWantedRank;
    }
    __syncthreads();
    if (thread() != 0) return;
    int32_t last = -1;  // a cluster's tokens follow each other
    for (int32_t i = 0; i < count; i++) {
      const int32_t cluster = few.sorted[i], size = few.sizes[i];
      if (cluster == last || few.taken_before[i] || memory_.taken + size > most_tokens) continue;
      memory_.taken += size;
      set_rank(cluster, size, kWantedRank);
      last = cluster;
    }
  }

  // The last partition that begins at or before a place: each of eight lanes tries another, over and over.
  __device__ static int32_t partition_at(const SegmentView& segment, int32_t place) {
    int32_t low = 0;
    for (int32_t among = segment.partitions; among > 1;) {
      const int32_t step = (among + 7) / 8, tried = low + (lane_of() % 8 + 1) * step;
      const bool begins = tried < segment.partitions && segment.offsets[tried] <= place;
      low += step * sum_of_eight(static_cast<int32_t>(begins));
      among = step;
    }
    return low;
  }
  __device__ static int32_t sum_of_eight(int32_t value) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
  }

  // ---- zones

  // To found, above and among: the highest bucket from which on, with what is above all of them, `wanted` is
  // reached (-1: it is not), what the buckets above it have with that, and how many clusters are in it.
  template <int kCount>
  __device__ void find(const Histogram<kCount>& buckets, Count unit, int32_t above, int32_t wanted) {
    constexpr int kEach = kCount / kSelectThreads;
    const uint32_t* weights = unit == Count::tokens ? buckets.tokens : buckets.clusters;
    const int highest = kCount - 1 - thread() * kEach;
    int32_t own[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) sum += own[i] = static_cast<int32_t>(weights[highest - i]);
    if (thread() == 0) memory_.found = -1;
    int32_t total = 0;
    int32_t before = above + running_sum(sum, total);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      if (before < wanted && before + own[i] >= wanted) {
        memory_.found = highest - i;
        memory_.above = before;
        memory_.among = static_cast<int32_t>(buckets.clusters[highest - i]);
      }
      before += own[i];
    }
    __syncthreads();
  }

  // Calls visit(cluster, key) for a thread's of the lookup's clusters, and for what fills the last word of them. A
  // warp has words of them that follow each other.
  template <class Visit>
  __device__ void for_each(Visit visit) const {
    const int32_t each = (words_ + kSelectWarps - 1) / kSelectWarps;
    const int32_t begin = min(warp_of() * each, words_), end = min(begin + each, words_);
#pragma unroll 4
    for (int32_t word = begin; word < end; word++) {
      const int32_t cluster = word * kWarp + lane_of();
      visit(cluster, key_of(bits_[cluster], cluster));
    }
  }

  // The key of the last of the shortest prefix, in order of rank, that reaches `wanted` (kAll, if they don't).
  __device__ Key first_ranked(Count unit, int32_t wanted) {
    if (wanted <= 0) return kNone;
    find(memory_.buckets, unit, 0, wanted);
    const int bucket = memory_.found;
    if (bucket < 0) return kAll;
    Key low = Key{least_bits(bucket)} << 32, high = Key{least_bits(bucket + 1)} << 32;
    while (memory_.among > kCandidates) narrow(unit, wanted, low, high);
    if (thread() == 0) memory_.candidate_count = 0;
    __syncthreads();
    for_each([&](int32_t cluster, Key key) {
      if (key < low || key >= high) return;
      const int at = atomicAdd(&memory_.candidate_count, 1);
      memory_.candidates.keys[at] = key;
      memory_.candidates.weights[at] = unit == Count::tokens ? clusters_.sizes[cluster] : 1;
    });
    __syncthreads();
    return compare(memory_.above, wanted);
  }

  // Where ranks crowd: the bucket of keys from low up to high by a histogram of its own.
  __device__ void narrow(Count unit, int32_t wanted, Key& low, Key& high) {
    int shift = 0;
    while ((high - low - 1) >> shift >= kFineBuckets) shift++;
    const int32_t above = memory_.above;
    for (int i = thread(); i < kFineBuckets; i += kSelectThreads)
      memory_.fine.clusters[i] = memory_.fine.tokens[i] = 0;
    __syncthreads();
    for_each([&](int32_t cluster, Key key) {
      if (key < low || key >= high) return;
      const int bucket = static_cast<int>((key - low) >> shift);
      atomicAdd(&memory_.fine.clusters[bucket], 1u);
      atomicAdd(&memory_.fine.tokens[bucket], static_cast<unsigned>(clusters_.sizes[cluster]));
    });
    __syncthreads();
    find(memory_.fine, unit, above, wanted);
    low += Key{memory_.found} << shift;
    high = min(high, low + (Key{1} << shift));
  }

  // Of the candidates, with what is above all of them, the one that reaches `wanted`. Eight lanes take one.
  __device__ Key compare(int32_t above, int32_t wanted) {
    const Candidates& all = memory_.candidates;
    const int count = memory_.candidate_count;
    for (int base = 0; base < count; base += kSelectThreads / 8) {
      const int i = base + thread() / 8, own = min(i, count - 1);
      const Key key = all.keys[own];
      int32_t before = 0;
      for (int other = lane_of() % 8; other < count; other += 8)
        if (all.keys[other] > key) before += all.weights[other];
      before = above + sum_of_eight(before);
      if (i < count && lane_of() % 8 == 0 && before < wanted && before + all.weights[own] >= wanted)
        memory_.pivot = key;
    }
    __syncthreads();
    return memory_.pivot;
  }

  // The clusters from key `last` up to key `end`, without it, to the list, in order; `words`, if any, gets a bit for
  // each cluster. Returns how many.
  __device__ int32_t collect(Key last, Key end, uint32_t* words) {
    int32_t own = 0;  // of the warp
    for_each([&](int32_t, Key key) { own += __popc(__ballot_sync(kAllLanes, key >= last && key < end)); });
    int32_t all = 0;
    const int32_t before = running_sum(lane_of() == 0 ? own : 0, all);
    int32_t at = __shfl_sync(kAllLanes, before, 0);
    for_each([&](int32_t cluster, Key key) {
      const bool member = key >= last && key < end;
      const unsigned members = __ballot_sync(kAllLanes, member);
      if (words && lane_of() == 0) words[cluster / kWarp] = members;
      if (member) clusters_.list[at + __popc(members & ((1u << lane_of()) - 1))] = cluster;
      at += __popc(members);
    });
    __syncthreads();
    return all;
  }

  // Of the list. Returns its tokens.
  __device__ int32_t write_retrieved(int32_t count) {
    int32_t tokens = 0, all = 0;
#pragma unroll 4
    for (int32_t i = thread(); i < count; i += kSelectThreads) {
      const int32_t cluster = clusters_.list[i];
      lookup_.retrieved[i] = clusters_.places[cluster];
      tokens += clusters_.sizes[cluster];
    }
    running_sum(tokens, all);
    return all;
  }

  // Of the list, with each head's highest score. An equal share of the threads takes a head.
  __device__ void write_estimated(int32_t count) {
    constexpr int kOfHead = kSelectThreads / kSelectHeads;
#pragma unroll 4
    for (int32_t i = thread(); i < count; i += kSelectThreads)
      lookup_.estimated[i] = clusters_.places[clusters_.list[i]];
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      const int own = thread() / kOfHead, head = first + own;
      float highest = kLowest;
      if (head < args_.group) {
#pragma unroll 8
        for (int32_t i = thread() % kOfHead; i < count; i += kOfHead)
          highest = fmaxf(highest, score_of(head, clusters_.list[i]));
      }
      highest = warp_max(highest);
      if (lane_of() == 0) memory_.scratch[own][warp_of() % (kOfHead / kWarp)] = highest;
      __syncthreads();
      if (thread() % kOfHead == 0 && head < args_.group) {
        for (int warp = 1; warp < kOfHead / kWarp; warp++)
          highest = fmaxf(highest, memory_.scratch[own][warp]);
        clusters_.highest[head] = highest;
      }
      __syncthreads();
    }
  }

  const LookupArgs& args_;
  Lookup& lookup_;
  const WaveClusters& clusters_;
  SelectMemory& memory_;
  float* query_;  // (group, 2, head_dim / 8, 4) scaled
  const float* scores_;
  int32_t count_;
  int32_t words_;  // of a bit for each cluster
  int32_t* bits_;  // (words, 32)
  int32_t score_blocks_;
};

struct SelectLaunch {
  LookupArgs args;
  WaveSelectWorkspace workspace;
  int32_t score_blocks;
  int32_t own_count;  // ranks that there is room for in shared memory
};

__global__ void __launch_bounds__(kSelectThreads, 2) wave_select_kernel(SelectLaunch launch) {
  in_turn();
  const LookupArgs& args = launch.args;
  SelectMemory& memory = *reinterpret_cast<SelectMemory*>(block_memory());
  if (threadIdx.x == 0)
    memory.clusters =
        wave_clusters(launch.workspace.memory +
                          blockIdx.x * wave_clusters_bytes(args.group, launch.workspace.most_partitions),
                      args.group, launch.workspace.most_partitions);
  __syncthreads();
  float* query = reinterpret_cast<float*>(block_memory() + sizeof(SelectMemory));
  int32_t* own_bits = reinterpret_cast<int32_t*>(query + args.group * args.head_dim);
  Selector(args, args.lookups[blockIdx.x], memory, query, own_bits, launch.own_count, launch.score_blocks)
      .run();
}

cudaError_t wave_select(cudaStream_t stream, const LookupArgs& args, const WaveSelectWorkspace& workspace) {
  if (args.group < 1 || args.group > kMostWaveGroup || args.head_dim < 8 || args.head_dim % 8 ||
      args.head_dim > 256)
    return cudaErrorInvalidValue;
  const size_t least = sizeof(SelectMemory) +
                       static_cast<size_t>(args.group) * static_cast<size_t>(args.head_dim) * sizeof(float);
  const size_t room = (kLeastShared - least) / sizeof(int32_t), most = wave_room(workspace.most_partitions);
  const size_t own = most < room ? most : room;
  const SelectLaunch given = {args, workspace, wave_score_blocks(args, workspace), static_cast<int32_t>(own)};
  return launch(wave_select_kernel, static_cast<unsigned>(args.count), kSelectThreads,
                least + own * sizeof(int32_t), stream, given);
}

}  // namespace wi::cuda
