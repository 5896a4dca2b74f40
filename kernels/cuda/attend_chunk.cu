// Exact causal attention of a prompt's chunk over all tokens before it and itself, or over a window of them:
// softmax(q·k/√d)·v in one pass with an online softmax (FlashAttention-2). A block takes one KV head and a tile
// of query rows, the group's heads stacked, and walks the keys that they see in tiles: those that see most are
// launched first. Keys that come in parts fall on the same borders as in one call, and what is between two
// calls is written as it is, so that nothing is summed in another order.
//
// f16 and bf16 are multiplied as they are by tensor cores (Precision::fast and int8), queries and weights
// rounded to the type, with sums in f32; a warp has its rows' scores and sums in registers. Otherwise all is in
// f32, by CUDA cores. While scores are computed, the tile's values are on their way to shared memory, and
// while values are weighed, the next tile's keys.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_cores.cuh"

namespace wi::cuda {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
constexpr float kHidden = -INFINITY;  // a score's: its weight is 0

// What a block works on: stacked rows [first, first + rows) of a KV head, each a query head at a position. Of
// the part's tokens, row r sees those below sees(r), and with a window those from hides(r) on.
struct ChunkTile {
  __device__ ChunkTile(const AttendChunkArgs& args, int most_rows, int32_t tokens)
      : group(args.group), window(args.window), tokens(tokens) {
    const int number = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    head = number % args.kv_heads;
    first = number / args.kv_heads * most_rows;
    rows = min(static_cast<int>(args.rows) * group - first, most_rows);
    before = tokens + args.keys_after - args.rows;
    end = sees(rows - 1);
    begin = min(hides(0), end);
  }
  __device__ int32_t sees(int row) const {
    const int64_t all = before + (first + row) / group + 1;
    return static_cast<int32_t>(max(min(all, int64_t{tokens}), int64_t{0}));
  }
  __device__ int32_t hides(int row) const {
    return window ? static_cast<int32_t>(max(before + (first + row) / group + 1 - window, int64_t{0})) : 0;
  }
  // Whether all rows see all of tokens [from, to).
  __device__ bool whole(int32_t from, int32_t to) const { return to <= sees(0) && from >= hides(rows - 1); }
  // Of the row, among (rows, query_heads).
  __device__ int64_t query_head(const AttendChunkArgs& args, int row) const {
    const int stacked = first + row;
    return (int64_t{stacked / group} * args.kv_heads + head) * group + stacked % group;
  }

  int32_t group, window, tokens, head, first, rows;
  int64_t before;      // of the whole, tokens before the chunk; less those before the part
  int32_t begin, end;  // of the part's tokens, those that some row sees
};

// Tokens of a KV head's runs: the same number to all threads.
template <int kThreads>
__device__ __forceinline__ int32_t count_tokens(const KvRun* runs, int32_t count, int32_t* sums) {
  int32_t tokens = 0;
  for (int32_t run = static_cast<int32_t>(threadIdx.x); run < count; run += kThreads)
    tokens += static_cast<int32_t>(runs[run].tokens);
  tokens = __reduce_add_sync(kAllLanes, tokens);
  if (lane_of() == 0) sums[warp_of()] = tokens;
  __syncthreads();
  tokens = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; warp++) tokens += sums[warp];
  return tokens;
}

// The rows of keys and values of tiles of kTokens tokens, on their way to shared memory: a warp brings kOwn of
// them, and its lanes know where each lies. Tokens beyond the last are that one again: they have no weight,
// but must be numbers.
template <DType kKv, int kDim, int kTokens, int kThreads>
class TokenTiles {
 public:
  static constexpr int kStride = padded_row(kDim * static_cast<int>(sizeof(Kv<kKv>)));
  static constexpr int kBytes = kTokens * kStride;

  __device__ TokenTiles(const KvRun* runs, int head_dim, int32_t end)
      : run_(runs), vectors_(head_dim * static_cast<int>(sizeof(Kv<kKv>)) / 16), end_(end) {}

