// Exact attention of lookups over keys and values of 16 bits, by tensor cores. Bound by reading keys and values, each
// once for all query heads of the group (up to 16), straight from where they lie to the registers that multiply
// them: no shared memory and no barrier comes between a warp and its tokens.
//
// A warp takes every fourth 16 tokens of its block's chunk and has a softmax of its own until the chunk ends. Keys
// are the left operand of the scores (16 tokens, 8 heads), values the left operand of the output (16 dimensions, 8
// heads): of both a lane loads 16 bytes of a row at a time, and which of an operand's numbers those are taken for
// does not matter as long as the other operand's are in the same order.
//
// Products are of f32's precision, though tensor cores take numbers of 16 bits: queries and weights are sums of two f16
// (22 bits; queries scaled by a power of two, weights by 2^14, so that the second is no subnormal that matters) or
// three bf16, each multiplied with the keys or values, which are exact.
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

constexpr int kSome = 16;          // tokens of a warp's step
constexpr int kTableTokens = 512;  // whose rows are looked up at a time
constexpr float kWeightBits = 14;  // a weight is at most 2^14 in f16

// Numbers of 16 bits that a number of f32 is taken apart into.
template <DType kKv>
constexpr int kTerms = kKv == DType::f16 ? 2 : 3;

template <DType kKv>
struct Pair {
  unsigned terms[kTerms<kKv>];
};
template <DType kKv>
__device__ __forceinline__ Pair<kKv> take_apart(float low, float high) {
  Pair<kKv> pair;
#pragma unroll
  for (int i = 0; i < kTerms<kKv>; i++) {
    pair.terms[i] = pack_pair<kKv>(low, high);
    union {
      unsigned word;
      Kv<kKv> numbers[2];
    } rounded = {pair.terms[i]};
    low -= to_float(rounded.numbers[0]);
    high -= to_float(rounded.numbers[1]);
  }
  return pair;
}

// The right operand of 16 dimensions for a lane, by term.
template <DType kKv>
struct alignas(8) QueryPiece {
  unsigned words[kTerms<kKv>][2];
};

// Of a block's heads.
template <int kHeads>
__device__ __forceinline__ int first_head_of() {
  return static_cast<int>(blockIdx.z) * kHeads;
}

template <DType kKv, int kBlocks, int kHeads>
struct TensorMemory {
  static constexpr int kDims = 64 * kBlocks, kSteps = 4 * kBlocks, kTiles = kHeads / kLeastHeads;
  QueryPiece<kKv> queries[kSteps][kTiles][kWarp];
  union {
    struct {
      RunWindow window;
      const std::byte* keys[kTableTokens];
      const std::byte* values[kTableTokens];
    } rows;                                  // while a chunk lasts
    float acc[kAttendWarps][kHeads][kDims];  // then each warp's
  };
  float unscaled[kHeads];  // what a product is worth of a score
  float maxima[kAttendWarps][kHeads], sums[kAttendWarps][kHeads];
  int32_t token_sums[kAttendWarps];
  // The lookup's, kept here: registers are for what is on its way.
  int32_t tokens, step, chunks;
  MergeMemory merge;
};

