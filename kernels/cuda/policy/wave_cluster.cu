// Spherical k-means of segments' keys (RetroInfer §4.2, segmented clustering), many planes at a time. Nearly all of its
// products are the assignment: keys times centroids in 8 bits by tensor cores, whose scores never leave the
// registers, since all that is kept is each key's best centroid. Means are taken over the exact keys, which are
// gathered through a stable counting sort of the assignment, so that every sum is in the order of tokens.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/policy/wave_rows.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

// The mean of all keys; a thread takes a dimension.
template <DType kKv>
__global__ void __launch_bounds__(kMostDim) wave_centre_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.x);
  const int at = static_cast<int>(threadIdx.x);
  if (at == 0) *build.state = {};
  if (at >= args.head_dim) return;
  const float share = 1.0f / static_cast<float>(args.tokens);
  float centre = 0;
#pragma unroll 8
  for (int32_t t = 0; t < args.tokens; t++)
    centre =
        __fadd_rn(centre, __fmul_rn(finite(to_float(row_of<kKv>(build.keys, t, args.head_dim)[at])), share));
  build.centre[at] = centre;
}

constexpr int kNumberThreads = 128;

// Keys minus their mean, scaled to length 1, as 8-bit numbers; a thread takes a key.
template <DType kKv>
__global__ void __launch_bounds__(kNumberThreads) wave_number_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  float* const centre = reinterpret_cast<float*>(block_memory());
  const int32_t dim = args.head_dim, words = wave_numbers(dim) / 4;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < dim; i += kNumberThreads)
    centre[i] = build.centre[i];
  __syncthreads();
  const int32_t t = static_cast<int32_t>(blockIdx.x * kNumberThreads + threadIdx.x);
  unsigned* const out = reinterpret_cast<unsigned*>(build.numbers) + int64_t{t} * words;
  if (t >= args.tokens) {  // up to whole tiles
    for (int32_t i = 0; i < words; i++) out[i] = 0;
    return;
  }
  const Kv<kKv>* const row = row_of<kKv>(build.keys, t, dim);
  const auto each = [&](auto&& use) {
#pragma unroll 1
    for (int32_t i = 0; i < dim; i += 8) {
      float numbers[8];
      load_finite(row + i, numbers);
#pragma unroll
      for (int j = 0; j < 8; j++) numbers[j] = __fsub_rn(numbers[j], centre[i + j]);
      use(i, numbers);
    }
  };
  float squares = 0;
  each([&](int32_t, const float(&numbers)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) squares = __fadd_rn(squares, __fmul_rn(numbers[j], numbers[j]));
  });
  const float inverse = squares > 1e-30f && squares <= kMostFloat ? 1 / sqrtf(squares) : 0;
  float largest = 0;
  each([&](int32_t, const float(&numbers)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(__fmul_rn(numbers[j], inverse)));
  });
  const float most = static_cast<float>(wave_largest_number(args.centroids, dim));
  const float scale = largest > 0 ? most / largest : 0;
  each([&](int32_t i, const float(&numbers)[8]) {
    unsigned packed[2] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int number = __float2int_rn(__fmul_rn(__fmul_rn(numbers[j], inverse), scale));
      packed[j / 4] |= static_cast<unsigned>(number & 255) << (j % 4 * 8);
    }
    out[i / 4] = packed[0];
    out[i / 4 + 1] = packed[1];
  });
  for (int32_t i = dim / 4; i < words; i++) out[i] = 0;
  build.inverses[t] = inverse;
  build.assignment[t] = -1;
}

constexpr int kUpdateWarps = 8;

// Where centroids begin: keys that lie as far apart as there is room; and where they go: the sum of their members, in
// the order of tokens, scaled to length 1. One without members, or whose members cancel out, stays as it was. A warp
// takes a centroid.
template <DType kKv>
__global__ void __launch_bounds__(kUpdateWarps* kWarp) wave_update_kernel(WaveIndexArgs args, bool begin) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.y);
  if (build.state->settled) return;
  const int32_t dim = args.head_dim, c = static_cast<int32_t>(blockIdx.x) * kUpdateWarps + warp_of();
  if (c >= args.centroids) return;
  float* const centroid = build.centroids + int64_t{c} * dim;
  float sums[kLaneDims] = {}, centre[kLaneDims];
