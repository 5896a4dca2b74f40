// The wave policy's Estimate (RetroInfer §4.2): a cluster of the estimation zone weighs what its centroid and
// its spread say, and stands for the mean of its values; merged by LSE into the exact result. Also reports how
// much of one head's attention mass was attended exactly. As kernels/cpu/policy/wave_estimate.cpp, whose
// comments say why.
//
// Bound by reading the mean values, each once for all query heads of the group (up to 16), and only of those
// clusters that matter to one; in a single step rather by the chain of loads that leads to them, which a chunk's
// clusters go through together. A lookup's zone is cut into chunks, a block each, which depend on the lookup
// alone; the last block of a lookup to end adds them up in order. All masses are in units of exp(shift), which
// select's highest scores give, so that chunks only add.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kEstimateThreads = 128;
constexpr int kEstimateWarps = kEstimateThreads / kWarp;
constexpr int kEstimateTile = 64;        // clusters
constexpr int32_t kLeastEstimates = 64;  // of a chunk
constexpr int32_t kUsualZone = 4;        // all clusters to those of a usual zone; changes no bit
constexpr int kMostEstimateHeads = 16;   // of a group in one block
constexpr float kMostLogMass = 60;
constexpr float kLeastShare = 0x1p-32f;

struct EstimateLaunch {
  LookupArgs args;
  WaveSelectWorkspace clusters;
  AttendWorkspace workspace;
};

// Of each query head of a block.
struct EstimateHead {
  float deviation;  // of a cluster's scores, in units of its spread
  float shift;
  float exact;  // mass attended exactly
  float reach;  // of a token above its centroid, at most, by the cluster's radius
};

// Dimensions of a thread.
template <int kHeads>
constexpr int kEach = kHeads > 8 ? 4 : 8;
// Blocks of a multiprocessor, for whose registers it has room.
template <int kHeads>
constexpr int kEstimateBlocks = kHeads > 8   ? 2
                                : kHeads > 4 ? 3
                                             : 4;

template <int kHeads>
struct EstimateMemory {
  EstimateHead heads[kHeads];
  const std::byte* rows[kEstimateTile];  // mean values of those that matter
  alignas(16) float weights[kEstimateTile][kHeads];
  int32_t kept[2];  // by each of the two warps that weigh
  float masses[2][kHeads];
  float missing[kEstimateWarps], most[kEstimateWarps];
  float all_masses[kHeads];
  int32_t last;
};

// A lookup's partial results: (chunks, group, head_dim) of values; then (chunks, group + 2) of masses, with what is
// missing, and at most is.
struct Partials {
  float *values, *masses;
};
__device__ __forceinline__ Partials partials_of(float* all, int lookup, int group, int head_dim) {
  float* own = all + lookup * (kMostChunks * partial_floats(group, head_dim));
  return {own, own + int64_t{kMostChunks} * group * head_dim};
}

// log(mean of exp) above the centroid's score (wave_mass-inl.h).
__device__ __forceinline__ float mass_above_centroid(float deviation) {
  const float before = fminf(deviation, kWaveFreezing);
  return before * fmaf(before, -0.5f, deviation);
}
__device__ __forceinline__ float upper_exp_of(float x) {
  return __int_as_float(__float2int_rz(fmaf(fmaxf(x, -87.0f), 1.44269504f * 0x1p23f, 127 * 0x1p23f)));
}
__device__ __forceinline__ float length_of(const float* query, int head_dim) {
  float squares = 0;
  for (int i = lane_of(); i < head_dim; i += kWarp) squares = fmaf(query[i], query[i], squares);
  return sqrtf(warp_sum(squares));
}

// One block's work on a lookup, for up to kHeads heads from first_head on.
template <DType kKv, int kHeads>
class Estimator {
 public:
  __device__ Estimator(const LookupArgs& args, const Lookup& lookup, const WaveClusters& clusters,
                       const Partials& partials, std::byte* memory, int first_head)
      : args_(args),
        lookup_(lookup),
        clusters_(clusters),
        partials_(partials),
        memory_(*reinterpret_cast<EstimateMemory<kHeads>*>(memory)),
        strand_sums_(reinterpret_cast<float4*>(memory + sizeof(EstimateMemory<kHeads>))),
        first_head_(first_head),
        heads_(min(args.group - first_head, kHeads)),
        covered_(lookup.coverage_head - first_head) {}

