// Between clustering and layout: splits clusters that grew too large, each time halving along the line between two
// far-apart keys, and sets those keys apart that no cluster suits (kernels/wave_clusters.h).
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave_rows.cuh"

namespace wi::cuda {

// Some of a centroid's members, by place among them.
struct Piece {
  int32_t begin, count;
};

// The one that `place` is in, of pieces of at most `most` or of so many halvings.
__device__ __forceinline__ Piece piece_at(int32_t count, int32_t place, int32_t most, int halvings) {
  Piece piece = {0, count};
  for (int i = 0; i < halvings && piece.count > most; i++) {
    const int32_t half = piece.count / 2;
    if (place < piece.begin + half) {
      piece.count = half;
    } else {
      piece.begin += half;
      piece.count -= half;
    }
  }
  return piece;
}
constexpr int kAllHalvings = 32;

constexpr int kSplitThreads = 128;

struct SplitMemory {
  float distances[kSplitThreads / kWarp];
  int32_t places[kSplitThreads / kWarp];
  float row[kMostDim];
};

// The first of the members that lies farthest from `token`. All threads of the block get it.
template <DType kKv>
__device__ __forceinline__ int32_t farthest_from(int32_t token, const WaveBuild& build,
                                                 const int32_t* members, int32_t count, int32_t dim,
                                                 SplitMemory& memory) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  __syncthreads();
  for (int32_t i = thread; i < dim; i += kSplitThreads)
    memory.row[i] = finite(to_float(row_of<kKv>(build.keys, token, dim)[i]));
  __syncthreads();
  float most = -1;
  int32_t at = 0;
  for (int32_t i = thread; i < count; i += kSplitThreads) {
    const float distance = squared_distance(row_of<kKv>(build.keys, members[i], dim), memory.row, dim);
    if (distance > most) most = distance, at = i;
  }
  const auto take = [&](float other, int32_t other_at) {
    if (other > most || (other == most && other_at < at)) most = other, at = other_at;
  };
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, most, step);
    take(other, __shfl_xor_sync(kAllLanes, at, step));
  }
  if (lane_of() == 0) memory.distances[warp_of()] = most, memory.places[warp_of()] = at;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kSplitThreads / kWarp; warp++) take(memory.distances[warp], memory.places[warp]);
  return members[at];
}

// Reorders members, which are in ascending order, into two halves that each are: those that lie towards one of two
// far-apart keys, and the others. Ranks are counted: clusters that are split have some hundred members.
template <DType kKv>
__device__ __forceinline__ void halve(const WaveBuild& build, int32_t begin, int32_t count, int32_t dim,
                                      SplitMemory& memory) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), half = count / 2;
  int32_t* const members = build.members + begin;
  float* const projections = build.distances + begin;
  int32_t *const lower = build.flags + begin, *const sorted = build.kept + begin;
  const int32_t a = farthest_from<kKv>(members[0], build, members, count, dim, memory);
  const int32_t b = farthest_from<kKv>(a, build, members, count, dim, memory);
  const Kv<kKv>*const from = row_of<kKv>(build.keys, a, dim), *const to = row_of<kKv>(build.keys, b, dim);
  for (int32_t i = thread; i < count; i += kSplitThreads) {
    const Kv<kKv>* const key = row_of<kKv>(build.keys, members[i], dim);
    double projection = 0;
    for (int32_t j = 0; j < dim; j++) {
      const double along = __dsub_rn(finite(to_float(from[j])), finite(to_float(to[j])));
      projection = __dadd_rn(projection, __dmul_rn(finite(to_float(key[j])), along));
    }
    projections[i] = static_cast<float>(projection);
  }
  __syncthreads();
  for (int32_t i = thread; i < count; i += kSplitThreads) {
    const float own = projections[i];
    int32_t rank = 0;
    for (int32_t j = 0; j < count; j++) rank += projections[j] < own || (projections[j] == own && j < i);
    lower[i] = rank < half;
  }
  __syncthreads();
  for (int32_t i = thread; i < count; i += kSplitThreads) {
    int32_t before = 0;  // of the lower half
    for (int32_t j = 0; j < i; j++) before += lower[j];
    sorted[lower[i] ? before : half + i - before] = members[i];
  }
  __syncthreads();
  for (int32_t i = thread; i < count; i += kSplitThreads) members[i] = sorted[i];
  __syncthreads();
}