#pragma unroll
  for (int j = 0; j < kLaneDims; j++)
    centre[j] = j * kWarp + lane_of() < dim ? build.centre[j * kWarp + lane_of()] : 0;
  const auto inverse_of = [&](int32_t t) { return build.inverses[t]; };
  const auto add = [&](const Kv<kKv>(&numbers)[kLaneDims], float inverse) {
#pragma unroll
    for (int j = 0; j < kLaneDims; j++)
      sums[j] = __fadd_rn(sums[j], __fmul_rn(__fsub_rn(finite(to_float(numbers[j])), centre[j]), inverse));
  };
  float scale = 1;
  if (begin) {
    const auto t = static_cast<int32_t>(int64_t{c} * args.tokens / args.centroids);
    Kv<kKv> numbers[kLaneDims];
    load_of_lane(row_of<kKv>(build.keys, t, dim), dim, numbers);
    add(numbers, inverse_of(t));
  } else {
    const int32_t first = build.begins[c];
    each_row<kKv>(build.keys, build.members + first, build.begins[c + 1] - first, dim, inverse_of, add);
    float* const own = reinterpret_cast<float*>(block_memory()) + warp_of() * kMostDim;
#pragma unroll
    for (int j = 0; j < kLaneDims; j++) own[j * kWarp + lane_of()] = sums[j];
    __syncwarp();
    double squares = 0;
    for (int32_t i = 0; i < dim; i++) squares += static_cast<double>(own[i]) * static_cast<double>(own[i]);
    if (squares < 1e-12) return;
    scale = static_cast<float>(1 / sqrt(squares));
  }
#pragma unroll
  for (int j = 0; j < kLaneDims; j++) {
    const int i = j * kWarp + lane_of();
    if (i < dim) centroid[i] = __fmul_rn(sums[j], scale);
  }
}

constexpr int kPackThreads = 512;

// All centroids, rounded with one scale, so that a key's scores compare as integers.
__global__ void __launch_bounds__(kPackThreads) wave_pack_kernel(WaveIndexArgs args) {
  in_turn();
  const WaveBuild build = build_of(args, blockIdx.x);
  if (build.state->settled) return;
  const int32_t dim = args.head_dim, row = wave_numbers(dim), thread = static_cast<int32_t>(threadIdx.x);
  const int64_t count = int64_t{args.centroids} * dim;
  float largest = 0;
  for (int64_t i = thread; i < count; i += kPackThreads) largest = fmaxf(largest, fabsf(build.centroids[i]));
  largest = block_max(largest, reinterpret_cast<float*>(block_memory()));
  const float scale = largest > 0 ? 127 / largest : 0;
  const int32_t columns = (args.centroids + kAssignCentroids - 1) / kAssignCentroids * kAssignCentroids;
  for (int32_t c = warp_of(); c < columns; c += kPackThreads / kWarp)
    for (int32_t i = lane_of(); i < row; i += kWarp) {
      const bool is_one = c < args.centroids && i < dim;
      const float number = is_one ? __fmul_rn(build.centroids[int64_t{c} * dim + i], scale) : 0.0f;
      build.packed[int64_t{c} * row + i] = static_cast<int8_t>(__float2int_rn(number));
    }
}

constexpr int kAssignWarps = 8;
constexpr int kWarpKeys = kAssignKeys / kAssignWarps;
static_assert(kWarpKeys == 32);

