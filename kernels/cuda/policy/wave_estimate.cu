// The wave policy's Estimate (RetroInfer §4.2): a cluster of the estimation zone weighs what its centroid and
// its spread say, and stands for the mean of its values; merged by LSE into the exact result. Also reports how
// much of one head's attention mass was attended exactly. As kernels/cpu/policy/wave_estimate.cpp, whose
// comments say why.
//
// Bound by reading the mean values, each once for all query heads of the group (up to 16), and only of those
// clusters that matter to one. A lookup's zone is cut into chunks, a block each, which depend on the lookup
// alone; the last block of a lookup to end adds them up in order. All masses are in units of exp(shift), which
// select's highest scores give, so that chunks only add.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave.h"

namespace wi::cuda {

constexpr int kEstimateThreads = 128;
constexpr int kEstimateTile = 64;        // clusters
constexpr int32_t kLeastEstimates = 64;  // of a chunk
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
};

template <int kHeads>
struct EstimateMemory {
  EstimateHead heads[kHeads];
  const std::byte* rows[kEstimateTile];  // mean values of those that matter
  float weights[kEstimateTile][kHeads];
  int32_t kept[2];  // by each of the two warps that weigh
  float sums[kEstimateThreads / kWarp];
  int32_t last;
};

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

// A lookup's estimated clusters [begin, end), to partial: acc (group, head_dim), then sums (group).
template <DType kKv, int kHeads>
__device__ void estimate_clusters(const LookupArgs& args, const Lookup& lookup, const WaveClusters& clusters,
                                  EstimateMemory<kHeads>& memory, float* strand_sums, int32_t begin,
                                  int32_t end, int first_head, int heads, float* partial) {
  const int head_dim = args.head_dim, thread = static_cast<int>(threadIdx.x);
  const int pairs = head_dim / 2, strands = max(kEstimateThreads / pairs, 1);
  const int strand = thread / pairs, pair = thread - strand * pairs;
  const int64_t row_size = int64_t{head_dim} * static_cast<int64_t>(sizeof(Kv<kKv>));
  float sums[kHeads] = {}, acc[kHeads][2] = {};

  for (int32_t tile = begin; tile < end; tile += kEstimateTile) {
    float masses[kHeads] = {};
    bool matters = false;
    const std::byte* row = nullptr;
    if (thread < kEstimateTile && tile + thread < end) {
      const int32_t cluster = clusters.list[tile + thread];
      const PartitionRef place = clusters.places[cluster];
      row = wave_view(lookup.segments[place.segment].index).value_means + place.partition * row_size;
      const float size = static_cast<float>(clusters.sizes[cluster]);
      const float spread = wave_spread(clusters.extents[cluster]);
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        if (h >= heads) continue;
        const EstimateHead& head = memory.heads[h];
        const float score = lookup.scores[int64_t{first_head + h} * lookup.partition_count + cluster];
        const float above = mass_above_centroid(spread * head.deviation) * kWaveForMeanValue;
        masses[h] = expf(fminf(score - head.shift + above, kMostLogMass)) * size;
        sums[h] += masses[h];
        matters = matters || !(masses[h] < head.exact * kLeastShare);
      }
    }
    const unsigned members = __ballot_sync(kAllLanes, matters);
    __syncthreads();  // the last tile's rows are done with
    if (lane_of() == 0 && warp_of() < 2) memory.kept[warp_of()] = __popc(members);
    __syncthreads();
    if (matters) {
      const int at = __popc(members & ((1u << lane_of()) - 1)) + (warp_of() == 0 ? 0 : memory.kept[0]);
      memory.rows[at] = row;
#pragma unroll
      for (int h = 0; h < kHeads; h++) memory.weights[at][h] = masses[h];
    }
    const int32_t kept = memory.kept[0] + memory.kept[1];
    __syncthreads();
    if (strand >= strands) continue;
#pragma unroll 4
    for (int32_t i = strand; i < kept; i += strands) {
      const Kv<kKv>* value = reinterpret_cast<const Kv<kKv>*>(memory.rows[i]) + pair * 2;
      const float first = to_float(value[0]), second = to_float(value[1]);
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        acc[h][0] = fmaf(memory.weights[i][h], first, acc[h][0]);
        acc[h][1] = fmaf(memory.weights[i][h], second, acc[h][1]);
      }
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; h++) {
    const float sum = warp_sum(sums[h]);
    __syncthreads();
    if (lane_of() == 0) memory.sums[warp_of()] = sum;
    if (strand < strands) {
      strand_sums[strand * head_dim + pair * 2] = acc[h][0];
      strand_sums[strand * head_dim + pair * 2 + 1] = acc[h][1];
    }
    __syncthreads();
    if (h >= heads) continue;
    for (int i = thread; i < head_dim; i += kEstimateThreads) {
      float all = 0;
      for (int s = 0; s < strands; s++) all += strand_sums[s * head_dim + i];
      partial[(first_head + h) * head_dim + i] = all;
    }
    if (thread == 0) partial[args.group * head_dim + first_head + h] = memory.sums[0] + memory.sums[1];
  }
  __syncthreads();
}