// A row's numbers from `dim` on; zeros beyond its last.
__device__ __forceinline__ uint4 eight_of(const std::byte* row, int dim, int head_dim) {
  if (dim < head_dim) return *reinterpret_cast<const uint4*>(row + dim * 2);
  return make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ unsigned word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Lane (g, c) = (lane / 4, lane % 4) has of head g what it multiplies its keys' eights with.
template <DType kKv, int kBlocks, int kHeads>
__device__ void pack_queries(const LookupArgs& args, const Lookup& lookup, int first_head, int heads,
                             TensorMemory<kKv, kBlocks, kHeads>& memory) {
  using Memory = TensorMemory<kKv, kBlocks, kHeads>;
  const int dim = args.head_dim;
  const float scale = args.scale * kLog2E;
  float* const scales =
      memory.maxima[0];  // by a power of two, to at most 2^10: f16's first term is none of infinity
  for (int h = warp_of(); h < kHeads; h += kAttendWarps) {
    float largest = 0;
    if (h < heads)
      for (int i = lane_of(); i < dim; i += kWarp)
        largest = fmaxf(largest, fabsf(lookup.query[(first_head + h) * dim + i] * scale));
    largest = warp_max(largest);
    int exponent = 0;
    if (kKv == DType::f16 && largest > 0 && largest < INFINITY)
      exponent = max(min(10 - (static_cast<int>(__float_as_uint(largest) >> 23) - 126), 100), -120);
    if (lane_of() == 0) {
      scales[h] = __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
      memory.unscaled[h] = __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Memory::kSteps * Memory::kTiles * kWarp;
       i += kAttendThreads) {
    const int lane = i % kWarp, tile = i / kWarp % Memory::kTiles, step = i / kWarp / Memory::kTiles;
    const int h = tile * kLeastHeads + lane / 4, at = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
    float numbers[4] = {};
    if (h < heads && at < dim) {
      const float* query = lookup.query + (first_head + h) * dim + at;
#pragma unroll
      for (int j = 0; j < 4; j++) numbers[j] = query[j] * scale * scales[h];
    }
    const Pair<kKv> first = take_apart<kKv>(numbers[0], numbers[1]),
                    second = take_apart<kKv>(numbers[2], numbers[3]);
#pragma unroll
    for (int term = 0; term < kTerms<kKv>; term++) {
      memory.queries[step][tile][lane].words[term][0] = first.terms[term];
      memory.queries[step][tile][lane].words[term][1] = second.terms[term];
    }
  }
  __syncthreads();
}

// A matrix of 8 x 8 numbers, two to a lane in order of rows: its transpose.
__device__ __forceinline__ unsigned transposed(unsigned own) {
  const int row = lane_of() / 4, pair = lane_of() % 4;  // of the result
  const unsigned first = __shfl_sync(kAllLanes, own, pair * 8 + row / 2),
                 second = __shfl_sync(kAllLanes, own, pair * 8 + 4 + row / 2);
  return row % 2 ? first >> 16 | (second & 0xFFFF0000u) : (first & 0xFFFFu) | second << 16;
}

// What a warp has of its tokens so far. A lane's columns are heads 2 · (lane % 4) and the next of each eight.
template <DType kKv, int kBlocks, int kHeads>
struct WarpSoftmax {
  static constexpr int kTiles = kHeads / kLeastHeads;
  float maxima[kTiles][2], sums[kTiles][2] = {};  // sums of the lane's own tokens
  float acc[kTiles][4 * kBlocks][4] = {};         // rows: dimensions, eight of a lane's block of 64

  __device__ WarpSoftmax() {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; i++) maxima[i / 2][i % 2] = kLowest;
  }

  // Scores of 16 tokens, of which the first `count` are there, to weights, the right operand of the values.
  __device__ __forceinline__ void weigh(int tile, float (&scores)[4], int count,
                                        unsigned (&weights)[kTerms<kKv>][2]) {
    const int token = lane_of() / 4;
    constexpr float kScale = kKv == DType::f16 ? kWeightBits : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (token + i / 2 * 8 >= count) scores[i] = kLowest;
    float highest[2] = {fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3])};
    bool higher = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2)
        highest[i] = fmaxf(highest[i], __shfl_xor_sync(kAllLanes, highest[i], step));
      higher = higher || highest[i] > maxima[tile][i];
    }
    if (__any_sync(kAllLanes, higher)) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float now = fmaxf(maxima[tile][i], highest[i]), factor = exp2f(maxima[tile][i] - now);
        maxima[tile][i] = now;
        sums[tile][i] *= factor;
#pragma unroll
        for (int m = 0; m < 4 * kBlocks; m++) {
          acc[tile][m][i] *= factor;
          acc[tile][m][i + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = exp2f(scores[i] - maxima[tile][i % 2] + kScale);
    sums[tile][0] += scores[0] + scores[2];
    sums[tile][1] += scores[1] + scores[3];
    const Pair<kKv> first = take_apart<kKv>(scores[0], scores[1]),
                    second = take_apart<kKv>(scores[2], scores[3]);
#pragma unroll
    for (int term = 0; term < kTerms<kKv>; term++) {
      weights[term][0] = transposed(first.terms[term]);
      weights[term][1] = transposed(second.terms[term]);
    }
  }
};