  __device__ void open_heads() {
    for (int h = warp_of(); h < heads_; h += kEstimateWarps) {
      const int head = first_head_ + h;
      const float lse = lookup_.lse[head], highest = clusters_.highest[head];
      const float length = length_of(lookup_.query + head * args_.head_dim, args_.head_dim);
      if (lane_of() != 0) continue;
      const float slope =
          args_.scale * sqrtf(kWaveAlong * length * length / static_cast<float>(args_.head_dim));
      const float shift = fmaxf(lse, highest);
      // The reach is not below the true one.
      memory_.heads[h] = {fminf(slope, 1e15f), shift, expf(lse - shift), length * 1.00001f * args_.scale};
    }
    __syncthreads();
  }

  // Of estimated clusters [begin, end), and of all clusters [covers, covers_end), to the chunk's partial results.
  __device__ void run(int32_t chunk, int32_t begin, int32_t end, int32_t covers, int32_t covers_end) {
    float masses[kHeads] = {}, acc[kHeads][kEach<kHeads>] = {};
    for (int32_t tile = begin; tile < end; tile += kEstimateTile) {
      const int32_t kept = weigh(tile, end, masses);
      add_rows(kept, acc);
    }
    float missing = 0, most = 0;
    if (covers_coverage()) weigh_missing(covers, covers_end, missing, most);
    put_together(masses, missing, most, acc);
    write(chunk);
  }

