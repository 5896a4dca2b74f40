// The wave policy's Select (RetroInfer §4.2), after wave_score: ranks a lookup's clusters and splits them into
// the retrieval zone (in order of rank, until the token budget is reached), the estimation zone (the next
// ones) and the dropped rest, as kernels/cpu/policy/wave_select.cpp does and with its numbers. Equal ranks: the
// lower cluster first. Nothing is sorted: where a zone ends is looked up in a histogram of the ranks and then
// among the few clusters of that bucket; the zones' lists are in order of place.
//
// A block per lookup. It reads what best tokens likely score twice, for the softmaxes' sums and for the ranks,
// which is as fast as a multiprocessor reads L2; ranks and their histogram then stay in shared memory. What is
// left are chains of loads, each gone through once for all clusters of a list, barriers, and the code itself: it
// runs once, so that each instruction is fetched for it. Hence one loop over three phases, in which what they
// have in common is there once.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kSelectThreads = 1024;
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
constexpr int kFineBuckets = 1024;
static_assert(kBuckets % kSelectThreads == 0 && kFineBuckets % kSelectThreads == 0);
constexpr int kCandidates = 256;       // of a bucket, to be compared with each other
constexpr int kLooks = 512;            // clusters at a time
constexpr int kFew = 64;               // wanted tokens at a time
static_assert(kSelectWarps == kWarp);  // a warp has a lane for each

// A cluster's rank, then its number, the lower the better; clusters that are none have negative ones.
using Key = int64_t;
constexpr Key kNone = INT64_MAX;  // no key is as high
constexpr Key kAll = 0;           // all are

struct Sums {
  int32_t clusters, tokens;
};
__device__ __forceinline__ Sums operator+(const Sums& a, const Sums& b) {
  return {a.clusters + b.clusters, a.tokens + b.tokens};
}
// The first ones in order of rank, down to key `last`.
struct Prefix {
  Key last;
  Sums sums;
};

template <int kCount>
struct Histogram {
  uint32_t clusters[kCount], tokens[kCount];
};
struct Candidates {
  Key keys[kCandidates];
  int32_t tokens[kCandidates];
};
struct Looks {
  int32_t list[kLooks];  // the list's first
  const std::byte* rows[kLooks];
  float residuals[kLooks];
};
struct Wanted {
  int32_t places[kFew], sorted[kFew], sizes[kFew], taken_before[kFew];
};

struct alignas(16) SelectMemory {
  // Here rather than in every thread's registers, and rather than far.
  WaveClusters clusters;
  Lookup lookup;  // as it was

  union {  // one after the other
    Histogram<kBuckets> buckets;
    int32_t list[2 * kBuckets];  // the zones' first
  };
  union {  // as well
    Histogram<kFineBuckets> fine;
    Candidates candidates;
    Looks looks;
    Wanted wanted;
  };
  float scratch[kSelectHeads][kSelectWarps];
  Sums warp_sums[kSelectWarps];
  float lengths[kMostWaveGroup];    // of the scaled queries
  int32_t highest[kMostWaveGroup];  // ordered
  float shares[kMostWaveGroup];
  Prefix prefix;
  Sums above;
  int32_t found, among, candidate_count;
  int32_t taken;
};
constexpr size_t kMostQueryBytes = size_t{kMostWaveGroup} * 256 * sizeof(float);
static_assert(sizeof(SelectMemory) + kMostQueryBytes <= kLeastShared);

constexpr int kLine = 128;

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

// Integers in the order of the numbers.
__device__ __forceinline__ int32_t ordered(float number) {
  const int32_t bits = __float_as_int(number);
  return bits >= 0 ? bits : bits ^ 0x7FFFFFFF;
}
__device__ __forceinline__ float number_of(int32_t ordered) {
  return __int_as_float(ordered >= 0 ? ordered : ordered ^ 0x7FFFFFFF);
}