// Attends a chunk of a lookup with heads [first_head, first_head + heads) of its group, to its partial.
template <DType kKv, int kBlocks, int kHeads>
__device__ void attend_some(const AttendLaunch& launch, TensorMemory<kKv, kBlocks, kHeads>& memory,
                            int32_t chunk) {
  const LookupArgs& args = launch.args;
  const Lookup& lookup = args.lookups[blockIdx.y];
  using Memory = TensorMemory<kKv, kBlocks, kHeads>;
  constexpr int kTiles = Memory::kTiles;
  // Keys are on their way while values are multiplied, where registers allow it.
  constexpr bool kAhead = kBlocks < 4;
  const int dim = args.head_dim, group = lane_of() / 4, column = lane_of() % 4;
  WarpSoftmax<kKv, kBlocks, kHeads> softmax;
  uint4 keys[2][2 * kBlocks];  // of tokens lane / 4 and 8 further on: eight of every 32 dimensions

#pragma unroll 1
  for (int32_t done = 0; done < memory.step; done += kTableTokens) {
    const int32_t begin = chunk * memory.step + done, end = min(memory.tokens, (chunk + 1) * memory.step);
    if (begin >= end) break;
    // Looked for anew each time, which is rarely more than once.
    const int32_t count = TokenRows(lookup, memory.rows.window, dim * 2, begin, end)
                              .take(memory.rows.keys, memory.rows.values, kTableTokens);
    __syncthreads();
    const auto load_keys = [&](int32_t first) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const std::byte* row = memory.rows.keys[min(first + half * 8 + group, count - 1)];
#pragma unroll
        for (int block = 0; block < 2 * kBlocks; block++)
          keys[half][block] = eight_of(row, block * 32 + column * 8, dim);
      }
    };
    int32_t first = warp_of() * kSome;
    if (kAhead && first < count) load_keys(first);
#pragma unroll 1
    for (; first < count; first += kAttendWarps * kSome) {
      if (!kAhead) load_keys(first);
      // Of tokens 2 · (lane % 4), the next, and 8 further on: eight of every 64 dimensions.
      uint4 values[4][kBlocks];
      const auto load_values = [&] {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const std::byte* row = memory.rows.values[min(first + column * 2 + i % 2 + i / 2 * 8, count - 1)];
#pragma unroll
          for (int block = 0; block < kBlocks; block++)
            values[i][block] = eight_of(row, block * 64 + group * 8, dim);
        }
      };
      if (kAhead) load_values();

      // Of each term by itself: they are chains of products that wait for each other.
      float parts[kTerms<kKv>][kTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 4 * kBlocks; step++) {
        const int word = step % 2 * 2;
        const unsigned left[4] = {word_of(keys[0][step / 2], word), word_of(keys[1][step / 2], word),
                                  word_of(keys[0][step / 2], word + 1), word_of(keys[1][step / 2], word + 1)};
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++) {
          const QueryPiece<kKv> query = memory.queries[step][tile][lane_of()];
#pragma unroll
          for (int term = kTerms<kKv> - 1; term >= 0; term--)
            multiply_add<kKv>(parts[term][tile], left, query.words[term][0], query.words[term][1]);
        }
      }
      if (!kAhead) load_values();
      if (kAhead && first + kAttendWarps * kSome < count) load_keys(first + kAttendWarps * kSome);

#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        unsigned weights[kTerms<kKv>][2];
        const float* unscaled = memory.unscaled + tile * kLeastHeads + column * 2;
        float scores[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          scores[i] = parts[kTerms<kKv> - 1][tile][i];
#pragma unroll
          for (int term = kTerms<kKv> - 2; term >= 0; term--) scores[i] += parts[term][tile][i];
          scores[i] *= unscaled[i % 2];
        }
        softmax.weigh(tile, scores, count - first, weights);
#pragma unroll
        for (int m = 0; m < 4 * kBlocks; m++) {
          unsigned left[4];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const unsigned even = word_of(values[2 * i][m / 4], m % 4),
                           odd = word_of(values[2 * i + 1][m / 4], m % 4);
            left[2 * i] = (even & 0xFFFFu) | odd << 16;
            left[2 * i + 1] = even >> 16 | (odd & 0xFFFF0000u);
          }
#pragma unroll
          for (int term = kTerms<kKv> - 1; term >= 0; term--)
            multiply_add<kKv>(softmax.acc[tile][m], left, weights[term][0], weights[term][1]);
        }
      }
    }
    __syncthreads();  // nobody looks at these rows any more
  }

// Warps' results, in order.
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int h = tile * kLeastHeads + column * 2 + i;
      float sum = softmax.sums[tile][i];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (group == 0) {
        memory.maxima[warp_of()][h] = softmax.maxima[tile][i];
        memory.sums[warp_of()][h] = sum;
      }