  // Chunks' sums into the lookup's output, in the order of the chunks.
  __device__ void merge(int32_t chunks) {
    const int stride = args_.group + 2, head_dim = args_.head_dim;
    for (int h = warp_of(); h < heads_; h += kEstimateWarps) {
      const float mass = sum_over(partials_.masses + first_head_ + h, stride, chunks);
      if (lane_of() == 0) memory_.all_masses[h] = mass;
    }
    if (warp_of() == 0 && covers_coverage())
      count_coverage(sum_over(partials_.masses + args_.group, stride, chunks),
                     sum_over(partials_.masses + args_.group + 1, stride, chunks));
    __syncthreads();
    const int64_t chunk_values = int64_t{args_.group} * head_dim / 4;
    for (int i = thread(); i < heads_ * head_dim / 4; i += kEstimateThreads) {
      const int64_t at = int64_t{first_head_} * head_dim / 4 + i;
      const float4* from = reinterpret_cast<const float4*>(partials_.values) + at;
      float4 acc = {0, 0, 0, 0};
#pragma unroll 8
      for (int32_t c = 0; c < chunks; c++) {
        const float4 own = __ldcg(from + c * chunk_values);
        acc.x += own.x, acc.y += own.y, acc.z += own.z, acc.w += own.w;
      }
      const int h = i * 4 / head_dim;
      const float mass = memory_.all_masses[h];
      if (!(mass > 0)) continue;
      const float all = memory_.heads[h].exact + mass, keep = memory_.heads[h].exact / all, add = 1 / all;
      float4& out = reinterpret_cast<float4*>(lookup_.out)[at];
      out = {out.x * keep + acc.x * add, out.y * keep + acc.y * add, out.z * keep + acc.z * add,
             out.w * keep + acc.w * add};
      if (i * 4 % head_dim == 0) lookup_.lse[first_head_ + h] = memory_.heads[h].shift + logf(all);
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ bool covers_coverage() const { return covered_ >= 0 && covered_ < heads_; }

  // What clusters of a tile weigh; those that matter to a head go to rows and weights. Returns how many do.
  __device__ int32_t weigh(int32_t tile, int32_t end, float (&sums)[kHeads]) {
    float masses[kHeads] = {};
    bool matters = false;
    const std::byte* row = nullptr;
    if (thread() < kEstimateTile && tile + thread() < end) {
      const int32_t cluster = clusters_.list[tile + thread()];
      const PartitionRef place = lookup_.estimated[tile + thread()];
      const int64_t row_size = args_.head_dim * static_cast<int64_t>(sizeof(Kv<kKv>));
      float scores[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; h++)
        scores[h] =
            h < heads_ ? lookup_.scores[int64_t{first_head_ + h} * lookup_.partition_count + cluster] : 0;
      const float size = static_cast<float>(clusters_.sizes[cluster]);
      const float spread = wave_spread(clusters_.extents[cluster]);
      row = wave_view(lookup_.segments[place.segment].index).value_means + place.partition * row_size;
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        if (h >= heads_) continue;
        const EstimateHead& head = memory_.heads[h];
        const float above = mass_above_centroid(spread * head.deviation) * kWaveForMeanValue;
        masses[h] = expf(fminf(scores[h] - head.shift + above, kMostLogMass)) * size;
        sums[h] += masses[h];
        matters = matters || !(masses[h] < head.exact * kLeastShare);
      }
    }
    const unsigned members = __ballot_sync(kAllLanes, matters);
    __syncthreads();  // the last tile's rows are done with
    if (lane_of() == 0 && warp_of() < 2) memory_.kept[warp_of()] = __popc(members);
    __syncthreads();
    if (matters) {
      const int at = __popc(members & ((1u << lane_of()) - 1)) + (warp_of() == 0 ? 0 : memory_.kept[0]);
      memory_.rows[at] = row;
#pragma unroll
      for (int h = 0; h < kHeads; h++) memory_.weights[at][h] = masses[h];
    }
    const int32_t kept = memory_.kept[0] + memory_.kept[1];
    __syncthreads();
    return kept;
  }

  // A row's dimensions are shared by as many threads as it takes, and rows by these strands.
  __device__ int of_row() const { return args_.head_dim / kEach<kHeads>; }
  __device__ int strands() const { return kEstimateThreads / of_row(); }

  __device__ void add_rows(int32_t kept, float (&acc)[kHeads][kEach<kHeads>]) const {
    const int strand = thread() / of_row(), part = thread() % of_row();
    if (strand >= strands()) return;
#pragma unroll(kHeads > 4 ? 2 : 4)
    for (int32_t i = strand; i < kept; i += strands()) {
      float values[kEach<kHeads>];
      load_floats(reinterpret_cast<const Kv<kKv>*>(memory_.rows[i]) + part * kEach<kHeads>, values);
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        const float weight = memory_.weights[i][h];
#pragma unroll
        for (int d = 0; d < kEach<kHeads>; d++) acc[h][d] = fmaf(weight, values[d], acc[h][d]);
      }
    }
  }

  // What clusters [begin, end) of those that were not retrieved weigh for the head whose coverage is wanted: by
  // centroid and spread, and at most, by radius.
  __device__ void weigh_missing(int32_t begin, int32_t end, float& missing, float& most) const {
    const EstimateHead& head = memory_.heads[covered_];
    const float* scores = lookup_.scores + int64_t{lookup_.coverage_head} * lookup_.partition_count;
#pragma unroll 4
    for (int32_t i = begin + thread(); i < end; i += kEstimateThreads) {
      const bool retrieved = clusters_.retrieved[i / kWarp] >> i % kWarp & 1;
      const float size = static_cast<float>(clusters_.sizes[i]), own = scores[i];
      const float score = (retrieved ? kLowest : own) - head.shift;
      const uint32_t extent = clusters_.extents[i];
      const float log_mass = score + mass_above_centroid(wave_spread(extent) * head.deviation);
      // Never nothing at all, as the CPU's: shares are then numbers.
      missing = fmaf(size, expf(fmaxf(fminf(log_mass, kMostLogMass), -87.0f)), missing);
      most =
          fmaf(size, upper_exp_of(fminf(fmaf(head.reach, wave_radius(extent), score), kMostLogMass)), most);
    }
  }

