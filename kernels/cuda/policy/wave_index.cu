// The wave policy's Index on a device (RetroInfer §4.2): clusters the keys of many planes at once, sets those apart that
// no cluster suits, lays keys and values out cluster by cluster, and writes each cluster's centroid, value mean, size,
// radius, spread and axis. A few dozen launches, whatever the planes; nothing comes back to the host in between.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave_rows.cuh"

namespace wi::cuda {

static WaveBuildLayout layout_of(const WaveIndexArgs& args) {
  WaveBuildLayout layout;
  uint64_t used = 0;
  const auto next = [&used](uint64_t& at, int64_t count, size_t each) {
    at = used;
    used += (static_cast<uint64_t>(count) * each + 255) & ~uint64_t{255};
  };
  const auto whole = [](int32_t count, int32_t of) { return (int64_t{count} + of - 1) / of * of; };
  const int64_t tokens = args.tokens, clusters = args.most_clusters;
  const size_t numbers = static_cast<size_t>(wave_numbers(args.head_dim)),
               rows = static_cast<size_t>(args.row_bytes);
  layout.values = static_cast<uint64_t>(tokens) * rows;
  used = (2 * layout.values + 255) & ~uint64_t{255};
  next(layout.numbers, whole(args.tokens, kAssignKeys), numbers);
  next(layout.packed, whole(args.centroids, kAssignCentroids), numbers);
  next(layout.inverses, tokens, sizeof(float));
  next(layout.centre, args.head_dim, sizeof(float));
  next(layout.centroids, int64_t{args.centroids} * args.head_dim, sizeof(float));
  next(layout.assignment, tokens, sizeof(int32_t));
  next(layout.counts, int64_t{args.centroids} * kGroupWarps, sizeof(int32_t));
  next(layout.begins, args.centroids + 1, sizeof(int32_t));
  next(layout.members, tokens, sizeof(int32_t));
  next(layout.kept, tokens, sizeof(int32_t));
  next(layout.distances, tokens, sizeof(float));
  next(layout.flags, tokens + 1, sizeof(int32_t));
  next(layout.by_token, tokens, sizeof(int32_t));
  for (uint64_t* of_clusters : {&layout.cluster_at, &layout.sizes, &layout.kept_at, &layout.kept_sizes})
    next(*of_clusters, clusters, sizeof(int32_t));
  next(layout.state, 1, sizeof(WaveBuildState));
  layout.bytes = used;
  return layout;
}

WaveIndexArgs wave_index_args(const PolicyParams& params, int32_t tokens, int32_t head_dim, DType kv) {
  WaveIndexArgs args = {};
  args.tokens = tokens;
  args.head_dim = head_dim;
  args.kv = kv;
  args.row_bytes = static_cast<int32_t>(row_bytes(kv, head_dim));
  args.centroids = wave_centroid_count(params, tokens);
  args.lone = wave_lone_count(params, tokens);
  args.most_clusters = wave_most_clusters(params, tokens);
  args.max_cluster_tokens = std::max(1, params.max_cluster_tokens);
  args.iterations = std::max(1, params.kmeans_iterations);
  args.layout = layout_of(args);
  return args;
}

cudaError_t wave_index(cudaStream_t stream, const WaveIndexArgs& args) {
  if (args.head_dim < 8 || args.head_dim > kMostDim || args.head_dim % 8 || args.tokens < 1 ||
      args.count > 65535)
    return cudaErrorInvalidValue;
  cudaError_t error = wave_cluster(stream, args);
  if (error == cudaSuccess) error = wave_split(stream, args);
  if (error == cudaSuccess) error = wave_describe(stream, args);
  return error;
}

constexpr int kLayOutThreads = 256;

// A warp takes a token.
__global__ void __launch_bounds__(kLayOutThreads) wave_lay_out_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  const WavePlane plane = args.planes[blockIdx.y];
  const int pieces = args.row_bytes / static_cast<int>(sizeof(uint4));
  const uint4 *const keys = reinterpret_cast<const uint4*>(build.keys), *const values =
                                                                            reinterpret_cast<const uint4*>(
                                                                                build.values);
  uint4 *const to_keys = static_cast<uint4*>(plane.keys), *const to_values =
                                                              static_cast<uint4*>(plane.values);
  constexpr int kWarps = kLayOutThreads / kWarp;
  for (int32_t place = static_cast<int32_t>(blockIdx.x) * kWarps + warp_of(); place < args.tokens;
       place += static_cast<int32_t>(gridDim.x) * kWarps) {
    const int32_t token = build.kept[place];
    for (int i = lane_of(); i < pieces; i += kWarp) {
      to_keys[int64_t{place} * pieces + i] = keys[int64_t{token} * pieces + i];
      to_values[int64_t{place} * pieces + i] = values[int64_t{token} * pieces + i];
    }
    if (lane_of() == 0) plane.places[token] = place;
  }
}