#pragma unroll
      for (int m = 0; m < 4 * kBlocks; m++) {
        float* acc = memory.acc[warp_of()][h] + m / 4 * 64 + group * 8 + m % 4 * 2;
        acc[0] = softmax.acc[tile][m][i];
        acc[1] = softmax.acc[tile][m][i + 2];
      }
    }
  __syncthreads();
  constexpr float kScale = kKv == DType::f16 ? 0x1p-14f : 1.0f;  // of weights
  const int first_head = first_head_of<kHeads>(), heads = min(args.group - first_head, kHeads);
  float* const partial = partial_of(launch, static_cast<int>(blockIdx.y), chunk);
  for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kAttendThreads) {
    const int h = i / dim, at = i - h * dim;
    float highest = memory.maxima[0][h], sum = 0, acc = 0;
#pragma unroll
    for (int warp = 1; warp < kAttendWarps; warp++) highest = fmaxf(highest, memory.maxima[warp][h]);
#pragma unroll
    for (int warp = 0; warp < kAttendWarps; warp++) {
      const float factor = exp2f(memory.maxima[warp][h] - highest);
      acc = fmaf(memory.acc[warp][h][at], factor, acc);
      sum = fmaf(memory.sums[warp][h], factor, sum);
    }
    partial[(first_head + h) * dim + at] = acc * kScale;
    if (at != 0) continue;
    partial[args.group * dim + first_head + h] = highest;
    partial[args.group * dim + args.group + first_head + h] = sum * kScale;
  }
}

constexpr int blocks_at_a_time(int blocks, int heads) { return blocks * heads <= 16 ? 3 : 2; }

template <DType kKv, int kBlocks, int kHeads>
__global__ void __launch_bounds__(kAttendThreads, blocks_at_a_time(kBlocks, kHeads))
    attend_tensor_kernel(AttendLaunch launch) {
  in_turn();
  using Memory = TensorMemory<kKv, kBlocks, kHeads>;
  Memory& memory = *reinterpret_cast<Memory*>(block_memory());
  const LookupArgs& args = launch.args;
  const int number = static_cast<int>(blockIdx.y), first_head = first_head_of<kHeads>();
  const int heads = min(args.group - first_head, kHeads);
  const Lookup& lookup = args.lookups[number];
  {
    const int32_t tokens = tokens_of(lookup, memory.token_sums), step = chunk_tokens(tokens);
    const int32_t chunks = max((tokens + step - 1) / step, 1);
    if (static_cast<int32_t>(blockIdx.x) >= chunks) return;
    count_attended(lookup, tokens);
    if (threadIdx.x == 0) {
      memory.tokens = tokens;
      memory.step = step;
      memory.chunks = chunks;
    }
  }
  pack_queries(args, lookup, first_head, heads, memory);
#pragma unroll 1
  for (int32_t chunk = static_cast<int32_t>(blockIdx.x); chunk < memory.chunks;
       chunk += static_cast<int32_t>(gridDim.x)) {
    attend_some(launch, memory, chunk);
    chunk_is_done(launch, lookup, number, chunk, memory.chunks, first_head, heads, memory.merge);
  }
}

template <DType kKv, int kBlocks, int kHeads>
cudaError_t launch_tensor(cudaStream_t stream, const AttendLaunch& given) {
  constexpr size_t kShared = sizeof(TensorMemory<kKv, kBlocks, kHeads>);
  static_assert(kShared <= kLeastShared);
  static_assert(blocks_at_a_time(kBlocks, kHeads) * (kShared + kSharedOfBlock) <= kSharedOfProcessor);
  const dim3 grid(static_cast<unsigned>(given.workspace.blocks), static_cast<unsigned>(given.args.count),
                  static_cast<unsigned>((given.args.group + kHeads - 1) / kHeads));
  return launch(attend_tensor_kernel<kKv, kBlocks, kHeads>, grid, kAttendThreads, kShared, stream, given);
}

// Calls use.operator()<blocks of 64 dimensions, heads>() with those of the kernel that lookups take.
template <class Use>
auto with_shape(const LookupArgs& args, Use&& use) {
  if (args.head_dim > 128)
    return use.template operator()<4, kLeastHeads>();  // more have no room in registers
  if (args.head_dim > 64)
    return args.group <= 8 ? use.template operator()<2, 8>() : use.template operator()<2, 16>();
  return args.group <= 8 ? use.template operator()<1, 8>() : use.template operator()<1, 16>();
}

int attend_tensor_blocks(const LookupArgs& args) {
  return with_shape(args, [&]<int kBlocks, int kHeads>() { return blocks_at_a_time(kBlocks, kHeads); });
}

cudaError_t attend_tensor(cudaStream_t stream, const AttendLaunch& given) {
  return with_shape(given.args, [&]<int kBlocks, int kHeads>() {
    return given.args.kv == DType::f16 ? launch_tensor<DType::f16, kBlocks, kHeads>(stream, given)
                                       : launch_tensor<DType::bf16, kBlocks, kHeads>(stream, given);
  });
}

}  // namespace wi::cuda