// What clusters [begin, end) of those that were not retrieved weigh for the head whose coverage is wanted: by
// centroid and spread, and at most, by radius.
__device__ void weigh_missing(const LookupArgs& args, const Lookup& lookup, const WaveClusters& clusters,
                              const EstimateHead& head, float length, float* sums, int32_t begin, int32_t end,
                              float* partial) {
  const float reach = length * 1.00001f * args.scale;  // not below the true one
  const float* scores = lookup.scores + int64_t{lookup.coverage_head} * lookup.partition_count;
  float missing = 0, most = 0;
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kEstimateThreads) {
    const bool retrieved = clusters.retrieved[i / kWarp] >> i % kWarp & 1;
    const float size = static_cast<float>(clusters.sizes[i]);
    const float score = (retrieved ? kLowest : scores[i]) - head.shift;
    const uint32_t extent = clusters.extents[i];
    const float log_mass = score + mass_above_centroid(wave_spread(extent) * head.deviation);
    // Never nothing at all, as the CPU's: shares are then numbers.
    missing = fmaf(size, expf(fmaxf(fminf(log_mass, kMostLogMass), -87.0f)), missing);
    most = fmaf(size, upper_exp_of(fminf(fmaf(reach, wave_radius(extent), score), kMostLogMass)), most);
  }
  missing = block_sum(missing, sums);
  __syncthreads();
  most = block_sum(most, sums);
  __syncthreads();
  if (threadIdx.x != 0) return;
  partial[0] = missing;
  partial[1] = most;
}

// Chunks' sums into the lookup's output, in the order of the chunks.
template <int kHeads>
__device__ void merge_estimates(const LookupArgs& args, const Lookup& lookup,
                                const EstimateMemory<kHeads>& memory, const float* partials, int32_t chunks,
                                int first_head, int heads) {
  const int head_dim = args.head_dim, group = args.group;
  const int64_t stride = partial_floats(group, head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < heads * head_dim; i += kEstimateThreads) {
    const int h = i / head_dim, head = first_head + h, at = i % head_dim;
    float sum = 0, acc = 0;
    for (int32_t c = 0; c < chunks; c++) {
      sum += __ldcg(partials + c * stride + group * head_dim + head);
      acc += __ldcg(partials + c * stride + head * head_dim + at);
    }
    if (!(sum > 0)) continue;
    const float all = memory.heads[h].exact + sum;
    float& out = lookup.out[head * head_dim + at];
    out = out * (memory.heads[h].exact / all) + acc * (1 / all);
    if (at == 0) lookup.lse[head] = memory.heads[h].shift + logf(all);
  }
  const int covered = lookup.coverage_head - first_head;
  if (threadIdx.x != 0 || covered < 0 || covered >= heads) return;
  float missing = 0, most = 0;
  for (int32_t c = 0; c < chunks; c++) {
    missing += __ldcg(partials + c * stride + group * (head_dim + 2));
    most += __ldcg(partials + c * stride + group * (head_dim + 2) + 1);
  }
  const float exact = memory.heads[covered].exact;
  LookupCounters& counters = *lookup.counters;
  const double certified = static_cast<double>(exact / (exact + most));
  counters.estimated_coverage_sum += static_cast<double>(exact / (exact + missing));
  counters.certified_coverage_sum += certified;
  counters.certified_coverage_min = fmin(counters.certified_coverage_min, certified);
  counters.coverage_count++;
  counters.index_bytes_read += lookup.estimated_count * static_cast<int64_t>(row_bytes(args.kv, head_dim));
}