// One lookup. All threads of the block call everything.
template <DType kKv>
class Selector {
 public:
  // own_bits: room in shared memory for as many ranks, which else are in device memory.
  __device__ Selector(const LookupArgs& args, int32_t count, const WaveClusters& clusters,
                      SelectMemory& memory, float* query, int32_t* own_bits, int32_t own_count)
      : args_(args),
        lookup_(memory.lookup),
        clusters_(memory.clusters),
        memory_(memory),
        query_(query),
        count_(count),
        words_((count + kWarp - 1) / kWarp),
        bits_(words_ * kWarp <= own_count ? own_bits : clusters.bits) {}

  // First of all: what needs no rank. To shared memory: the lookup, of each head the highest of what best tokens
  // likely score, which the score's blocks left, and the query.
  __device__ void open(const Lookup& lookup, const WaveClusters& clusters, int32_t score_blocks) {
    if (thread() == 0) memory_.clusters = clusters;
    constexpr int kLookupWords = static_cast<int>(sizeof(Lookup) / sizeof(uint64_t));
    static_assert(sizeof(Lookup) % sizeof(uint64_t) == 0 && kLookupWords <= kSelectThreads / 4);
    if (const int word = thread() - kSelectThreads / 2; word >= 0 && word < kLookupWords)
      reinterpret_cast<uint64_t*>(&memory_.lookup)[word] = reinterpret_cast<const uint64_t*>(&lookup)[word];
#pragma unroll 1
    for (int head = warp_of(); head < args_.group; head += kSelectWarps) {
      float highest = kLowest;
#pragma unroll 2
      for (int i = lane_of(); i < score_blocks; i += kWarp)
        highest = fmaxf(highest, clusters.maxima[head * kMostScoreBlocks + i]);
      highest = warp_max(highest);
      if (lane_of() == 0) memory_.highest[head] = ordered(highest);
    }
    // By other warps than have the first heads above.
#pragma unroll 1
    for (int head = kSelectWarps - 1 - warp_of(); head < args_.group; head += kSelectWarps)
      scale_query(lookup.query + head * args_.head_dim, head);
#pragma unroll
    for (int i = 0; i < kBuckets / kSelectThreads; i++) {
      memory_.buckets.clusters[i * kSelectThreads + thread()] = 0;
      memory_.buckets.tokens[i * kSelectThreads + thread()] = 0;
    }
    // Clusters that are none, up to a whole word of them.
    if (thread() < words_ * kWarp - count_) bits_[count_ + thread()] = -1;
    __syncthreads();
  }

  // To the lookup, `out`, from which memory_.lookup was copied.
  __device__ void run(Lookup& out) {
    int32_t looked_at = 0, retrieved = 0, estimated = 0;
    Key last = kNone;  // of the retrieved
    // Ranks all and looks at the best ranked twice; ranks those anew, for the retrieval zone; the estimation zone.
#pragma unroll 1
    for (int phase = 0; phase < 3; phase++) {
      const int32_t budget = static_cast<int32_t>(min(lookup_.zones.budget, int64_t{0x3FFFFFFF}));
      if (phase == 0 || (phase == 1 && looked_at > 0)) rank(phase == 0 ? count_ : looked_at, phase == 1);
      int32_t wanted = 0;
      if (phase == 1 && lookup_.wanted_count > 0) wanted = take_wanted(budget / 2);
      if (phase == 2) estimated = max(min(lookup_.zones.estimated, count_ - retrieved), 0);
      // The retrieved are the first of those that come before the dropped rest.
      const int32_t reached = phase == 0   ? kWaveLooks * budget
                              : phase == 1 ? budget
                              : estimated  ? retrieved + estimated
                                           : 0;
      const Prefix prefix = first_ranked(phase < 2, reached);
      if (phase == 0) looked_at = prefix.sums.clusters;
      if (phase == 1) {
        last = prefix.last;
        retrieved = prefix.sums.clusters;
        if (thread() == 0) count_looks(looked_at, wanted, prefix.sums.tokens);
      }
      if (phase == 1 || (phase == 0 && looked_at == 0)) continue;
      const bool zones = phase == 2;
      collect(zones ? last : prefix.last, zones && !estimated ? last : prefix.last, zones ? estimated : 0,
              zones ? memory_.list : memory_.looks.list, zones ? 2 * kBuckets : kLooks,
              zones ? clusters_.retrieved : nullptr);
      if (!zones) look_along_axes(looked_at);
    }
    if (thread() == 0) {
      out.retrieved_count = retrieved;
      out.estimated_count = estimated;
      LookupCounters& counters = *lookup_.counters;
      counters.retrieved += retrieved;
      counters.estimated += estimated;
      counters.dropped += count_ - retrieved - estimated;
    }
    write_zones(estimated, retrieved);
  }