constexpr int kDescribeWarps = 4;

struct DescribeMemory {
  float centroid[kMostDim], axis[kMostDim], next[kMostDim];
};

// One cluster, by a warp.
template <DType kKv>
struct Cluster {
  const WaveBuild& build;
  const int32_t* members;
  int32_t count, dim;
  DescribeMemory& memory;

  __device__ const Kv<kKv>* key(int32_t member) const {
    return row_of<kKv>(build.keys, members[member], dim);
  }

  // Rounds the mean of the keys into its column of its tile; the centroid becomes what is stored.
  __device__ __forceinline__ void store_centroid(std::byte* index, const WaveHeader& header,
                                                 int32_t number) const {
    float mean[kLaneDims];
    mean_of<kKv>(build.keys, members, count, dim, mean);
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kLaneDims; j++) {
      const int i = j * kWarp + lane_of();
      if (i < dim) largest = fmaxf(largest, fminf(fabsf(__fsub_rn(mean[j], build.centre[i])), kMostFloat));
    }
    largest = warp_max(largest);
    const float scale = largest / 127, inverse = scale > 1e-30f ? 1 / scale : 0;
    if (lane_of() == 0) reinterpret_cast<float*>(index + header.scales)[number] = scale;
    uint8_t* const codes = reinterpret_cast<uint8_t*>(index + header.codes);
#pragma unroll
    for (int j = 0; j < kLaneDims; j++) {
      const int i = j * kWarp + lane_of();
      if (i >= dim) continue;
      const float centre = build.centre[i];
      const float code =
          roundf(fminf(fmaxf(__fmul_rn(__fsub_rn(mean[j], centre), inverse), -127.0f), 127.0f));
      codes[wave_code(number, i, dim)] = static_cast<uint8_t>(static_cast<int32_t>(code) + 128);
      memory.centroid[i] = __fadd_rn(centre, __fmul_rn(scale, code));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void load_centroid(const std::byte* index, const WaveHeader& header,
                                                int32_t number) const {
    const uint8_t* const codes = reinterpret_cast<const uint8_t*>(index + header.codes);
    const float scale = reinterpret_cast<const float*>(index + header.scales)[number];
    for (int32_t i = lane_of(); i < dim; i += kWarp) {
      const float code = static_cast<float>(codes[wave_code(number, i, dim)] - 128);
      memory.centroid[i] = __fadd_rn(build.centre[i], __fmul_rn(scale, code));
    }
    __syncwarp();
  }

  // Of the keys from the centroid as stored.
  struct Distances {
    float most, sum;   // squared
    int32_t farthest;  // member
  };
  __device__ __forceinline__ Distances distances() const {
    Distances out = {-1, 0, 0};
    for (int32_t first = 0; first < count; first += kWarp) {
      const int32_t m = first + lane_of();
      const float own = m < count ? squared_distance(key(m), memory.centroid, dim) : 0;
      const int32_t here = min(count - first, kWarp);
      for (int32_t i = 0; i < here; i++) {
        const float squares = __shfl_sync(kAllLanes, own, i);
        if (squares > out.most) out.most = squares, out.farthest = first + i;
        out.sum = __fadd_rn(out.sum, squares);
      }
    }
    return out;
  }

  // next = Σ over members of the deviation from the centroid times its product with the axis; returns the sum of the
  // squared products.
  __device__ __forceinline__ float spread_along_axis() const {
    float squares = 0, sums[kLaneDims] = {};
    for (int32_t first = 0; first < count; first += kWarp) {
      const int32_t m = first + lane_of();
      float along = 0;
      if (m < count)
#pragma unroll 1
        for (int32_t i = 0; i < dim; i += 8) {
          float numbers[8];
          load_finite(key(m) + i, numbers);
#pragma unroll
          for (int j = 0; j < 8; j++)
            along = __fadd_rn(along,
                              __fmul_rn(__fsub_rn(numbers[j], memory.centroid[i + j]), memory.axis[i + j]));
        }
      const int32_t here = min(count - first, kWarp);
#pragma unroll 1
      for (int32_t of = 0; of < here; of++) {
        const float product = __shfl_sync(kAllLanes, along, of);
        const Kv<kKv>* const row = key(first + of);
#pragma unroll
        for (int j = 0; j < kLaneDims; j++) {
          const int i = j * kWarp + lane_of();
          if (i < dim)
            sums[j] = __fadd_rn(sums[j],
                                __fmul_rn(__fsub_rn(finite(to_float(row[i])), memory.centroid[i]), product));
        }
        squares = __fadd_rn(squares, __fmul_rn(product, product));
      }
    }
#pragma unroll
    for (int j = 0; j < kLaneDims; j++) memory.next[j * kWarp + lane_of()] = sums[j];
    __syncwarp();
    return squares;
  }

  // axis = v of length 1; false if it is too short or too long to have a direction.
  __device__ __forceinline__ bool normalise(const float* v) const {
    float squares = 0;
#pragma unroll 1
    for (int32_t i = 0; i < dim; i++) squares = __fadd_rn(squares, __fmul_rn(v[i], v[i]));
    if (!(squares > 1e-30f && squares < 1e30f)) return false;
    const float inverse = 1 / sqrtf(squares);
    __syncwarp();
    for (int32_t i = lane_of(); i < dim; i += kWarp) memory.axis[i] = __fmul_rn(v[i], inverse);
    __syncwarp();
    return true;
  }

  // The axis in which the keys vary most, one deviation long, by a few steps of the power method from the farthest
  // key's direction. Returns the deviation in every other direction, were it the same in all.
  __device__ __forceinline__ float store_axis(float sum, int32_t farthest_member, Kv<kKv>* out) const {
    const Kv<kKv>* const farthest = key(farthest_member);
    for (int32_t i = lane_of(); i < dim; i += kWarp)
      memory.next[i] = __fsub_rn(finite(to_float(farthest[i])), memory.centroid[i]);
    __syncwarp();
    bool found = true;
    float along = 0;
#pragma unroll 1
    for (int step = 0; step < 4 && found; step++) {
      found = normalise(memory.next);
      along = found ? spread_along_axis() : 0;
    }
    const float share = 1 / static_cast<float>(count);
    const float deviation = fminf(sqrtf(__fmul_rn(along, share)), 6e4f);  // f16 must hold it
    for (int32_t i = lane_of(); i < dim; i += kWarp)
      out[i] = from_float<Kv<kKv>>(found ? __fmul_rn(memory.axis[i], deviation) : 0.0f);
    const float rest = __fmul_rn(fmaxf(__fsub_rn(sum, along), 0.0f), share) / static_cast<float>(dim);
    return fminf(sqrtf(rest), kWaveMostExtent);
  }
};

struct DescribeBlock {
  DescribeMemory warps[kDescribeWarps];
  WaveHeader header;
};

// A warp takes a cluster.
template <DType kKv>
__global__ void __launch_bounds__(kDescribeWarps* kWarp) wave_describe_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  DescribeBlock& memory = *reinterpret_cast<DescribeBlock*>(block_memory());
  std::byte* const index = args.planes[blockIdx.y].index;
  const int32_t clusters = build.state->clusters;
  if (threadIdx.x == 0) memory.header = wave_header(clusters, args.tokens, args.head_dim, kKv);
  __syncthreads();
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *reinterpret_cast<WaveHeader*>(index) = memory.header;
      args.results[blockIdx.y] = {clusters, memory.header.bytes};
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.head_dim; i += kDescribeWarps * kWarp)
      reinterpret_cast<float*>(index + memory.header.centre)[i] = build.centre[i];
  }
  const int32_t c = static_cast<int32_t>(blockIdx.x) * kDescribeWarps + warp_of();
  if (c >= clusters) return;
  const Cluster<kKv> cluster = {build, build.kept + build.kept_at[c], build.kept_sizes[c], args.head_dim,
                                memory.warps[warp_of()]};
  cluster.store_centroid(index, memory.header, c);
  const auto distances = cluster.distances();
  if (lane_of() != 0) return;
  reinterpret_cast<int32_t*>(index + memory.header.sizes)[c] = cluster.count;
  // The radius holds for the rounding of the sum, too.
  reinterpret_cast<uint32_t*>(index + memory.header.extents)[c] = wave_extent(
      __fmul_rn(sqrtf(distances.most), 1.00001f), sqrtf(distances.sum / static_cast<float>(cluster.count)));
  build.distances[c] = distances.sum;
  build.flags[c] = distances.farthest;
}