  // The tile from a token on; later ones only.
  __device__ void find(int32_t first) {
    const int32_t token = min(first + warp_of() * kOwn + lane_of() % kOwn, end_ - 1);
    while (token >= run_begin_ + static_cast<int32_t>(run_->tokens)) {
      run_begin_ += static_cast<int32_t>(run_->tokens);
      run_++;
    }
    const int64_t offset = int64_t{token - run_begin_} * vectors_ * 16;
    keys_ = static_cast<const std::byte*>(run_->keys) + offset;
    values_ = static_cast<const std::byte*>(run_->values) + offset;
  }
  __device__ void ask_keys(std::byte* tile) const { ask(keys_, tile); }
  __device__ void ask_values(std::byte* tile) const { ask(values_, tile); }

  // What lies beyond head_dim in a tile's rows, which are kDim long.
  __device__ static void clear_rest(std::byte* tile, int head_dim) {
    constexpr int kVectors = kStride / 16 - 1;
    const int vectors = head_dim * static_cast<int>(sizeof(Kv<kKv>)) / 16, rest = kVectors - vectors;
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * rest; i += kThreads)
      reinterpret_cast<uint4*>(tile + i / rest * kStride)[vectors + i % rest] = make_uint4(0, 0, 0, 0);
  }

 private:
  static constexpr int kOwn = kTokens / (kThreads / kWarp);

  __device__ void ask(const std::byte* row_of_lane, std::byte* tile) const {
    constexpr int kVectors = kStride / 16 - 1;
    static_assert(kOwn * kVectors % kWarp == 0 && kWarp % kOwn == 0);
#pragma unroll
    for (int i = 0; i < kOwn * kVectors / kWarp; i++) {
      const int at = i * kWarp + lane_of();
      const int row = at / kVectors, vector = at % kVectors;
      const std::byte* from = reinterpret_cast<const std::byte*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(row_of_lane), row));
      if (vector < vectors_)
        copy_16_ahead(tile + (warp_of() * kOwn + row) * kStride + vector * 16, from + vector * 16);
    }
    commit_copies();
  }

  const KvRun* run_;
  const std::byte* keys_ = nullptr;  // of the lane's row
  const std::byte* values_ = nullptr;
  int32_t run_begin_ = 0;
  int vectors_;  // of a row
  int32_t end_;
};

// A row's running softmax: weights are 2^(score - reference), scores in units of log 2. What they are relative
// to lies kOffset below the highest score, so that weights in f16 are well above its smallest numbers.
template <int kOffset>
struct RunningSoftmax {
  // Before a tile of which `highest` is the highest score. Returns what all sums so far are to be multiplied by.
  __device__ float raise(float highest) {
    const float old = reference;
    reference = fmaxf(old, highest - kOffset);
    const float factor = exp2f(old - reference);
    sum *= factor;
    return factor;
  }
  __device__ float lse() const { return fmaf(reference, kLn2, logf(sum)); }

  float reference = kLowest, sum = 0;
};

// 2^x to 2^-22 of itself, 0 for what is not normal.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// ---- tensor cores

constexpr int kChunkThreads = 128;

template <DType kKv, int kDim>
struct TensorChunk {
  static constexpr int kSixteens = kDim <= 128 ? 2 : 1;  // of rows to a warp: its sums fit in registers
  static constexpr int kRows = kChunkThreads / kWarp * kSixteens * 16;
  static constexpr int kTokens = kDim == 128 ? 32 : 64;  // of a tile: so do its scores
  static_assert(kChunkKeyStep % kTokens == 0);
  // Below 8: where scores are so large that f32 has no such steps, what is taken off rounds to 8 at most, and
  // weights stay far below f16's 2^16. bf16 has f32's exponents.
  static constexpr int kOffset = kKv == DType::f16 ? 7 : 0;
  using Tiles = TokenTiles<kKv, kDim, kTokens, kChunkThreads>;
  static constexpr int kShared = kRows * Tiles::kStride + 2 * Tiles::kBytes;
  static constexpr int kBlocks = 2;  // to a multiprocessor: 255 registers a thread, and so much shared memory
  static_assert(kBlocks * (kShared + 2048) <= static_cast<int>(kSharedOfProcessor) &&
                kShared <= static_cast<int>(kLeastShared));
};

