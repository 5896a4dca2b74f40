// Products of up to eight rows with weights as they are stored, by tensor cores (matmul_decode.cuh): bound by reading the
// weights. A block has all inputs of few outputs at a time, a warp one of the eight slices, and goes through as many
// tiles of outputs as its share is: while it ends one, weights of the next are on their way, so that a device reads
// without pause from a launch's first block to its last.
//
// Rows are split up once a block and kept in shared memory where they have room (one row of 14,336 inputs, three to
// five of 4,096); else a step at a time for each tile, by the warp that needs them. It changes no bit.
//
// Weights come to the lane that multiplies them, some steps ahead, to registers. Those whose blocks are no multiples of
// four bytes long would take a load for every two bytes between words: they come by way of a warp's own stages in
// shared memory, in pieces of 16 bytes.
#include "kernels/cuda/matmul_decode.cuh"

namespace wi::cuda {

struct FewArgs {
  const float* in;  // (rows, inputs)
  int rows, inputs;
  uint32_t tiles, tiles_before[3];  // of all parts, and of those before each
  MatmulPart parts[3];
};

template <DType kType_, int kTiles_, bool kKept_>
struct FewShape {
  static constexpr DType kType = kType_;
  static constexpr int kTiles = kTiles_, kOutputs = kTiles * 8;
  static constexpr bool kKept = kKept_;
  using Of = OperandOf<kType>;
  static constexpr bool kStaged = StagedWeights<kType>::kStepBytes > 0;
  // Steps whose weights are in registers or on their way there. More of few tiles, as registers allow (128 a thread).
  static constexpr int kAhead = kStaged || kTiles > 2 || kType == DType::q6_k ||
                                        (kType == DType::bf16 && !kKept)
                                    ? 1
                                    : 2;
  static constexpr int kPieces = StagedWeights<kType>::kPieces;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kOutputs * kPieces * 16;
  static constexpr int kSumStride = kOutputs + 8;  // so that a warp's sums are in different banks
};

// What is where in a block's memory. A row's step of inputs lies together, as left operands and behind them its scale and
// sums. Of kept rows a row has all its steps; else a warp has two of each row. Then the slices' sums of a tile, twice, by
// turns, and the warps' stages of weights.
template <class Shape>
struct FewMemory {
  static constexpr int kHalf = 2 * kPairsOf<Shape::kType> * 64;
  static constexpr int kStep = 2 * kHalf + 16;

  __host__ __device__ FewMemory(int of_rows, int inputs)
      : rows(Shape::kKept ? of_rows : kFewRows),
        // Rows one after the other are in the two halves of all banks.
        row_bytes(Shape::kKept ? (steps_of(inputs) * kStep + 127) / 128 * 128 + 64 : 2 * kStep + 32) {}

  // Of the first step, which is not the first of the row where rows are kept.
  __host__ __device__ int row_at(int warp, int row, int first_step) const {
    return (Shape::kKept ? row : warp * kFewRows + row) * row_bytes + (Shape::kKept ? first_step * kStep : 0);
  }
  __host__ __device__ int sums_at(int turn) const {
    return (Shape::kKept ? rows : kProductWarps * kFewRows) * row_bytes +
           turn * kSlices * rows * Shape::kSumStride * 4;
  }
  __host__ __device__ int stages_at(int warp) const {
    return sums_at(2) + (Shape::kStaged ? warp * Shape::kStages * Shape::kStageBytes : 0);
  }
  __host__ __device__ int bytes() const { return stages_at(kProductWarps); }

  int rows, row_bytes;
};

// The warp's number, which the compiler then knows to be the same in all its lanes.
__device__ __forceinline__ int same_warp_of() { return __shfl_sync(kAllLanes, warp_of(), 0); }

// What is computed once and used in a loop stays in a register, however cheap the compiler takes it for.
__device__ __forceinline__ void keep_in_register(int& number) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));
#else
  static_cast<void>(number);
#endif
}