template <DType kKv>
__global__ void __launch_bounds__(kDescribeWarps* kWarp, 4) wave_axis_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  const int32_t c = static_cast<int32_t>(blockIdx.x) * kDescribeWarps + warp_of();
  if (c >= build.state->clusters) return;
  std::byte* const index = args.planes[blockIdx.y].index;
  const WaveHeader& header = *reinterpret_cast<const WaveHeader*>(index);
  const Cluster<kKv> cluster = {build, build.kept + build.kept_at[c], build.kept_sizes[c], args.head_dim,
                                reinterpret_cast<DescribeMemory*>(block_memory())[warp_of()]};
  cluster.load_centroid(index, header, c);
  Kv<kKv>* const axes = reinterpret_cast<Kv<kKv>*>(index + header.axes);
  const float residual =
      cluster.store_axis(build.distances[c], build.flags[c], axes + int64_t{c} * args.head_dim);
  if (lane_of() == 0) reinterpret_cast<float*>(index + header.residuals)[c] = residual;
}

// The means of clusters' values, likewise.
template <DType kKv>
__global__ void __launch_bounds__(kDescribeWarps* kWarp) wave_value_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  const int32_t dim = args.head_dim, clusters = build.state->clusters;
  const int32_t c = static_cast<int32_t>(blockIdx.x) * kDescribeWarps + warp_of();
  if (c >= clusters) return;
  float mean[kLaneDims];
  mean_of<kKv>(build.values, build.kept + build.kept_at[c], build.kept_sizes[c], dim, mean);
  const uint64_t at = wave_header(clusters, args.tokens, dim, kKv).value_means;
  Kv<kKv>* const out = reinterpret_cast<Kv<kKv>*>(args.planes[blockIdx.y].index + at) + int64_t{c} * dim;