// Queries as the left operand: scaled, rounded, zeros where there are none.
template <DType kKv, int kDim, int kRows>
__device__ void load_queries(const AttendChunkArgs& args, const ChunkTile& tile, std::byte* queries) {
  constexpr int kStride = padded_row(kDim * 2);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * (kDim / 8); i += kChunkThreads) {
    const int row = i / (kDim / 8), at = i % (kDim / 8) * 8;
    float numbers[8] = {};
    if (row < tile.rows && at < args.head_dim)
      load_floats<8>(args.queries + tile.query_head(args, row) * args.head_dim + at, numbers);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      numbers[j] *= args.scale * kLog2E;
      if constexpr (kKv == DType::f16) numbers[j] = fminf(fmaxf(numbers[j], -65504.0f), 65504.0f);
    }
    *reinterpret_cast<uint4*>(queries + row * kStride + at * 2) = pack_eight<kKv>(numbers);
  }
}

// A warp's rows, in sixteens. Lane i has of each rows i / 4 and 8 further down: `which` 0 and 1.
template <DType kKv, int kDim>
struct WarpRows {
  using Chunk = TensorChunk<kKv, kDim>;
  using Tiles = typename Chunk::Tiles;
  static constexpr int kSixteens = Chunk::kSixteens, kTokens = Chunk::kTokens;
  static constexpr int kStride = Tiles::kStride;

  __device__ static int row(int sixteen, int which) {
    return (warp_of() * kSixteens + sixteen) * 16 + which * 8 + lane_of() / 4;
  }