// A block takes a centroid.
template <DType kKv>
__global__ void __launch_bounds__(kSplitThreads) wave_halve_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  SplitMemory& memory = *reinterpret_cast<SplitMemory*>(block_memory());
  const int32_t c = static_cast<int32_t>(blockIdx.x), begin = build.begins[c],
                count = build.begins[c + 1] - begin;
  bool more = count > args.max_cluster_tokens;
  for (int halvings = 0; more; halvings++) {
    more = false;
    for (int32_t place = 0; place < count;) {
      const Piece piece = piece_at(count, place, args.max_cluster_tokens, halvings);
      if (piece.count > args.max_cluster_tokens) {
        halve<kKv>(build, begin + piece.begin, piece.count, args.head_dim, memory);
        more = true;
      }
      place = piece.begin + piece.count;
    }
  }
}

constexpr int kScanThreads = 512;

// Numbers the pieces: empty clusters are left out. A thread takes a centroid.
__global__ void __launch_bounds__(kScanThreads) wave_piece_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.x);
  int32_t* const warp_sums = reinterpret_cast<int32_t*>(block_memory());
  int32_t running = 0;
  for (int32_t base = 0; base < args.centroids; base += kScanThreads) {
    const int32_t c = base + static_cast<int32_t>(threadIdx.x);
    const int32_t begin = c < args.centroids ? build.begins[c] : 0;
    const int32_t count = c < args.centroids ? build.begins[c + 1] - begin : 0;
    const auto each = [&](auto&& use) {
      for (int32_t place = 0; place < count;) {
        const Piece piece = piece_at(count, place, args.max_cluster_tokens, kAllHalvings);
        use(piece);
        place = piece.begin + piece.count;
      }
    };
    int32_t pieces = 0, total = 0;
    each([&](const Piece&) { pieces++; });
    int32_t at = running + block_running_sum(pieces, warp_sums, total);
    each([&](const Piece& piece) {
      build.cluster_at[at] = begin + piece.begin;
      build.sizes[at] = piece.count;
      at++;
    });
    running += total;
  }
  if (threadIdx.x == 0) build.state->clusters = running;
}

constexpr int kDistanceWarps = 8;

// Of each key from its cluster's mean; a warp takes a cluster.
template <DType kKv>
__global__ void __launch_bounds__(kDistanceWarps* kWarp, 4) wave_distance_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  const int32_t c = static_cast<int32_t>(blockIdx.x) * kDistanceWarps + warp_of(), dim = args.head_dim;
  if (c >= build.state->clusters) return;
  float* const mean = reinterpret_cast<float*>(block_memory()) + warp_of() * kMostDim;
  const int32_t begin = build.cluster_at[c], count = build.sizes[c];
  float own[kLaneDims];
  mean_of<kKv>(build.keys, build.members + begin, count, dim, own);
#pragma unroll
  for (int j = 0; j < kLaneDims; j++) mean[j * kWarp + lane_of()] = own[j];
  __syncwarp();
  for (int32_t m = begin + lane_of(); m < begin + count; m += kWarp) {
    const float distance = squared_distance(row_of<kKv>(build.keys, build.members[m], dim), mean, dim);
    build.distances[m] = distance < kMostFloat ? distance : kMostFloat;
  }
}

struct ApartMemory {
  int32_t buckets[256];
  int32_t warp_sums[kScanThreads / kWarp];
  int32_t bucket, left;
};