// Outputs that a block has at a time.
template <class Shape>
struct FewTile {
  __device__ __forceinline__ FewTile(const FewArgs& args, uint32_t tile)
      : part(args.parts[(tile >= args.tiles_before[1]) + (tile >= args.tiles_before[2])]),
        first(int64_t{tile -
                      args.tiles_before[(tile >= args.tiles_before[1]) + (tile >= args.tiles_before[2])]} *
              Shape::kOutputs) {}
  // Outputs beyond the last are that one again: nobody stores them.
  __device__ __forceinline__ const std::byte* row(int output, int64_t stride) const {
    return static_cast<const std::byte*>(part.weight.data) +
           min(first + output, part.weight.rows - 1) * stride;
  }
  __device__ __forceinline__ const std::byte* end(int64_t stride) const {
    return static_cast<const std::byte*>(part.weight.data) + part.weight.rows * stride;
  }

  const MatmulPart& part;
  int64_t first;
};

// Steps of a warp's slice in the order in which it loads their weights, tile by tile: each has as many as the longest
// slice, and what is beyond the own one's last step is that one again, which is at hand; so is what is beyond the last
// tile.
struct StepOrder {
  __device__ __forceinline__ StepOrder(const FewArgs& args, const StepsOfSlice& own, int each_)
      : steps(own), each(each_), tiles(args.tiles), tile(blockIdx.x) {}
  // Whether the next step is another tile's.
  __device__ __forceinline__ bool next() {
    if (++step < each) return false;
    step = 0;
    if (tile + gridDim.x < tiles) {
      tile += gridDim.x;
      return true;
    }
    step = each - 1;
    return false;
  }
  __device__ __forceinline__ int own_step() const { return steps.first + max(min(step, steps.count - 1), 0); }

  StepsOfSlice steps;
  int each, step = 0;
  uint32_t tiles, tile;
};

// Weights of a warp's slice straight to registers.
template <class Shape>
struct WeightsOfWarp {
  static constexpr DType kType = Shape::kType;

  __device__ __forceinline__ WeightsOfWarp(const FewArgs& args, const StepOrder& from, std::byte*)
      : order(from), inputs(args.inputs) {
    aim(args);
    start<0>(args);
  }

  __device__ __forceinline__ void begin(const FewTile<Shape>&) {}
  __device__ __forceinline__ void arrive(const FewArgs&) {}
  template <int kPlace>
  __device__ __forceinline__ const LaneWeights<kType>& of(int tile, int, int) {
    return weights[kPlace][tile];
  }
  // To the place of what was multiplied: a half at a time, as soon as it is free.
  template <int kPlace>
  __device__ __forceinline__ void load(const FewArgs& args, int half) {
    const int step = order.own_step();
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++) weights[kPlace][i].load(rows[i], step, half, inputs);
    if (half == 1 && order.next()) aim(args);
  }

 private:
  __device__ __forceinline__ void aim(const FewArgs& args) {
    const auto stride = static_cast<int64_t>(row_bytes(kType, inputs));
    const FewTile<Shape> tile(args, order.tile);
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++) rows[i] = tile.row(i * 8 + lane_of() / 4, stride);
  }
  template <int kPlace>
  __device__ __forceinline__ void start(const FewArgs& args) {
    load<kPlace>(args, 0);
    load<kPlace>(args, 1);
    if constexpr (kPlace + 1 < Shape::kAhead) start<kPlace + 1>(args);
  }

  StepOrder order;
  int inputs;
  const std::byte* rows[Shape::kTiles];
  LaneWeights<kType> weights[Shape::kAhead][Shape::kTiles];
};

// The same by way of shared memory, a stage a step: of each output the pieces of 16 bytes in which its bytes are, which
// neighbouring lanes bring.
template <class Shape>
struct StagedWeightsOfWarp {
  static constexpr DType kType = Shape::kType;
  using Staged = StagedWeights<kType>;
  static constexpr int kEach = Shape::kOutputs * Shape::kPieces / kWarp;  // pieces a lane
  static_assert(kEach * kWarp == Shape::kOutputs * Shape::kPieces);

  __device__ __forceinline__ StagedWeightsOfWarp(const FewArgs& args, const StepOrder& from, std::byte* at)
      : order(from), stages(at), inputs(args.inputs), row_length(static_cast<int>(row_bytes(kType, inputs))) {
    aim(args);
    for (int i = 0; i + 1 < Shape::kStages; i++) load_stage(args);
  }