template <DType kKv, int kHeads>
__global__ void __launch_bounds__(kEstimateThreads, kHeads > 8 ? 3 : 4)
    wave_estimate_kernel(EstimateLaunch launch) {
  EstimateMemory<kHeads>& memory = *reinterpret_cast<EstimateMemory<kHeads>*>(block_memory());
  float* strand_sums = reinterpret_cast<float*>(block_memory() + sizeof(EstimateMemory<kHeads>));
  const LookupArgs& args = launch.args;
  const int number = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int first_head = static_cast<int>(blockIdx.z) * kMostEstimateHeads;
  const int heads = min(args.group - first_head, kHeads);
  const Lookup& lookup = args.lookups[number];
  if (lookup.partition_count == 0) return;
  const int32_t count = lookup.estimated_count;
  const int32_t even = (count + kMostChunks - 1) / kMostChunks;
  const int32_t step = max((even + kEstimateTile - 1) / kEstimateTile * kEstimateTile, kLeastEstimates);
  const int32_t chunks = max((count + step - 1) / step, 1);
  if (static_cast<int32_t>(blockIdx.x) >= chunks) return;
  const WaveClusters clusters = wave_clusters(
      launch.clusters.memory + number * wave_clusters_bytes(args.group, launch.clusters.most_partitions),
      launch.clusters.most_partitions);

  for (int h = warp_of(); h < heads; h += kEstimateThreads / kWarp) {
    const int head = first_head + h;
    const float length = length_of(lookup.query + head * args.head_dim, args.head_dim);
    if (lane_of() != 0) continue;
    const float slope = args.scale * sqrtf(kWaveAlong * length * length / static_cast<float>(args.head_dim));
    const float shift = fmaxf(lookup.lse[head], clusters.highest[head]);
    memory.heads[h] = {fminf(slope, 1e15f), shift, expf(lookup.lse[head] - shift)};
  }
  const int covered = lookup.coverage_head - first_head;
  const bool covers = covered >= 0 && covered < heads;
  const float length =
      covers ? length_of(lookup.query + lookup.coverage_head * args.head_dim, args.head_dim) : 0.0f;
  __syncthreads();

  const int64_t stride = partial_floats(args.group, args.head_dim);
  float* partials = launch.workspace.partials + number * kMostChunks * stride;
  const int32_t cover_step = (lookup.partition_count + chunks - 1) / chunks;
  uint32_t done = 0;
  for (int32_t chunk = static_cast<int32_t>(blockIdx.x); chunk < chunks;
       chunk += static_cast<int32_t>(gridDim.x), done++) {
    float* partial = partials + chunk * stride;
    if (covers)
      weigh_missing(args, lookup, clusters, memory.heads[covered], length, memory.sums, chunk * cover_step,
                    min(lookup.partition_count, (chunk + 1) * cover_step),
                    partial + args.group * (args.head_dim + 2));
    estimate_clusters<kKv, kHeads>(args, lookup, clusters, memory, strand_sums, chunk * step,
                                   min(count, (chunk + 1) * step), first_head, heads, partial);
  }

  __threadfence();
  __syncthreads();
  if (thread == 0) {
    unsigned* arrived = launch.workspace.arrived + number * gridDim.z + blockIdx.z;
    const bool last = atomicAdd(arrived, done) + done == static_cast<uint32_t>(chunks);
    if (last) *arrived = 0;
    memory.last = last;
  }
  __syncthreads();
  if (!memory.last) return;
  __threadfence();
  merge_estimates<kHeads>(args, lookup, memory, partials, chunks, first_head, heads);
}

template <DType kKv, int kHeads>
cudaError_t launch_estimate(cudaStream_t stream, const EstimateLaunch& given) {
  const size_t strands = 2 * kEstimateThreads;  // floats: two to a thread that has any, head_dim at most
  const dim3 grid(static_cast<unsigned>(given.workspace.blocks), static_cast<unsigned>(given.args.count),
                  static_cast<unsigned>((given.args.group + kMostEstimateHeads - 1) / kMostEstimateHeads));
  return launch(wave_estimate_kernel<kKv, kHeads>, grid, kEstimateThreads,
                sizeof(EstimateMemory<kHeads>) + strands * sizeof(float), stream, given);
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
  if (args.head_dim % 8 || args.head_dim > 256 || args.head_dim < 8 || args.group < 1 || args.group > 64 ||
      workspace.blocks < 1 || workspace.blocks > kMostChunks)
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