// The keys that lie farthest from their clusters' means, the first of equals, become clusters of their own, behind all
// others and by position; what stays moves up. The pivot is found a byte at a time.
__global__ void __launch_bounds__(kScanThreads) wave_apart_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.x);
  ApartMemory& memory = *reinterpret_cast<ApartMemory*>(block_memory());
  const int32_t thread = static_cast<int32_t>(threadIdx.x), clusters = build.state->clusters;
  const auto bits_of = [&](int32_t m) { return __float_as_uint(build.distances[m]); };  // ≥ 0: in their order

  unsigned pivot = 0;
  int32_t left = args.lone;  // of those with the pivot's bits so far
  for (int shift = 24; shift >= 0 && args.lone > 0; shift -= 8) {
    for (int i = thread; i < 256; i += kScanThreads) memory.buckets[i] = 0;
    __syncthreads();
    for (int32_t m = thread; m < args.tokens; m += kScanThreads) {
      const unsigned bits = bits_of(m);
      if (shift == 24 || bits >> (shift + 8) == pivot >> (shift + 8))
        atomicAdd(&memory.buckets[bits >> shift & 255], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int bucket = 255;
      while (memory.buckets[bucket] < left) left -= memory.buckets[bucket--];
      memory.bucket = bucket;
      memory.left = left;
    }
    __syncthreads();
    pivot |= static_cast<unsigned>(memory.bucket) << shift;
    left = memory.left;
    __syncthreads();
  }

  int32_t equal = 0, kept = 0;  // before the tile
  for (int32_t base = 0; base < args.tokens; base += kScanThreads) {
    const int32_t m = base + thread;
    const bool is_one = m < args.tokens;
    const unsigned bits = is_one ? bits_of(m) : 0;
    int32_t equals = 0, keeps = 0;
    const int32_t rank = equal + block_running_sum(is_one && bits == pivot, memory.warp_sums, equals);
    const bool apart = args.lone > 0 && (bits > pivot || (bits == pivot && rank < left));
    const int32_t at = kept + block_running_sum(is_one && !apart, memory.warp_sums, keeps);
    if (is_one) {
      build.flags[m] = at;
      build.by_token[build.members[m]] = apart;
      if (!apart) build.kept[at] = build.members[m];
    }
    equal += equals;
    kept += keeps;
  }
  if (thread == 0) build.flags[args.tokens] = kept;
  __syncthreads();

  int32_t number = 0;  // of a cluster that keeps some
  for (int32_t base = 0; base < clusters; base += kScanThreads) {
    const int32_t c = base + thread;
    const int32_t from = c < clusters ? build.flags[build.cluster_at[c]] : 0;
    const int32_t count = c < clusters ? build.flags[build.cluster_at[c] + build.sizes[c]] - from : 0;
    int32_t total = 0;
    const int32_t at = number + block_running_sum(count > 0, memory.warp_sums, total);
    if (count > 0) {
      build.kept_at[at] = from;
      build.kept_sizes[at] = count;
    }
    number += total;
  }
  for (int32_t base = 0, before = 0; base < args.tokens; base += kScanThreads) {
    const int32_t t = base + thread;
    const bool apart = t < args.tokens && build.by_token[t];
    int32_t total = 0;
    const int32_t at = before + block_running_sum(apart, memory.warp_sums, total);
    if (apart) {
      build.kept[kept + at] = t;
      build.kept_at[number + at] = kept + at;
      build.kept_sizes[number + at] = 1;
    }
    before += total;
  }
  if (thread == 0) build.state->clusters = number + args.lone;
}

cudaError_t wave_split(cudaStream_t stream, const WaveIndexArgs& args) {
  const auto planes = static_cast<unsigned>(args.count), centroids = static_cast<unsigned>(args.centroids);
  const dim3 clusters(static_cast<unsigned>((args.most_clusters + kDistanceWarps - 1) / kDistanceWarps),
                      planes);
  cudaError_t error = launch(WI_WAVE_BY_KV(wave_halve_kernel, args.kv), dim3(centroids, planes),
                             kSplitThreads, sizeof(SplitMemory), stream, args);
  if (error == cudaSuccess)
    error =
        launch(wave_piece_kernel, planes, kScanThreads, kScanThreads / kWarp * sizeof(int32_t), stream, args);
  if (error == cudaSuccess)
    error = launch(WI_WAVE_BY_KV(wave_distance_kernel, args.kv), clusters, kDistanceWarps * kWarp,
                   kDistanceWarps * kMostDim * sizeof(float), stream, args);
  if (error == cudaSuccess)
    error = launch(wave_apart_kernel, planes, kScanThreads, sizeof(ApartMemory), stream, args);
  return error;
}

}  // namespace wi::cuda