  __device__ __forceinline__ void begin(const FewTile<Shape>& tile) {
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++) {
      row_at[i] = static_cast<int>(low_bits_of(tile.row(i * 8 + lane_of() / 4, row_length)) & 15);
      keep_in_register(row_at[i]);
    }
  }
  // Waits for the next step's stage, and has a later one brought to the one that was read last, which the warp has done
  // with at its barrier here.
  __device__ __forceinline__ void arrive(const FewArgs& args) {
    wait_for_copies<Shape::kStages - 2>();
    __syncwarp();
    read = read + 1 == Shape::kStages ? 0 : read + 1;
    load_stage(args);
  }
  template <int>
  __device__ __forceinline__ const LaneWeights<kType>& of(int tile, int step, int half) {
    const int low = (row_at[tile] + step * Staged::kStepBytes) & 15;
    const int at = read * Shape::kStageBytes + own_at + tile * 8 * Shape::kPieces * 16 + low;
    weights[tile].load_staged(stages, at, step, half, inputs);
    return weights[tile];
  }
  template <int>
  __device__ __forceinline__ void load(const FewArgs&, int) {}

 private:
  __device__ __forceinline__ void aim(const FewArgs& args) {
    const FewTile<Shape> tile(args, order.tile);
#pragma unroll
    for (int i = 0; i < kEach; i++) rows[i] = tile.row((lane_of() + i * kWarp) / Shape::kPieces, row_length);
    end = tile.end(row_length);
    near_end = tile.first + Shape::kOutputs >= tile.part.weight.rows;
  }
  __device__ __forceinline__ void load_stage(const FewArgs& args) {
    const int first = order.own_step() * Staged::kStepBytes;
    const int length = min(Staged::kStepBytes, row_length - first);
    std::byte* const to = stages + write * Shape::kStageBytes + lane_of() * 16;
    const auto each_piece = [&](auto&& bring) {
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int piece = (lane_of() + i * kWarp) % Shape::kPieces * 16;
        const int low = static_cast<int>(low_bits_of(rows[i] + first) & 15);
        if (piece < low + length) bring(to + i * kWarp * 16, rows[i] + (first - low + piece));
      }
    };
    if (near_end)
      each_piece([&](std::byte* at, const std::byte* from) { bring_to_end(at, from); });
    else
      each_piece([&](std::byte* at, const std::byte* from) { copy_16_ahead(at, from); });
    commit_copies();
    write = write + 1 == Shape::kStages ? 0 : write + 1;
    if (order.next()) aim(args);
  }
  // Nothing beyond the weights' end.
  __device__ __forceinline__ void bring_to_end(std::byte* to, const std::byte* from) const {
    if (from + 16 <= end) {
      copy_16_ahead(to, from);
      return;
    }
#pragma unroll 1
    for (int i = 0; from + i < end; i += 2)
      *reinterpret_cast<unsigned short*>(to + i) = *reinterpret_cast<const unsigned short*>(from + i);
  }

  StepOrder order;
  std::byte* stages;
  int inputs, row_length, write = 0, read = Shape::kStages - 1;
  const std::byte* rows[kEach];
  const std::byte* end;
  bool near_end;                                     // of the weights, where a tile is that is brought
  int own_at = lane_of() / 4 * Shape::kPieces * 16;  // of the first of the lane's outputs, in a stage
  int row_at[Shape::kTiles];                         // low bits of the current tile's rows
  LaneWeights<kType> weights[Shape::kTiles];
};

// Rows of a warp's slice as left operands.
template <class Shape>
struct RowsOfWarp {
  static constexpr DType kType = Shape::kType;
  using Memory = FewMemory<Shape>;

  __device__ __forceinline__ RowsOfWarp(const FewArgs& args, const StepsOfSlice& own, int warp)
      : at(args.rows, args.inputs), steps(own) {
    // A lane's row is another one where there is none: nobody stores what that gives.
    own_at = at.row_at(warp, Shape::kKept ? min(lane_of() / 4, at.rows - 1) : lane_of() / 4, own.first);
    keep_in_register(own_at);
    if constexpr (Shape::kKept)
      keep(args);
    else
      load(args, 0);
  }

  // Where the lane's row has a step of the slice. Of rows that are not kept the next step is loaded then, after the last
  // the first again.
  __device__ __forceinline__ int split(const FewArgs& args, int step, int each) {
    if constexpr (Shape::kKept) {
      return own_at + step * Memory::kStep;
    } else {
      const int to = own_at + turn;
      turn = Memory::kStep - turn;
      split_to(to, true);
      load(args, step + 1 < each ? step + 1 : 0);
      return to;
    }
  }