  // All threads' to shared memory: strand_sums (strands, heads, head_dim).
  __device__ void put_together(const float (&masses)[kHeads], float missing, float most,
                               const float (&acc)[kHeads][kEach<kHeads>]) {
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      const float mass = warp_sum(masses[h]);
      if (lane_of() == 0 && warp_of() < 2) memory_.masses[warp_of()][h] = mass;
    }
    missing = warp_sum(missing);
    most = warp_sum(most);
    if (lane_of() == 0) {
      memory_.missing[warp_of()] = missing;
      memory_.most[warp_of()] = most;
    }
    const int strand = thread() / of_row(), part = thread() % of_row(), fours = args_.head_dim / 4;
    if (strand < strands()) {
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        if (h >= heads_) continue;
        float4* to = strand_sums_ + (strand * heads_ + h) * fours + part * (kEach<kHeads> / 4);
#pragma unroll
        for (int f = 0; f < kEach<kHeads> / 4; f++)
          to[f] = {acc[h][f * 4], acc[h][f * 4 + 1], acc[h][f * 4 + 2], acc[h][f * 4 + 3]};
      }
    }
    __syncthreads();
  }

  __device__ void write(int32_t chunk) {
    const int group = args_.group, fours = heads_ * args_.head_dim / 4;
    float4* values = reinterpret_cast<float4*>(partials_.values) +
                     (int64_t{chunk} * group + first_head_) * args_.head_dim / 4;
    for (int i = thread(); i < fours; i += kEstimateThreads) {
      float4 all = {0, 0, 0, 0};
#pragma unroll 4
      for (int s = 0; s < strands(); s++) {
        const float4 own = strand_sums_[s * fours + i];
        all.x += own.x, all.y += own.y, all.z += own.z, all.w += own.w;
      }
      values[i] = all;
    }
    float* sums = partials_.masses + int64_t{chunk} * (group + 2);
    if (thread() < heads_)
      sums[first_head_ + thread()] = memory_.masses[0][thread()] + memory_.masses[1][thread()];
    if (thread() == 0 && covers_coverage()) {
      sums[group] = (memory_.missing[0] + memory_.missing[1]) + (memory_.missing[2] + memory_.missing[3]);
      sums[group + 1] = (memory_.most[0] + memory_.most[1]) + (memory_.most[2] + memory_.most[3]);
    }
    __syncthreads();
  }

  // Of a number of each chunk, by a warp.
  __device__ static float sum_over(const float* numbers, int stride, int32_t chunks) {
    float sum = 0;
    for (int32_t c = lane_of(); c < chunks; c += kWarp) sum += __ldcg(numbers + int64_t{c} * stride);
    return warp_sum(sum);
  }

  __device__ void count_coverage(float missing, float most) const {
    if (lane_of() != 0) return;
    const float exact = memory_.heads[covered_].exact;
    LookupCounters& counters = *lookup_.counters;
    const double certified = static_cast<double>(exact / (exact + most));
    counters.estimated_coverage_sum += static_cast<double>(exact / (exact + missing));
    counters.certified_coverage_sum += certified;
    counters.certified_coverage_min = fmin(counters.certified_coverage_min, certified);
    counters.coverage_count++;
    counters.index_bytes_read +=
        lookup_.estimated_count * static_cast<int64_t>(row_bytes(args_.kv, args_.head_dim));
  }

  const LookupArgs& args_;
  const Lookup& lookup_;
  const WaveClusters& clusters_;
  const Partials& partials_;
  EstimateMemory<kHeads>& memory_;
  float4* strand_sums_;
  int first_head_, heads_;
  int covered_;  // which of the heads' coverage is wanted, if it is one of them
};