 private:
  static constexpr int kAxisWords = 8 * static_cast<int>(sizeof(Kv<kKv>)) / 16;  // of eight dimensions

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ float score_of(int head, int32_t cluster) const {
    return lookup_.scores[int64_t{head} * count_ + cluster];
  }
  __device__ float* likely(int head) const { return clusters_.likely + int64_t{head} * clusters_.room; }

  __device__ void count_looks(int32_t looked_at, int32_t wanted, int32_t retrieved_tokens) const {
    const int64_t row = static_cast<int64_t>(row_bytes(kKv, args_.head_dim));
    LookupCounters& counters = *lookup_.counters;
    counters.retrieved_tokens += retrieved_tokens;
    counters.index_bytes_read += count_ * (int64_t{args_.head_dim} + 12) +
                                 looked_at * (row + int64_t{sizeof(float)}) +
                                 wanted * int64_t{sizeof(int32_t)};
  }

  // Calls use(head, value) with what each of these heads' values of all threads combine to, in an order that
  // depends on nothing.
  template <class Combine, class Use>
  __device__ void combine_heads(int first_head, const float (&values)[kSelectHeads], Combine combine,
                                Use use) {
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
      const float value = over_warp(memory_.scratch[warp_of()][lane_of()]);
      if (lane_of() == 0) use(first_head + warp_of(), value);
    }
    __syncthreads();
  }

  // ---- ranks

  // By a warp: with all eights' first halves before their second ones, and its length.
  __device__ void scale_query(const float* query, int head) {
    const int dim = args_.head_dim;
    float* to = query_ + head * dim + lane_of() / 4 % 2 * (dim / 2) + lane_of() / 8 * 4 + lane_of() % 4;
    float squares = 0;
#pragma unroll 1
    for (int begin = lane_of(); begin < dim; begin += 4 * kWarp) {
      float numbers[4];
#pragma unroll
      for (int j = 0; j < 4; j++) numbers[j] = begin + j * kWarp < dim ? query[begin + j * kWarp] : 0.0f;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        squares = fmaf(numbers[j], numbers[j], squares);
        if (begin + j * kWarp < dim) to[j * (kWarp / 2)] = numbers[j] * args_.scale;
      }
      to += 2 * kWarp;
    }
    squares = warp_sum(squares);
    if (lane_of() == 0) memory_.lengths[head] = args_.scale * sqrtf(squares);
  }

  // What best tokens likely score, of i, i + 1, i + 2 and i + 3, for four heads; some may not be there.
  __device__ void load_likely(int first_head, int32_t i, float4 (&scores)[kSelectHeads]) const {
#pragma unroll
    for (int h = 0; h < kSelectHeads; h++)
      if (first_head + h < args_.group)
        scores[h] = *reinterpret_cast<const float4*>(likely(first_head + h) + i);
  }

  // The sum over the group of the softmax, over the lookup's clusters (or `again`, over the list), of what their
  // best tokens likely score; those of the list lie above all others then.
  __device__ void rank(int32_t count, bool again) {
#pragma unroll 1
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      float sums[kSelectHeads] = {}, highest[kSelectHeads];
#pragma unroll
      for (int h = 0; h < kSelectHeads; h++)
        highest[h] = first + h < args_.group ? number_of(memory_.highest[first + h]) : 0.0f;
#pragma unroll 1
      for (int32_t i = thread() * 4; i < count; i += kSelectThreads * 4) {
        float4 scores[kSelectHeads] = {};
        load_likely(first, i, scores);
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++) {
          const float second = i + 1 < count ? upper_exp(scores[h].y - highest[h]) : 0.0f,
                      third = i + 2 < count ? upper_exp(scores[h].z - highest[h]) : 0.0f,
                      fourth = i + 3 < count ? upper_exp(scores[h].w - highest[h]) : 0.0f;
          sums[h] += (upper_exp(scores[h].x - highest[h]) + second) + (third + fourth);
        }
      }
      combine_heads(
          first, sums, [](float a, float b) { return a + b; },
          [&](int head, float value) { memory_.shares[head] = 1 / value; });
    }