#pragma unroll
  for (int j = 0; j < kLaneDims; j++)
    if (j * kWarp + lane_of() < dim) out[j * kWarp + lane_of()] = from_float<Kv<kKv>>(mean[j]);
}

cudaError_t wave_describe(cudaStream_t stream, const WaveIndexArgs& args) {
  const auto planes = static_cast<unsigned>(args.count);
  const dim3 clusters(static_cast<unsigned>((args.most_clusters + kDescribeWarps - 1) / kDescribeWarps),
                      planes);
  cudaError_t error = launch(wave_lay_out_kernel, dim3(64, planes), kLayOutThreads, 0, stream, args);
  if (error == cudaSuccess)
    error = launch(WI_WAVE_BY_KV(wave_describe_kernel, args.kv), clusters, kDescribeWarps * kWarp,
                   sizeof(DescribeBlock), stream, args);
  if (error == cudaSuccess)
    error = launch(WI_WAVE_BY_KV(wave_axis_kernel, args.kv), clusters, kDescribeWarps * kWarp,
                   kDescribeWarps * sizeof(DescribeMemory), stream, args);
  if (error == cudaSuccess)
    error =
        launch(WI_WAVE_BY_KV(wave_value_kernel, args.kv), clusters, kDescribeWarps * kWarp, 0, stream, args);
  return error;
}

}  // namespace wi::cuda