template <DType kKv, int kHeads>
__global__ void __launch_bounds__(kEstimateThreads, kEstimateBlocks<kHeads>)
    wave_estimate_kernel(EstimateLaunch launch) {
  in_turn();
  EstimateMemory<kHeads>& memory = *reinterpret_cast<EstimateMemory<kHeads>*>(block_memory());
  const LookupArgs& args = launch.args;
  const int number = static_cast<int>(blockIdx.y);
  const Lookup& lookup = args.lookups[number];
  if (lookup.partition_count == 0) return;
  const int32_t count = lookup.estimated_count;
  const int32_t even = (count + kMostChunks - 1) / kMostChunks;
  const int32_t step = max((even + kEstimateTile - 1) / kEstimateTile * kEstimateTile, kLeastEstimates);
  const int32_t chunks = max((count + step - 1) / step, 1);
  if (static_cast<int32_t>(blockIdx.x) >= chunks) return;
  const WaveClusters clusters = wave_clusters(
      launch.clusters.memory + number * wave_clusters_bytes(args.group, launch.clusters.most_partitions),
      args.group, launch.clusters.most_partitions);
  const Partials partials = partials_of(launch.workspace.partials, number, args.group, args.head_dim);
  Estimator<kKv, kHeads> estimator(args, lookup, clusters, partials, block_memory(),
                                   static_cast<int>(blockIdx.z) * kMostEstimateHeads);
  estimator.open_heads();

  const int32_t cover_step = (lookup.partition_count + chunks - 1) / chunks;
  uint32_t done = 0;
  for (int32_t chunk = static_cast<int32_t>(blockIdx.x); chunk < chunks;
       chunk += static_cast<int32_t>(gridDim.x), done++)
    estimator.run(chunk, chunk * step, min(count, (chunk + 1) * step), chunk * cover_step,
                  min(lookup.partition_count, (chunk + 1) * cover_step));

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* arrived = launch.workspace.arrived + number * gridDim.z + blockIdx.z;
    const bool last = atomicAdd(arrived, done) + done == static_cast<uint32_t>(chunks);
    if (last) *arrived = 0;
    memory.last = last;
  }
  __syncthreads();
  if (!memory.last) return;
  __threadfence();
  estimator.merge(chunks);
}

template <DType kKv, int kHeads>
cudaError_t launch_estimate(cudaStream_t stream, const EstimateLaunch& given) {
  constexpr size_t kStrands = size_t{kEstimateThreads} * kEach<kHeads> * kHeads * sizeof(float),
                   kShared = sizeof(EstimateMemory<kHeads>) + kStrands;
  static_assert(kEstimateBlocks<kHeads> * (kShared + kSharedOfBlock) <= kSharedOfProcessor);
  const int32_t most =
      (given.clusters.most_partitions + kUsualZone * kLeastEstimates - 1) / (kUsualZone * kLeastEstimates);
  const int32_t blocks = most < 1 ? 1 : most < kMostChunks ? most : kMostChunks;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(given.args.count),
                  static_cast<unsigned>((given.args.group + kMostEstimateHeads - 1) / kMostEstimateHeads));
  return launch(wave_estimate_kernel<kKv, kHeads>, grid, kEstimateThreads, kShared, stream, given);
}

template <DType kKv>
cudaError_t estimate_heads(cudaStream_t stream, const EstimateLaunch& given) {
  if (given.args.group <= 2) return launch_estimate<kKv, 2>(stream, given);
  if (given.args.group <= 4) return launch_estimate<kKv, 4>(stream, given);
  if (given.args.group <= 8) return launch_estimate<kKv, 8>(stream, given);
  return launch_estimate<kKv, 16>(stream, given);
}

cudaError_t wave_estimate(cudaStream_t stream, const LookupArgs& args, const WaveSelectWorkspace& clusters,
                          const AttendWorkspace& workspace) {
  if (args.head_dim % 8 || args.head_dim > 256 || args.head_dim < 8 || args.group < 1 ||
      args.group > kMostWaveGroup)
    return cudaErrorInvalidValue;
  const EstimateLaunch given = {args, clusters, workspace};
  switch (args.kv) {
    case DType::f32:
      return estimate_heads<DType::f32>(stream, given);
    case DType::f16:
      return estimate_heads<DType::f16>(stream, given);
    case DType::bf16:
      return estimate_heads<DType::bf16>(stream, given);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wi::cuda