// Each key's best centroid, the lowest of equals. A warp keeps its 32 keys in registers; centroids come by shared
// memory, the next ones while these are multiplied.
template <int kSteps>  // of 32 dimensions
__global__ void __launch_bounds__(kAssignWarps* kWarp, 2) wave_assign_kernel(WaveIndexArgs args) {
  in_turn();
  constexpr int kRow = kSteps * 32, kStride = padded_row(kRow), kBuffer = kAssignCentroids * kStride;
  static_assert(2 * kBuffer <= 48 << 10);
  const WaveBuild build = build_of(args, blockIdx.y);
  if (build.state->settled) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kAssignKeys + warp_of() * kWarpKeys;

  unsigned keys[2][kSteps][4];
#pragma unroll
  for (int tile = 0; tile < 2; tile++)
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int8_t* const at =
          build.numbers + int64_t{first + tile * 16 + lane_of() / 4} * kRow + step * 32 + lane_of() % 4 * 4;
      keys[tile][step][0] = *reinterpret_cast<const unsigned*>(at);
      keys[tile][step][1] = *reinterpret_cast<const unsigned*>(at + 8 * kRow);
      keys[tile][step][2] = *reinterpret_cast<const unsigned*>(at + 16);
      keys[tile][step][3] = *reinterpret_cast<const unsigned*>(at + 8 * kRow + 16);
    }

  const auto fetch = [&](int32_t chunk) {
    constexpr int kPieces = kRow / 16;
    std::byte* const to = block_memory() + chunk % 2 * kBuffer;
    const int8_t* const from = build.packed + int64_t{chunk} * kAssignCentroids * kRow;
    for (int i = thread; i < kAssignCentroids * kPieces; i += kAssignWarps * kWarp)
      copy_16_ahead(to + i / kPieces * kStride + i % kPieces * 16, from + i * 16);
  };
  int best[2][2], number[2][2];  // (tile, half): of rows lane / 4 and 8 further down
#pragma unroll
  for (int i = 0; i < 4; i++) best[i / 2][i % 2] = -0x7FFFFFFF, number[i / 2][i % 2] = 0;
  const int32_t chunks = (args.centroids + kAssignCentroids - 1) / kAssignCentroids;
  fetch(0);
  commit_copies();
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; chunk++) {
    if (chunk + 1 < chunks) fetch(chunk + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const std::byte* const from = block_memory() + chunk % 2 * kBuffer;
#pragma unroll 1
    for (int pair = 0; pair < kAssignCentroids / 16; pair++) {
      int sums[2][2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; step++) {
        unsigned right[4];
        load_matrices(right_row(from + pair * 16 * kStride + step * 32, kStride), right);
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
          multiply_add_bytes(sums[tile][0], keys[tile][step], right[0], right[1]);
          multiply_add_bytes(sums[tile][1], keys[tile][step], right[2], right[3]);
        }
      }
      // A lane meets its centroids in ascending order.
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int32_t c = chunk * kAssignCentroids + pair * 16 + i / 2 * 8 + lane_of() % 4 * 2 + i % 2;
#pragma unroll
        for (int row = 0; row < 4; row++) {
          const int score = sums[row / 2][i / 2][row % 2 * 2 + i % 2];
          if (c < args.centroids && score > best[row / 2][row % 2])
            best[row / 2][row % 2] = score, number[row / 2][row % 2] = c;
        }
      }
    }
    __syncthreads();
  }
  int moved = 0;
#pragma unroll
  for (int row = 0; row < 4; row++) {
    int score = best[row / 2][row % 2], winner = number[row / 2][row % 2];
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const int other = __shfl_xor_sync(kAllLanes, score, step),
                other_winner = __shfl_xor_sync(kAllLanes, winner, step);
      if (other > score || (other == score && other_winner < winner)) score = other, winner = other_winner;
    }
    const int32_t token = first + row * 8 + lane_of() / 4;
    if (lane_of() % 4 == 0 && token < args.tokens) {
      moved += build.assignment[token] != winner;
      build.assignment[token] = winner;
    }
  }
  moved = __reduce_add_sync(kAllLanes, moved);
  if (lane_of() == 0 && moved) atomicAdd(&build.state->moved, moved);
}