  __device__ __forceinline__ LeftOperands<kType> operands(int from, int half) const {
    LeftOperands<kType> left;
    const std::byte* const own = block_memory() + from;
    left.load(own + half * Memory::kHalf + lane_of() % 4 * 16, 64,
              reinterpret_cast<const float*>(own + 2 * Memory::kHalf), half, 1);
    return left;
  }

  Memory at;

 private:
  __device__ __forceinline__ void load(const FewArgs& args, int step) {
    const int row = lane_of() / 4;
    share.load(args.in + int64_t{row} * args.inputs, steps.first + step, args.inputs,
               row < args.rows && step < steps.count);
  }
  __device__ __forceinline__ void split_to(int to, bool stores) {
    std::byte* const own = block_memory() + to;
    share.split(own + lane_of() % 4 * 16, 64, Memory::kHalf,
                reinterpret_cast<float*>(own + 2 * Memory::kHalf), 1, stores);
  }
  // All rows' steps, by all of the block's threads.
  __device__ __forceinline__ void keep(const FewArgs& args) {
    const int all = steps_of(args.inputs), parts = all * at.rows;
#pragma unroll 1
    for (int before = 0; before < parts; before += kProductThreads / 4) {
      const int own = before + static_cast<int>(threadIdx.x) / 4;
      const bool there = own < parts;
      const int part = there ? own : parts - 1, row = part / all, step = part % all;
      share.load(args.in + int64_t{row} * args.inputs, step, args.inputs, true);
      split_to(at.row_at(0, row, step), there);
    }
    __syncthreads();
  }

  StepsOfSlice steps;
  int own_at, turn = 0;
  RowShare<kType> share;
};

// The first weights that a warp loads to L2 while kernels before it still run: they are nobody's output.
template <class Shape>
__device__ __forceinline__ void fetch_weights_ahead(const FewArgs& args) {
  const auto stride = static_cast<int64_t>(row_bytes(Shape::kType, args.inputs));
  const FewTile<Shape> tile(args, blockIdx.x);
  const int64_t at = stride * warp_of() / kSlices + lane_of() % 2 * 128;
  if (at >= stride) return;
#pragma unroll
  for (int i = 0; i < Shape::kOutputs; i += 16) fetch_ahead(tile.row(i + lane_of() / 2, stride) + at);
}