#pragma unroll 1
    for (int32_t i = thread() * 4; i < count; i += kSelectThreads * 4) rank_four(i, count, again);
    __syncthreads();
  }

  __device__ void rank_four(int32_t i, int32_t count, bool again) {
    int32_t numbers[4], sizes[4];
    if (again) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        numbers[j] = listed(min(i + j, count - 1), memory_.looks.list, kLooks);
        sizes[j] = clusters_.sizes[numbers[j]];
      }
    } else {
      const int4 loaded = *reinterpret_cast<const int4*>(clusters_.sizes + i);
      sizes[0] = loaded.x, sizes[1] = loaded.y, sizes[2] = loaded.z, sizes[3] = loaded.w;
    }
    float ranks[4] = {};
#pragma unroll 1
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      float4 scores[kSelectHeads] = {};
      load_likely(first, i, scores);
#pragma unroll
      for (int h = 0; h < kSelectHeads; h++) {
        if (first + h >= args_.group) continue;
        const float highest = number_of(memory_.highest[first + h]), share = memory_.shares[first + h];
        ranks[0] = fmaf(upper_exp(scores[h].x - highest), share, ranks[0]);
        ranks[1] = fmaf(upper_exp(scores[h].y - highest), share, ranks[1]);
        ranks[2] = fmaf(upper_exp(scores[h].z - highest), share, ranks[2]);
        ranks[3] = fmaf(upper_exp(scores[h].w - highest), share, ranks[3]);
      }
    }
    if (again) {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i + j < count) set_rank(numbers[j], sizes[j], kSecondLook + (rank_bits(ranks[j]) >> 1));
      return;
    }
    int32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      bits[j] = i + j < count ? rank_bits(ranks[j]) : -1;
      if (i + j < count) count_in(bits[j], 1, sizes[j]);
    }
    const int4 all = {bits[0], bits[1], bits[2], bits[3]};
    *reinterpret_cast<int4*>(bits_ + i) = all;
    *reinterpret_cast<int4*>(clusters_.bits + i) = all;
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

  // What the list's best tokens likely score, and the highest: along the axis in which its keys vary most a
  // cluster is long.
  __device__ void look_along_axes(int32_t looked_at) {
    if (thread() < args_.group) memory_.highest[thread()] = ordered(kLowest);
#pragma unroll 1
    for (int32_t first = 0; first < looked_at; first += kLooks) {
      const int32_t count = min(looked_at - first, int32_t{kLooks});
      if (thread() < count) {
        const PartitionRef place = clusters_.places[listed(first + thread(), memory_.looks.list, kLooks)];
        const WaveIndex index = wave_view(lookup_.segments[place.segment].index);
        const int64_t bytes = args_.head_dim * static_cast<int64_t>(sizeof(Kv<kKv>));
        const std::byte* row = index.axes + place.partition * bytes;
#pragma unroll 1
        for (int64_t line = 0; line < bytes; line += kLine) fetch_ahead(row + line);
        memory_.looks.rows[thread()] = row;
        memory_.looks.residuals[thread()] = index.residuals[place.partition];
      }
      __syncthreads();
#pragma unroll 1
      for (int head = 0; head < args_.group; head += kSelectHeads) look_at_some(first, count, head);
      __syncthreads();
    }
  }

  // Eight lanes take a cluster, each eight dimensions of 64, and then one or a few of the heads.
  __device__ void look_at_some(int32_t first, int32_t count, int first_head) {
    const int dim = args_.head_dim, part = lane_of() % 8;
    const int head = first_head + part % kSelectHeads;
    const bool answers = part < kSelectHeads && head < args_.group;
    float highest = kLowest;
#pragma unroll 1
    for (int32_t base = 0; base < count; base += kSelectThreads / 8) {
      const int32_t i = base + thread() / 8, own = min(i, count - 1);
      const Kv<kKv>* row = reinterpret_cast<const Kv<kKv>*>(memory_.looks.rows[own]);
      const float score = answers ? score_of(head, listed(first + own, memory_.looks.list, kLooks)) : 0.0f;
      float along[kSelectHeads] = {};
      uint4 next[kAxisWords];  // on their way while the last ones are worked on
      if (part * 8 < dim) load_axis(row + part * 8, next);
#pragma unroll 1
      for (int at = part * 8; at < dim; at += 64) {
        float axis[8];
        load_floats(reinterpret_cast<const Kv<kKv>*>(next), axis);
        if (at + 64 < dim) load_axis(row + at + 64, next);
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
      const float likely_score = score + fminf(kWaveBestAlong * deviation, 1e30f);
      likely(head)[first + i] = likely_score;
      highest = fmaxf(highest, likely_score);
    }
#pragma unroll
    for (int step = 8; step < kWarp; step *= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
    if (answers && lane_of() < 8) atomicMax(&memory_.highest[head], ordered(highest));
  }
  __device__ static void load_axis(const Kv<kKv>* from, uint4 (&words)[kAxisWords]) {
#pragma unroll
    for (int i = 0; i < kAxisWords; i++) words[i] = reinterpret_cast<const uint4*>(from)[i];
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
#pragma unroll 1
    for (int32_t w = 0; w < lookup_.wanted_count; w++) {
      const WantedTokens wanted = lookup_.wanted[w];
      all += wanted.end - wanted.begin;
#pragma unroll 1
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
#pragma unroll 1
    for (int32_t s = 0; s < number; s++) before += lookup_.segments[s].partitions;
    __syncthreads();
    const int own = thread() / 8;
    const int32_t place = few.places[min(own, count - 1)];
    int32_t order = 0;
#pragma unroll 1
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
#pragma unroll 1
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

  // The sums of the threads before, in order, and all threads'. A barrier is within; before the next call there is
  // another.
  __device__ Sums running_sums(const Sums& own, Sums& all) {
    const Sums with_own = {warp_running_sum(own.clusters), warp_running_sum(own.tokens)};
    if (lane_of() == kWarp - 1) memory_.warp_sums[warp_of()] = with_own;
    __syncthreads();
    const Sums of_warp = memory_.warp_sums[lane_of()];
    const int32_t clusters = warp_running_sum(of_warp.clusters), tokens = warp_running_sum(of_warp.tokens);
    all = {__shfl_sync(kAllLanes, clusters, kWarp - 1), __shfl_sync(kAllLanes, tokens, kWarp - 1)};
    const int32_t clusters_before = __shfl_sync(kAllLanes, clusters - of_warp.clusters, warp_of()),
                  tokens_before = __shfl_sync(kAllLanes, tokens - of_warp.tokens, warp_of());
    return {clusters_before + with_own.clusters - own.clusters, tokens_before + with_own.tokens - own.tokens};
  }

  // The shortest prefix, in order of rank, that reaches `wanted` (all, if they don't).
  __device__ Prefix first_ranked(bool by_tokens, int32_t wanted) {
    if (wanted <= 0) return {kNone, {0, 0}};
    Key low = 0, high = 0;
    Sums above = {0, 0};  // of all that is looked through
    // By the histogram of all, then, where ranks crowd, by those of the bucket's keys from low up to high.
    int shift = -1;
#pragma unroll 1
    for (;;) {
      const bool fine = shift >= 0;
      const uint32_t* clusters = fine ? memory_.fine.clusters : memory_.buckets.clusters;
      const uint32_t* tokens = fine ? memory_.fine.tokens : memory_.buckets.tokens;
      const int each = (fine ? kFineBuckets : kBuckets) / kSelectThreads;
      const int highest = (kSelectThreads - thread()) * each - 1;
      Sums own = {0, 0}, all = {0, 0};
#pragma unroll 1
      for (int i = 0; i < each; i++) own = own + sums_at(clusters, tokens, highest - i);
      if (thread() == 0) memory_.found = -1, memory_.candidate_count = 0;
      Sums before = above + running_sums(own, all);
#pragma unroll 1
      for (int i = 0; i < each; i++) {
        const Sums bucket = sums_at(clusters, tokens, highest - i), with = before + bucket;
        if ((by_tokens ? before.tokens : before.clusters) < wanted &&
            (by_tokens ? with.tokens : with.clusters) >= wanted) {
          memory_.found = highest - i;
          memory_.above = before;
          memory_.among = bucket.clusters;
        }
        before = with;
      }
      __syncthreads();
      const int found = memory_.found;
      if (found < 0) {
        __syncthreads();
        return {kAll, all};
      }
      above = memory_.above;
      if (fine) {
        low += Key{found} << shift;
        high = min(high, low + (Key{1} << shift));
      } else {
        low = Key{least_bits(found)} << 32;
        high = Key{least_bits(found + 1)} << 32;
      }
      const bool few = memory_.among <= kCandidates;
      if (!few) {
        for (shift = 0; (high - low - 1) >> shift >= kFineBuckets;) shift++;
        memory_.fine.clusters[thread()] = memory_.fine.tokens[thread()] = 0;
        __syncthreads();
      }
      enter(low, high, few ? -1 : shift, by_tokens);
      __syncthreads();
      if (few) break;
    }
    return compare(above, wanted, by_tokens);
  }
  __device__ static Sums sums_at(const uint32_t* clusters, const uint32_t* tokens, int bucket) {
    return {static_cast<int32_t>(clusters[bucket]), static_cast<int32_t>(tokens[bucket])};
  }

  // The clusters with keys from low up to high, to a histogram of as many keys a bucket, or (-1) to candidates.
  __device__ void enter(Key low, Key high, int shift, bool by_tokens) {
    const int32_t lowest = static_cast<int32_t>(low >> 32);
    const uint32_t most = static_cast<uint32_t>(static_cast<int32_t>((high - 1) >> 32) - lowest);
#pragma unroll 1
    for (int32_t i = thread() * 4; i < count_; i += kSelectThreads * 4) {
      const int4 bits = *reinterpret_cast<const int4*>(bits_ + i);
      const auto fits = [&](int32_t own) { return static_cast<uint32_t>(own - lowest) <= most; };
      unsigned left = static_cast<unsigned>(fits(bits.x)) | static_cast<unsigned>(fits(bits.y)) << 1 |
                      static_cast<unsigned>(fits(bits.z)) << 2 | static_cast<unsigned>(fits(bits.w)) << 3;
#pragma unroll 1
      for (; left != 0; left &= left - 1) {
        const int j = __ffs(static_cast<int>(left)) - 1;
        const int32_t even = j < 2 ? bits.x : bits.z, odd = j < 2 ? bits.y : bits.w;
        const int32_t own = j % 2 == 0 ? even : odd;
        enter(i + j, key_of(own, i + j), low, high, shift, by_tokens);
      }
    }
  }
  __device__ void enter(int32_t cluster, Key key, Key low, Key high, int shift, bool by_tokens) {
    if (key < low || key >= high) return;
    const int32_t tokens = by_tokens ? clusters_.sizes[cluster] : 0;
    if (shift >= 0) {
      const int bucket = static_cast<int>((key - low) >> shift);
      atomicAdd(&memory_.fine.clusters[bucket], 1u);
      atomicAdd(&memory_.fine.tokens[bucket], static_cast<unsigned>(tokens));
    } else {
      const int at = atomicAdd(&memory_.candidate_count, 1);
      memory_.candidates.keys[at] = key;
      memory_.candidates.tokens[at] = tokens;
    }
  }

  // The prefix that ends with one of the candidates, of what is above all of them and some of these. Eight lanes take
  // one.
  __device__ Prefix compare(const Sums& above, int32_t wanted, bool by_tokens) {
    const Candidates& all = memory_.candidates;
    const int count = memory_.candidate_count;
#pragma unroll 1
    for (int base = 0; base < count; base += kSelectThreads / 8) {
      const int i = base + thread() / 8, own = min(i, count - 1);
      const Key key = all.keys[own];
      Sums before = {0, 0};
#pragma unroll 1
      for (int other = lane_of() % 8; other < count; other += 8)
        if (all.keys[other] > key) before = before + Sums{1, all.tokens[other]};
      before = above + Sums{sum_of_eight(before.clusters), sum_of_eight(before.tokens)};
      const Sums with = before + Sums{1, all.tokens[own]};
      if (i < count && lane_of() % 8 == 0 && (by_tokens ? before.tokens : before.clusters) < wanted &&
          (by_tokens ? with.tokens : with.clusters) >= wanted)
        memory_.prefix = {key, with};
    }
    __syncthreads();
    return memory_.prefix;
  }

  // A list's number, of which the first are in shared memory.
  __device__ int32_t listed(int32_t at, const int32_t* own, int32_t own_count) const {
    return at < own_count ? own[at] : clusters_.list[at];
  }

  // To the list, in order: the clusters from key `last` on, from `at` on in the list, and before them those from key
  // `low` up to last; `words`, if any, gets a bit for each of the former.
  __device__ void collect(Key last, Key low, int32_t at, int32_t* own, int32_t own_count, uint32_t* words) {
    int32_t early = 0;
#pragma unroll 1
    for (int32_t begin = 0; begin < words_; begin += kSelectThreads) {
      // A warp has up to 32 words that follow each other, a lane each of them.
      const int32_t here = min(words_ - begin, int32_t{kSelectThreads});
      const int32_t each = (here + kSelectWarps - 1) / kSelectWarps;
      const int32_t first = begin + warp_of() * each, count = min(each, begin + here - first);
      unsigned firsts = 0, nexts = 0;
#pragma unroll 2
      for (int32_t w = 0; w < count; w++) {
        const int32_t cluster = (first + w) * kWarp + lane_of();
        const Key key = key_of(bits_[cluster], cluster);
        const unsigned best = __ballot_sync(kAllLanes, key >= last);
        const unsigned rest = __ballot_sync(kAllLanes, key >= low) & ~best;
        if (lane_of() == w) firsts = best, nexts = rest;
      }
      if (words && lane_of() < count) words[first + lane_of()] = firsts;
      Sums all = {0, 0};
      const Sums before = running_sums({__popc(firsts), __popc(nexts)}, all);
#pragma unroll 1
      for (int32_t w = 0; w < count; w++) {
        const unsigned best = __shfl_sync(kAllLanes, firsts, w), rest = __shfl_sync(kAllLanes, nexts, w);
        const int32_t best_at = at + __shfl_sync(kAllLanes, before.clusters, w),
                      rest_at = early + __shfl_sync(kAllLanes, before.tokens, w);
        const unsigned lane = 1u << lane_of();
        if (!((best | rest) & lane)) continue;
        const int32_t to =
            best & lane ? best_at + __popc(best & (lane - 1)) : rest_at + __popc(rest & (lane - 1));
        const int32_t cluster = (first + w) * kWarp + lane_of();
        clusters_.list[to] = cluster;
        if (to < own_count) own[to] = cluster;
      }
      at += all.clusters;
      early += all.tokens;
      __syncthreads();
    }
  }

  // Of the list: the estimation zone, with each head's highest score in it, then the retrieved.
  __device__ void write_zones(int32_t estimated, int32_t retrieved) {
#pragma unroll 1
    for (int first = 0; first < args_.group; first += kSelectHeads) {
      float highest[kSelectHeads] = {kLowest, kLowest, kLowest, kLowest};
      const int32_t count = first == 0 ? estimated + retrieved : estimated;
#pragma unroll 1
      for (int32_t i = thread(); i < count; i += kSelectThreads) {
        const int32_t cluster = listed(i, memory_.list, 2 * kBuckets);
        float scores[kSelectHeads] = {kLowest, kLowest, kLowest, kLowest};
        if (i < estimated) {
#pragma unroll
          for (int h = 0; h < kSelectHeads; h++)
            if (first + h < args_.group) scores[h] = score_of(first + h, cluster);
        }
        if (first == 0)
          *(i < estimated ? lookup_.estimated + i : lookup_.retrieved + (i - estimated)) =
              clusters_.places[cluster];
#pragma unroll
        for (int h = 0; h < kSelectHeads; h++) highest[h] = fmaxf(highest[h], scores[h]);
      }
      combine_heads(
          first, highest, [](float a, float b) { return fmaxf(a, b); },
          [&](int head, float value) { clusters_.highest[head] = value; });
    }
  }

  const LookupArgs& args_;
  const Lookup& lookup_;
  const WaveClusters& clusters_;
  SelectMemory& memory_;
  float* query_;  // (group, 2, head_dim / 8, 4) scaled
  int32_t count_;
  int32_t words_;  // of a bit for each cluster
  int32_t* bits_;  // (words, 32)
};

struct SelectLaunch {
  LookupArgs args;
  WaveSelectWorkspace workspace;
  int32_t score_blocks;
  int32_t own_count;  // ranks that there is room for in shared memory
};

template <DType kKv>
__global__ void __launch_bounds__(kSelectThreads, 1) wave_select_kernel(SelectLaunch launch) {
  in_turn();
  const LookupArgs& args = launch.args;
  SelectMemory& memory = *reinterpret_cast<SelectMemory*>(block_memory());
  Lookup& lookup = args.lookups[blockIdx.x];
  const int32_t count = lookup.partition_count;
  if (count == 0) {
    if (threadIdx.x == 0) lookup.retrieved_count = lookup.estimated_count = 0;
    return;
  }
  const WaveClusters clusters =
      wave_clusters(launch.workspace.memory +
                        blockIdx.x * wave_clusters_bytes(args.group, launch.workspace.most_partitions),
                    args.group, launch.workspace.most_partitions);
  float* query = reinterpret_cast<float*>(block_memory() + sizeof(SelectMemory));
  int32_t* own_bits = reinterpret_cast<int32_t*>(query + args.group * args.head_dim);
  Selector<kKv> selector(args, count, clusters, memory, query, own_bits, launch.own_count);
  selector.open(lookup, clusters, launch.score_blocks);
  selector.run(lookup);
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
  const auto kernel = args.kv == DType::f32    ? wave_select_kernel<DType::f32>
                      : args.kv == DType::bf16 ? wave_select_kernel<DType::bf16>
                                               : wave_select_kernel<DType::f16>;
  return launch(kernel, static_cast<unsigned>(args.count), kSelectThreads, least + own * sizeof(int32_t),
                stream, given);
}

}  // namespace wi::cuda