// Members by centroid, by position within one: a counting sort, each warp of the block with a share of the tokens.
__global__ void __launch_bounds__(kGroupWarps* kWarp) wave_group_kernel(WaveIndexArgs args) {
  in_turn();
  constexpr int kThreads = kGroupWarps * kWarp;
  const WaveBuild build = build_of(args, blockIdx.x);
  if (build.state->settled) return;
  int32_t* const warp_sums = reinterpret_cast<int32_t*>(block_memory());
  const int32_t thread = static_cast<int32_t>(threadIdx.x), all = args.centroids * kGroupWarps;
  for (int32_t i = thread; i < all; i += kThreads) build.counts[i] = 0;
  __syncthreads();
  const int32_t share = (args.tokens + kThreads - 1) / kThreads * kWarp;
  const int32_t first = warp_of() * share, end = min(first + share, args.tokens);
  // use(token, the count of its centroid and warp, its place among the lanes of the same, whether it is their first)
  const auto each = [&](auto&& use) {
    for (int32_t t = first; t < end; t += kWarp) {
      const int32_t token = t + lane_of(), c = token < end ? build.assignment[token] : -1;
      const unsigned same = __match_any_sync(kAllLanes, c);
      const int before = __popc(same & ((1u << lane_of()) - 1));
      use(token, c < 0 ? nullptr : build.counts + c * kGroupWarps + warp_of(), before, __popc(same));
    }
  };
  each([](int32_t, int32_t* count, int before, int same) {
    if (count && before == 0) *count += same;
    __syncwarp();
  });
  __syncthreads();
  int32_t running = 0;
  for (int32_t base = 0; base < all; base += kThreads) {
    const int32_t i = base + thread;
    int32_t total = 0;
    const int32_t at = running + block_running_sum(i < all ? build.counts[i] : 0, warp_sums, total);
    if (i < all) {
      build.counts[i] = at;
      if (i % kGroupWarps == 0) build.begins[i / kGroupWarps] = at;
    }
    running += total;
  }
  __syncthreads();
  each([&](int32_t token, int32_t* count, int before, int same) {
    const int32_t at = count ? *count + before : 0;
    __syncwarp();
    if (count && before == 0) *count += same;
    if (count) build.members[at] = token;
    __syncwarp();
  });
  if (thread == 0) {
    build.begins[args.centroids] = args.tokens;
    build.state->settled = build.state->moved == 0;
    build.state->moved = 0;
  }
}

static void (*assign_kernel(int32_t head_dim))(WaveIndexArgs) {
  switch (wave_numbers(head_dim) / 32) {
    case 1:
      return wave_assign_kernel<1>;
    case 2:
      return wave_assign_kernel<2>;
    case 3:
      return wave_assign_kernel<3>;
    case 4:
      return wave_assign_kernel<4>;
    case 5:
      return wave_assign_kernel<5>;
    case 6:
      return wave_assign_kernel<6>;
    case 7:
      return wave_assign_kernel<7>;
  }
  return wave_assign_kernel<8>;
}

cudaError_t wave_cluster(cudaStream_t stream, const WaveIndexArgs& args) {
  const auto planes = static_cast<unsigned>(args.count);
  const auto blocks = [](int32_t things, int32_t each) {
    return static_cast<unsigned>((things + each - 1) / each);
  };
  const dim3 keys(blocks(args.tokens, kAssignKeys), planes),
      centroids(blocks(args.centroids, kUpdateWarps), planes);
  const dim3 numbers(keys.x * (kAssignKeys / kNumberThreads), planes);
  const auto shared = static_cast<size_t>(2 * kAssignCentroids * padded_row(wave_numbers(args.head_dim)));
  cudaError_t error = launch(WI_WAVE_BY_KV(wave_centre_kernel, args.kv), planes, kMostDim, 0, stream, args);
  if (error == cudaSuccess)
    error = launch(WI_WAVE_BY_KV(wave_number_kernel, args.kv), numbers, kNumberThreads,
                   kMostDim * sizeof(float), stream, args);
  for (int32_t iteration = 0; iteration < args.iterations && error == cudaSuccess; iteration++) {
    error = launch(WI_WAVE_BY_KV(wave_update_kernel, args.kv), centroids, kUpdateWarps * kWarp,
                   kUpdateWarps * kMostDim * sizeof(float), stream, args, iteration == 0);
    if (error == cudaSuccess)
      error =
          launch(wave_pack_kernel, planes, kPackThreads, kPackThreads / kWarp * sizeof(float), stream, args);
    if (error == cudaSuccess)
      error = launch(assign_kernel(args.head_dim), keys, kAssignWarps * kWarp, shared, stream, args);
    if (error == cudaSuccess)
      error =
          launch(wave_group_kernel, planes, kGroupWarps * kWarp, kGroupWarps * sizeof(int32_t), stream, args);
  }
  return error;
}

}  // namespace wi::cuda