template <class Shape>
__global__ void __launch_bounds__(kProductThreads, 2) matmul_decode_few_kernel(FewArgs args) {
  fetch_weights_ahead<Shape>(args);
  in_turn();
  constexpr DType kType = Shape::kType;
  constexpr int kTiles = Shape::kTiles, kOutputs = Shape::kOutputs;
  using Weights = std::conditional_t<Shape::kStaged, StagedWeightsOfWarp<Shape>, WeightsOfWarp<Shape>>;
  std::byte* const memory = block_memory();
  const int warp = same_warp_of();
  const StepsOfSlice slice(args.inputs, warp);
  const int longest = (steps_of(args.inputs) + kSlices - 1) / kSlices,
            each = (longest + Shape::kAhead - 1) / Shape::kAhead * Shape::kAhead;

  Weights weights(args, StepOrder(args, slice, each),
                  memory + FewMemory<Shape>(args.rows, args.inputs).stages_at(warp));
  RowsOfWarp<Shape> rows(args, slice, warp);

  int turn = 0;
  for (uint32_t number = blockIdx.x; number < args.tiles; number += gridDim.x) {
    const FewTile<Shape> tile(args, number);
    weights.begin(tile);
    float sums[kTiles][2] = {};
    const auto multiply_step = [&]<int kPlace>(int step) {
      const int from = rows.split(args, step, each);
      weights.arrive(args);
      if constexpr (!Shape::kKept && !Shape::kStaged) __syncwarp();  // a warp's rows are its own
      const bool there = step < slice.count;
      const int own_step = slice.first + min(step, max(slice.count - 1, 0));
#pragma unroll
      for (int half = 0; half < 2; half++) {
        unsigned pairs[kTiles][4];
        Factors<kType> factors[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; i++) {
          const LaneWeights<kType>& own = weights.template of<kPlace>(i, own_step, half);
          own.unpack(own_step, half, pairs[i]);
          factors[i].load(own, own_step, half);
        }
        if constexpr (Shape::Of::kQuantised) weights.template load<kPlace>(args, half);
        if (there) {
          const LeftOperands<kType> left = rows.operands(from, half);
#pragma unroll
          for (int i = 0; i < kTiles; i++) add_products(left, pairs[i], factors[i], sums[i]);
        }
        if constexpr (!Shape::Of::kQuantised) weights.template load<kPlace>(args, half);
      }
    };
#pragma unroll 1
    for (int step = 0; step < each; step += Shape::kAhead) {
      multiply_step.template operator()<0>(step);
      if constexpr (Shape::kAhead == 2) multiply_step.template operator()<1>(step + 1);
    }

    // A thread has one sum at most, and it is a different warp's turn with each tile.
    static_assert(kFewRows * kOutputs <= kProductThreads);
    const int thread = static_cast<int>(threadIdx.x + number / gridDim.x * kWarp) % kProductThreads;
    const int row = thread / kOutputs, output = thread % kOutputs;
    const bool stores = row < args.rows && tile.first + output < tile.part.weight.rows;
    float* const out = tile.part.out + int64_t{row} * tile.part.weight.rows + tile.first + output;
    float before = 0, bias = 0;
    if (stores && tile.part.bias) bias = tile.part.bias[tile.first + output];
    if (stores && tile.part.accumulate) before = *out;
    float* const all = reinterpret_cast<float*>(memory + rows.at.sums_at(turn));
    const int own_row = lane_of() / 4;
    if (own_row < args.rows) {
#pragma unroll
      for (int i = 0; i < kTiles; i++)
        *reinterpret_cast<float2*>(all + (warp * rows.at.rows + own_row) * Shape::kSumStride + i * 8 +
                                   lane_of() % 4 * 2) = make_float2(sums[i][0], sums[i][1]);
    }
    __syncthreads();
    turn ^= 1;  // what is read now is written again only after the next tile's barrier
    if (!stores) continue;
    const float sum = tree_sum<kSlices>(
        [&](int from) { return all[(from * rows.at.rows + row) * Shape::kSumStride + output]; });
    const float with_bias = tile.part.bias ? sum + bias : sum;
    *out = tile.part.accumulate ? before + with_bias : with_bias;
  }
}

template <class Shape>
static cudaError_t multiply(cudaStream_t stream, const MatmulArgs& args, int32_t processors) {
  FewArgs few = {
      args.in, static_cast<int>(args.rows), static_cast<int>(args.parts[0].weight.cols), 0, {~0u, ~0u, ~0u},
      {}};
  for (int p = 0; p < args.part_count; p++) {
    few.parts[p] = args.parts[p];
    few.tiles_before[p] = few.tiles;
    few.tiles += static_cast<uint32_t>(tiles_of(args.parts[p].weight.rows, Shape::kOutputs));
  }
  const uint32_t room = 2 * static_cast<uint32_t>(processors > 0 ? processors : 256);
  return launch(matmul_decode_few_kernel<Shape>, few.tiles < room ? few.tiles : room, kProductThreads,
                static_cast<size_t>(FewMemory<Shape>(few.rows, few.inputs).bytes()), stream, few);
}

cudaError_t matmul_decode_few(cudaStream_t stream, const MatmulArgs& args, int32_t processors) {
  const int rows = static_cast<int>(args.rows), inputs = static_cast<int>(args.parts[0].weight.cols);
  int64_t outputs = 0;
  for (int p = 0; p < args.part_count; p++) outputs += args.parts[p].weight.rows;
  if (args.rows > kFewRows) return cudaErrorInvalidValue;
  if (args.rows == 0 || outputs == 0) return cudaSuccess;
  return with_weights(args.parts[0].weight.type, [&]<DType kType>() {
    if constexpr (kType == DType::f32) {
      return cudaErrorInvalidValue;
    } else {
      using Kept = FewShape<kType, 2, true>;
      if (static_cast<size_t>(FewMemory<Kept>(rows, inputs).bytes()) <= kLeastShared)
        return multiply<Kept>(stream, args, processors);
      if constexpr (!OperandOf<kType>::kQuantised) {  // whose take more registers
        constexpr int64_t kWide = 12288;              // outputs: tiles of 32 are enough for all blocks
        if (outputs >= kWide) return multiply<FewShape<kType, 4, false>>(stream, args, processors);
      }
      return multiply<FewShape<kType, 2, false>>(stream, args, processors);
    }
  });
}

}  // namespace wi::cuda