  __device__ void score(const std::byte* queries, const std::byte* keys) {
#pragma unroll
    for (int s = 0; s < kSixteens; s++)
#pragma unroll
      for (int n = 0; n < kTokens / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[s][n][i] = 0;
#pragma unroll
    for (int k = 0; k < kDim / 16; k++) {
      unsigned left[kSixteens][4];
#pragma unroll
      for (int s = 0; s < kSixteens; s++)
        load_matrices(left_row(queries + (warp_of() * kSixteens + s) * 16 * kStride + k * 32, kStride),
                      left[s]);
#pragma unroll
      for (int n = 0; n < kTokens / 16; n++) {
        unsigned right[4];
        load_matrices(right_row(keys + n * 16 * kStride + k * 32, kStride), right);
#pragma unroll
        for (int s = 0; s < kSixteens; s++) {
          multiply_add<kKv>(scores[s][2 * n], left[s], right[0], right[1]);
          multiply_add<kKv>(scores[s][2 * n + 1], left[s], right[2], right[3]);
        }
      }
    }
  }

  __device__ void hide(const ChunkTile& tile, int32_t first) {
#pragma unroll
    for (int s = 0; s < kSixteens; s++)
#pragma unroll
      for (int which = 0; which < 2; which++) {
        const int own = min(row(s, which), tile.rows - 1);
        const int32_t from = tile.hides(own) - first, to = tile.sees(own) - first;
#pragma unroll
        for (int n = 0; n < kTokens / 8; n++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int token = n * 8 + lane_of() % 4 * 2 + i;
            if (token < from || token >= to) scores[s][n][which * 2 + i] = kHidden;
          }
      }
  }

  // Scores to weights.
  __device__ void weigh() {
#pragma unroll
    for (int s = 0; s < kSixteens; s++)
#pragma unroll
      for (int which = 0; which < 2; which++) {
        float highest = kLowest;
#pragma unroll
        for (int n = 0; n < kTokens / 8; n++)
          highest = fmaxf(highest, fmaxf(scores[s][n][which * 2], scores[s][n][which * 2 + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
        const float factor = softmax[s][which].raise(highest);
        const float reference = softmax[s][which].reference;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kTokens / 8; n++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float& score = scores[s][n][which * 2 + i];
            score = fast_exp2(score - reference);
            sum += score;
          }
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        softmax[s][which].sum += sum;
        if (!__any_sync(kAllLanes, factor != 1)) continue;  // most tiles raise nothing
#pragma unroll
        for (int n = 0; n < kDim / 8; n++) {
          out[s][n][which * 2] *= factor;
          out[s][n][which * 2 + 1] *= factor;
        }
      }
  }

  // What lanes hold of two products' sums is what they hold of a left operand of 16 inputs.
  __device__ void add_values(const std::byte* values) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; k++) {
      unsigned left[kSixteens][4];
#pragma unroll
      for (int s = 0; s < kSixteens; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          left[s][i] =
              pack_pair<kKv>(scores[s][2 * k + i / 2][i % 2 * 2], scores[s][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < kDim / 16; n++) {
        unsigned right[4];
        load_matrices_transposed(right_transposed_row(values + k * 16 * kStride + n * 32, kStride), right);
#pragma unroll
        for (int s = 0; s < kSixteens; s++) {
          multiply_add<kKv>(out[s][2 * n], left[s], right[0], right[1]);
          multiply_add<kKv>(out[s][2 * n + 1], left[s], right[2], right[3]);
        }
      }
    }
  }

  __device__ void load_state(const AttendChunkArgs& args, const ChunkTile& tile) {
    each_row(tile, [&](int s, int which, int own) {
      const int64_t from = tile.query_head(args, own);
      softmax[s][which].reference = args.state[2 * from];
      softmax[s][which].sum = args.state[2 * from + 1];
#pragma unroll
      for (int n = 0; n < kDim / 8; n++) {
        const int at = n * 8 + lane_of() % 4 * 2;
        if (at >= args.head_dim) continue;
        const float2 pair = *reinterpret_cast<const float2*>(args.out + from * args.head_dim + at);
        out[s][n][which * 2] = pair.x;
        out[s][n][which * 2 + 1] = pair.y;
      }
    });
  }

  __device__ void store(const AttendChunkArgs& args, const ChunkTile& tile) {
    const bool last = args.keys_after == 0;
    each_row(tile, [&](int s, int which, int own) {
      const int64_t to = tile.query_head(args, own);
      const float factor = last ? 1 / softmax[s][which].sum : 1.0f;
#pragma unroll
      for (int n = 0; n < kDim / 8; n++) {
        const int at = n * 8 + lane_of() % 4 * 2;
        if (at >= args.head_dim) continue;
        *reinterpret_cast<float2*>(args.out + to * args.head_dim + at) =
            make_float2(out[s][n][which * 2] * factor, out[s][n][which * 2 + 1] * factor);
      }
      if (lane_of() % 4 != 0) return;
      if (!last) {
        args.state[2 * to] = softmax[s][which].reference;
        args.state[2 * to + 1] = softmax[s][which].sum;
      } else if (args.lse) {
        args.lse[to] = softmax[s][which].lse();
      }
    });
  }

  template <class Body>
  __device__ void each_row(const ChunkTile& tile, Body&& body) const {
#pragma unroll
    for (int s = 0; s < kSixteens; s++)
#pragma unroll
      for (int which = 0; which < 2; which++)
        if (row(s, which) < tile.rows) body(s, which, row(s, which));
  }

  float out[kSixteens][kDim / 8][4] = {};  // not divided by the sum
  float scores[kSixteens][kTokens / 8][4];
  RunningSoftmax<Chunk::kOffset> softmax[kSixteens][2];
};

template <DType kKv, int kDim>
__global__ void __launch_bounds__(kChunkThreads, (TensorChunk<kKv, kDim>::kBlocks))
    attend_chunk_tensor_kernel(AttendChunkArgs args) {
  in_turn();
  using Chunk = TensorChunk<kKv, kDim>;
  using Tiles = typename Chunk::Tiles;
  std::byte* const queries = block_memory();
  std::byte* const keys = queries + Chunk::kRows * Tiles::kStride;
  std::byte* const values = keys + Tiles::kBytes;

  const int head = static_cast<int>(gridDim.x - 1 - blockIdx.x) % args.kv_heads;
  const KvRun* const runs = args.runs[head];
  int32_t* const counts = reinterpret_cast<int32_t*>(queries);  // of kLeastShared there is no byte to spare
  const ChunkTile tile(args, Chunk::kRows, count_tokens<kChunkThreads>(runs, args.run_count[head], counts));
  __syncthreads();  // queries are where the counts were
  if (tile.begin == tile.end && args.first_key > 0 && args.keys_after > 0)
    return;  // the state stays as it is
  load_queries<kKv, kDim, Chunk::kRows>(args, tile, queries);
  Tiles::clear_rest(keys, args.head_dim);
  Tiles::clear_rest(values, args.head_dim);

  WarpRows<kKv, kDim> rows;
  const bool works = rows.row(0, 0) - lane_of() / 4 < tile.rows;
  if (args.first_key > 0) rows.load_state(args, tile);
  Tiles tiles(runs, args.head_dim, tile.end);
  if (tile.begin < tile.end) {
    tiles.find(tile.begin);
    tiles.ask_keys(keys);
  }
  for (int32_t first = tile.begin; first < tile.end; first += Chunk::kTokens) {
    wait_for_copies<0>();
    __syncthreads();  // keys are there, and nobody needs the values before
    tiles.ask_values(values);
    if (works) rows.score(queries, keys);
    wait_for_copies<0>();
    __syncthreads();  // values are there, and nobody needs the keys
    if (first + Chunk::kTokens < tile.end) {
      tiles.find(first + Chunk::kTokens);
      tiles.ask_keys(keys);
    }
    if (!works) continue;
    if (!tile.whole(first, first + Chunk::kTokens)) rows.hide(tile, first);
    rows.weigh();
    rows.add_values(values);
  }
  rows.store(args, tile);
}

// ---- f32

constexpr int kWideThreads = 256, kWideTokens = 32;
static_assert(kChunkKeyStep % kWideTokens == 0);

// Fewer threads have fewer rows, for where shared memory does not hold more; a row's bits are the same.
template <DType kKv, int kDim, int kThreads>
struct WideChunk {
  using Tiles = TokenTiles<kKv, kDim, kWideTokens, kThreads>;
  static constexpr int kRows = kThreads / 4;
  static constexpr int kQueryStride = kDim + 4, kWeightStride = kWideTokens + 4;  // floats
  static constexpr int kShared =
      kRows * (kQueryStride + kWeightStride) * static_cast<int>(sizeof(float)) + 2 * Tiles::kBytes;
  static constexpr size_t kSharedInAll = kShared + 256;  // with what the kernel declares
  static constexpr int kBlocks = kDim <= 128 ? 2 : 1;
  static_assert(kBlocks * (kShared + 2048) <= static_cast<int>(kSharedOfProcessor));
};

template <class T>
__device__ __forceinline__ void load_four(const T* from, float (&out)[4]) {
  if constexpr (sizeof(T) == 4) {
    load_floats<4>(from, out);
  } else {
    union {
      uint2 words;
      T numbers[4];
    } loaded;
    loaded.words = *reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = to_float(loaded.numbers[i]);
  }
}

// Sixteen threads, half a warp, have four rows: of the scores each has every sixteenth token, of the values four
// dimensions in 64. Weights change hands through shared memory that is those threads' own.
template <DType kKv, int kDim, int kThreads>
__global__ void __launch_bounds__(kThreads, (WideChunk<kKv, kDim, kThreads>::kBlocks))
    attend_chunk_f32_kernel(AttendChunkArgs args) {
  in_turn();
  using Chunk = WideChunk<kKv, kDim, kThreads>;
  using Tiles = typename Chunk::Tiles;
  constexpr int kOwnTokens = kWideTokens / 16, kOwnFours = (kDim + 63) / 64;
  __shared__ int32_t counts[kThreads / kWarp];
  float* const queries = reinterpret_cast<float*>(block_memory());
  float* const weights = queries + Chunk::kRows * Chunk::kQueryStride;
  std::byte* const keys = reinterpret_cast<std::byte*>(weights + Chunk::kRows * Chunk::kWeightStride);
  std::byte* const values = keys + Tiles::kBytes;

  const int head = static_cast<int>(gridDim.x - 1 - blockIdx.x) % args.kv_heads, head_dim = args.head_dim;
  const KvRun* const runs = args.runs[head];
  const ChunkTile tile(args, Chunk::kRows, count_tokens<kThreads>(runs, args.run_count[head], counts));
  if (tile.begin == tile.end && args.first_key > 0 && args.keys_after > 0)
    return;  // the state stays as it is
  const int thread = static_cast<int>(threadIdx.x), own = thread / 16 * 4, part = thread % 16;
  for (int i = thread; i < Chunk::kRows * (head_dim / 4); i += kThreads) {
    const int row = i / (head_dim / 4), at = i % (head_dim / 4) * 4;
    float numbers[4] = {};
    if (row < tile.rows) load_floats<4>(args.queries + tile.query_head(args, row) * head_dim + at, numbers);
    const float factor = args.scale * kLog2E;
    *reinterpret_cast<float4*>(queries + row * Chunk::kQueryStride + at) =
        make_float4(numbers[0] * factor, numbers[1] * factor, numbers[2] * factor, numbers[3] * factor);
  }

  float out[4][kOwnFours][4] = {};
  RunningSoftmax<0> softmax[4];
  const auto each_row = [&](auto&& body) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (own + r >= tile.rows) continue;
      const int64_t at = tile.query_head(args, own + r);
      body(r, at);
    }
  };
  if (args.first_key > 0)
    each_row([&](int r, int64_t from) {
      softmax[r].reference = args.state[2 * from];
      softmax[r].sum = args.state[2 * from + 1];
#pragma unroll
      for (int four = 0; four < kOwnFours; four++) {
        const int at = four * 64 + part * 4;
        if (at < head_dim) load_floats<4>(args.out + from * head_dim + at, out[r][four]);
      }
    });

  Tiles tiles(runs, head_dim, tile.end);
  if (tile.begin < tile.end) {
    tiles.find(tile.begin);
    tiles.ask_keys(keys);
  }
  for (int32_t first = tile.begin; first < tile.end; first += kWideTokens) {
    wait_for_copies<0>();
    __syncthreads();  // keys are there, and nobody needs the values before
    tiles.ask_values(values);
    float scores[4][kOwnTokens] = {};
    for (int at = 0; at < head_dim; at += 8) {
      float query[4][8];
#pragma unroll
      for (int r = 0; r < 4; r++) load_floats<8>(queries + (own + r) * Chunk::kQueryStride + at, query[r]);
#pragma unroll
      for (int t = 0; t < kOwnTokens; t++) {
        float key[8];
        load_floats<8>(reinterpret_cast<const Kv<kKv>*>(keys + (t * 16 + part) * Tiles::kStride) + at, key);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
          for (int i = 0; i < 8; i++) scores[r][t] = fmaf(query[r][i], key[i], scores[r][t]);
      }
    }
    wait_for_copies<0>();
    __syncthreads();  // values are there, and nobody needs the keys
    if (first + kWideTokens < tile.end) {
      tiles.find(first + kWideTokens);
      tiles.ask_keys(keys);
    }

    const bool whole = tile.whole(first, first + kWideTokens);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (!whole) {
        const int row = min(own + r, tile.rows - 1);
        const int32_t from = tile.hides(row) - first, to = tile.sees(row) - first;
#pragma unroll
        for (int t = 0; t < kOwnTokens; t++)
          if (t * 16 + part < from || t * 16 + part >= to) scores[r][t] = kHidden;
      }
      float highest = kLowest, sum = 0;
#pragma unroll
      for (int t = 0; t < kOwnTokens; t++) highest = fmaxf(highest, scores[r][t]);
#pragma unroll
      for (int step = 8; step > 0; step /= 2)
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
      const float factor = softmax[r].raise(highest);
#pragma unroll
      for (int t = 0; t < kOwnTokens; t++) {
        const float weight = exp2f(scores[r][t] - softmax[r].reference);
        weights[(own + r) * Chunk::kWeightStride + t * 16 + part] = weight;
        sum += weight;
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      softmax[r].sum += sum;
#pragma unroll
      for (int four = 0; four < kOwnFours; four++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[r][four][i] *= factor;
    }
    __syncwarp();
#pragma unroll 2
    for (int t = 0; t < kWideTokens; t += 4) {
      float weight[4][4];
#pragma unroll
      for (int r = 0; r < 4; r++) load_floats<4>(weights + (own + r) * Chunk::kWeightStride + t, weight[r]);
#pragma unroll
      for (int u = 0; u < 4; u++)
#pragma unroll
        for (int four = 0; four < kOwnFours; four++) {
          const int at = four * 64 + part * 4;
          if (at >= head_dim) continue;
          float value[4];
          load_four(reinterpret_cast<const Kv<kKv>*>(values + (t + u) * Tiles::kStride) + at, value);
#pragma unroll
          for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[r][four][i] = fmaf(weight[r][u], value[i], out[r][four][i]);
        }
    }
  }

  const bool last = args.keys_after == 0;
  each_row([&](int r, int64_t to) {
    const float factor = last ? 1 / softmax[r].sum : 1.0f;
#pragma unroll
    for (int four = 0; four < kOwnFours; four++) {
      const int at = four * 64 + part * 4;
      if (at < head_dim)
        *reinterpret_cast<float4*>(args.out + to * head_dim + at) =
            make_float4(out[r][four][0] * factor, out[r][four][1] * factor, out[r][four][2] * factor,
                        out[r][four][3] * factor);
    }
    if (part != 0) return;
    if (!last) {
      args.state[2 * to] = softmax[r].reference;
      args.state[2 * to + 1] = softmax[r].sum;
    } else if (args.lse) {
      args.lse[to] = softmax[r].lse();
    }
  });
}

template <class Kernel>
cudaError_t launch_tiles(cudaStream_t stream, const AttendChunkArgs& args, Kernel* kernel, int rows,
                         int threads, int shared_bytes) {
  const int64_t tiles = (args.rows * args.group + rows - 1) / rows;
  return launch(kernel, static_cast<unsigned>(tiles * args.kv_heads), static_cast<unsigned>(threads),
                static_cast<size_t>(shared_bytes), stream, args);
}

template <DType kKv, int kDim>
cudaError_t launch_tensor(cudaStream_t stream, const AttendChunkArgs& args) {
  using Chunk = TensorChunk<kKv, kDim>;
  return launch_tiles(stream, args, attend_chunk_tensor_kernel<kKv, kDim>, Chunk::kRows, kChunkThreads,
                      Chunk::kShared);
}

template <DType kKv, int kDim, int kThreads>
cudaError_t launch_f32_threads(cudaStream_t stream, const AttendChunkArgs& args) {
  using Chunk = WideChunk<kKv, kDim, kThreads>;
  return launch_tiles(stream, args, attend_chunk_f32_kernel<kKv, kDim, kThreads>, Chunk::kRows, kThreads,
                      Chunk::kShared);
}

template <DType kKv, int kDim>
cudaError_t launch_f32(cudaStream_t stream, const AttendChunkArgs& args, size_t shared_bytes) {
  constexpr size_t kWanted = WideChunk<kKv, kDim, kWideThreads>::kSharedInAll;
  if constexpr (kWanted > kLeastShared) {
    constexpr int kFewThreads = kKv == DType::f32 ? kWideThreads / 4 : kWideThreads / 2;
    static_assert(WideChunk<kKv, kDim, kFewThreads>::kSharedInAll <= kLeastShared);
    if (kWanted > shared_bytes) return launch_f32_threads<kKv, kDim, kFewThreads>(stream, args);
  }
  return launch_f32_threads<kKv, kDim, kWideThreads>(stream, args);
}

template <DType kKv>
cudaError_t attend_chunk_of(cudaStream_t stream, const AttendChunkArgs& args, size_t shared_bytes) {
  const int dim = args.head_dim;
  if constexpr (kKv != DType::f32)
    if (args.precision == Precision::fast || args.precision == Precision::int8) {
      if (dim <= 64) return launch_tensor<kKv, 64>(stream, args);
      if (dim <= 96) return launch_tensor<kKv, 96>(stream, args);
      if (dim <= 128) return launch_tensor<kKv, 128>(stream, args);
      return launch_tensor<kKv, 256>(stream, args);
    }
  if (dim <= 64) return launch_f32<kKv, 64>(stream, args, shared_bytes);
  if (dim <= 128) return launch_f32<kKv, 128>(stream, args, shared_bytes);
  return launch_f32<kKv, 256>(stream, args, shared_bytes);
}

cudaError_t attend_chunk(cudaStream_t stream, const AttendChunkArgs& args, size_t shared_bytes) {
  constexpr int64_t kMostStacked = int64_t{1} << 30;
  const bool is_part = args.first_key > 0 || args.keys_after > 0;
  if (args.head_dim % 8 || args.head_dim < 8 || args.head_dim > 256 || args.group < 1 ||
      args.rows > kMostStacked / args.group || args.first_key % kChunkKeyStep ||
      (is_part && (!args.state || args.window)) || shared_bytes < kLeastShared)
    return cudaErrorInvalidValue;
  switch (args.kv) {
    case DType::f32:
      return attend_chunk_of<DType::f32>(stream, args, shared_bytes);
    case DType::f16:
      return attend_chunk_of<DType::f16>(stream, args, shared_bytes);
    case DType::bf16:
      return attend_chunk_of<DType::bf16>(stream, args, shared_bytes);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wi::cuda
