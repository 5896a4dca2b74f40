// Products of few rows with weights as they are stored: bound by reading the weights, each once for up to 32 rows.
// Tensor cores multiply (matmul_decode.cuh), weights as their right operand, which lanes load from device memory into
// the registers where it is needed, rows as their left one. Up to eight rows go to matmul_decode_few.cu; what is here
// is for more, and gives each row the same bits.
//
// Rows are shared by more warps there, so that they are read and split up less often: of up to 16 rows a block has four
// of the inputs' slices of an output, of 32 two, of four times as many outputs as a warp has by itself, and the last of
// the blocks of an output adds up what they left.
//
// Limits: a block reads its slices of all rows, 4 bytes a number, from L2: for 32 rows half as many bytes as those
// of weights in f16, twice as many as of those of 4 bits. Of weights of 4 bits instructions take longer than reading.
#include "kernels/cuda/matmul_decode.cuh"

namespace wi::cuda {

constexpr int kMostRows = 32;    // of a launch
constexpr int kMostTiles = 256;  // of a launch whose blocks leave sums to each other

struct ProductArgs {
  const float* in;  // (rows, inputs)
  int rows, inputs;
  uint32_t first_tile;  // of each part
  MatmulPart parts[3];
  MatmulWorkspace workspace;
};

// A block's work: kSlices / kSplits slices of kOutputs outputs, a warp that of kTiles_ times 8 outputs of one.
template <DType kType, int kRows_, int kTiles_>
struct ProductShape {
  static constexpr int kRows = kRows_, kTiles = kTiles_;
  static constexpr int kSplits = kRows / 8, kOwn = kSlices / kSplits;
  static constexpr int kOutputs = kProductWarps / kOwn * kTiles * 8;
  // Where registers are left, weights of two steps are on their way.
  static constexpr int kAhead = kRows == 16 && !OperandOf<kType>::kQuantised ? 2 : 1;
  static constexpr int kPairs = kPairsOf<kType>;
  // A step's rows as left operands: of each slice, half, eight rows, pair and sixteen inputs a vector a lane. Behind
  // them the scales of each slice and row, and of each half the sums of its inputs. Twice, by turns.
  static constexpr int kScalesAt = kOwn * 2 * (kRows / 8) * kPairs * 2 * kWarp * 16;
  static constexpr int kBufferBytes = kScalesAt + 3 * kOwn * kRows * 4;
  // Sums of each slice and row, apart so that a warp's are in different banks.
  static constexpr int kSumStride = kOutputs + 8;
  static constexpr int kSumBytes = kOwn * kRows * kSumStride * 4;
  static constexpr size_t kShared = 2 * kBufferBytes > kSumBytes ? 2 * kBufferBytes : kSumBytes;
  static_assert(kOwn * kRows * 4 == kProductThreads && kShared <= kLeastShared);

  // Where a buffer has a slice's operands.
  __device__ __forceinline__ static int operand_at(int own, int half, int eight) {
    return (((own * 2 + half) * (kRows / 8) + eight) * kPairs * 2 * kWarp + lane_of()) * 16;
  }
};

// A thread's share of the rows: of one slice's steps and one row.
template <DType kType, class Shape>
struct SharedRow {
  __device__ SharedRow(const ProductArgs& args)
      : own(static_cast<int>(threadIdx.x) / (4 * Shape::kRows)),
        row(static_cast<int>(threadIdx.x) / 4 % Shape::kRows),
        steps(args.inputs, static_cast<int>(blockIdx.z) * Shape::kOwn + own) {}

  __device__ __forceinline__ void load(const ProductArgs& args, int step) {
    share.load(args.in + int64_t{row} * args.inputs, steps.first + step, args.inputs,
               row < args.rows && step < steps.count);
  }
  __device__ __forceinline__ void split(std::byte* buffer) {
    share.split(buffer + Shape::operand_at(own, 0, row / 8), kWarp * 16,
                Shape::operand_at(0, 1, 0) - Shape::operand_at(0, 0, 0),
                reinterpret_cast<float*>(buffer + Shape::kScalesAt) + own * Shape::kRows + row,
                Shape::kOwn * Shape::kRows);
  }

 private:
  int own, row;
  StepsOfSlice steps;
  RowShare<kType> share;
};

// A warp's sums, of its outputs over its slice for all rows: a lane has of each eight rows by eight outputs those of
// row lane / 4 and outputs 2 · (lane % 4) and the next.
template <DType kType, class Shape>
struct WarpProducts {
  using Of = OperandOf<kType>;
  static constexpr int kEights = Shape::kRows / 8;

  __device__ WarpProducts(const ProductArgs& args, const MatmulPart& part, int64_t first_output)
      : own(warp_of() % Shape::kOwn),
        output(warp_of() / Shape::kOwn * Shape::kTiles * 8),
        inputs(args.inputs),
        steps(args.inputs, static_cast<int>(blockIdx.z) * Shape::kOwn + own) {
    const auto stride = static_cast<int64_t>(row_bytes(kType, inputs));
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++)  // outputs beyond the last are that one again: nobody stores them
      rows[i] = static_cast<const std::byte*>(part.weight.data) +
                min(first_output + output + i * 8 + lane_of() / 4, part.weight.rows - 1) * stride;
  }

  // kPlace: of a step among those on their way, step % kAhead. Beyond the slice's last step that one again, which is
  // at hand.
  template <int kPlace>
  __device__ __forceinline__ void load(int step, int half) {
    const int own_step = steps.first + max(min(step, steps.count - 1), 0);
#pragma unroll
    for (int i = 0; i < Shape::kTiles; i++) weights[kPlace][i].load(rows[i], own_step, half, inputs);
  }

  // A later step's weights are on their way as soon as those in their place are unpacked, or, where they are the
  // operand themselves, multiplied.
  template <int kPlace>
  __device__ __forceinline__ void multiply(const std::byte* buffer, int step) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      unsigned pairs[Shape::kTiles][4];
      Factors<kType> factors[Shape::kTiles];
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; tile++) {
        weights[kPlace][tile].unpack(steps.first + step, half, pairs[tile]);
        factors[tile].load(weights[kPlace][tile], steps.first + step, half);
      }
      if constexpr (Of::kQuantised) load<kPlace>(step + Shape::kAhead, half);
#pragma unroll
      for (int eight = 0; eight < kEights; eight++) multiply_eight(buffer, half, eight, pairs, factors);
      if constexpr (!Of::kQuantised) load<kPlace>(step + Shape::kAhead, half);
    }
  }

 private:
  __device__ __forceinline__ void multiply_eight(const std::byte* buffer, int half, int eight,
                                                 const unsigned (&pairs)[Shape::kTiles][4],
                                                 const Factors<kType> (&factors)[Shape::kTiles]) {
    LeftOperands<kType> left;
    left.load(buffer + Shape::operand_at(own, half, eight), kWarp * 16,
              reinterpret_cast<const float*>(buffer + Shape::kScalesAt) + own * Shape::kRows + eight * 8 +
                  lane_of() / 4,
              half, Shape::kOwn * Shape::kRows);
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile++)
      add_products(left, pairs[tile], factors[tile], sums[tile][eight]);
  }

 public:
  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile++)
#pragma unroll
      for (int eight = 0; eight < kEights; eight++)
        *reinterpret_cast<float2*>(to + (own * Shape::kRows + eight * 8 + lane_of() / 4) * Shape::kSumStride +
                                   output + tile * 8 + lane_of() % 4 * 2) =
            make_float2(sums[tile][eight][0], sums[tile][eight][1]);
  }

  int own, output, inputs;  // the slice of the block's, the first output of the block's
  StepsOfSlice steps;
  const std::byte* rows[Shape::kTiles];
  LaneWeights<kType> weights[Shape::kAhead][Shape::kTiles];
  float sums[Shape::kTiles][kEights][2] = {};
};

// Whether the block is the last of those of its outputs, which then sees what the others left.
__device__ __forceinline__ bool last_of(uint32_t* arrived, int count, int* scratch) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *scratch = atomicAdd(arrived, 1u) == static_cast<uint32_t>(count) - 1;
    if (*scratch) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return *scratch != 0;
}

template <class Shape>
__device__ __forceinline__ void add_up(const ProductArgs& args, const MatmulPart& part, int64_t first_output,
                                       const float* sums, int* scratch) {
  constexpr int kOutputs = Shape::kOutputs;
  const int numbers = args.rows * kOutputs;
  const auto for_each = [&](auto&& use) {
    for (int at = static_cast<int>(threadIdx.x); at < numbers; at += kProductThreads) use(at);
  };
  const auto of_block = [&](int at) {
    return tree_sum<Shape::kOwn>([&](int own) {
      return sums[(own * Shape::kRows + at / kOutputs) * Shape::kSumStride + at % kOutputs];
    });
  };
  const auto store = [&](int at, float sum) {
    const int64_t output = first_output + at % kOutputs;
    if (output >= part.weight.rows) return;
    float* const out = part.out + int64_t{at / kOutputs} * part.weight.rows + output;
    const float with_bias = part.bias ? sum + part.bias[output] : sum;
    *out = part.accumulate ? *out + with_bias : with_bias;
  };
  constexpr int kLeft = Shape::kRows * kOutputs;
  const unsigned tile = blockIdx.y * gridDim.x + blockIdx.x;
  float* const left = args.workspace.partials + size_t{tile} * Shape::kSplits * kLeft;
  for_each([&](int at) { left[blockIdx.z * kLeft + at] = of_block(at); });
  if (!last_of(args.workspace.arrived + tile, Shape::kSplits, scratch)) return;
  for_each([&](int at) {
    store(at, tree_sum<Shape::kSplits>([&](int split) { return __ldcg(left + split * kLeft + at); }));
  });
}

template <DType kType, int kRows, int kTiles>
__global__ void __launch_bounds__(kProductThreads, 1) matmul_decode_kernel(ProductArgs args) {
  in_turn();
  using Shape = ProductShape<kType, kRows, kTiles>;
  __shared__ int scratch;
  std::byte* const memory = block_memory();
  const MatmulPart& part = args.parts[blockIdx.y];
  const int64_t first_output = (int64_t{args.first_tile} + blockIdx.x) * Shape::kOutputs;
  if (first_output >= part.weight.rows) return;

  WarpProducts<kType, Shape> products(args, part, first_output);
  SharedRow<kType, Shape> share(args);
  share.load(args, 0);
  products.template load<0>(0, 0);
  products.template load<0>(0, 1);
  if constexpr (Shape::kAhead == 2) {
    products.template load<1>(1, 0);
    products.template load<1>(1, 1);
  }
  const auto multiply_step = [&]<int kPlace>(int step) {
    std::byte* const buffer = memory + step % 2 * Shape::kBufferBytes;
    share.split(buffer);
    share.load(args, step + 1);
    __syncthreads();
    if (step < products.steps.count) products.template multiply<kPlace>(buffer, step);
  };
  const int steps = (steps_of(args.inputs) + kSlices - 1) / kSlices;  // of the longest slice
#pragma unroll 1
  for (int step = 0; step < steps; step += Shape::kAhead) {
    multiply_step.template operator()<0>(step);
    if constexpr (Shape::kAhead == 2)
      if (step + 1 < steps) multiply_step.template operator()<1>(step + 1);
  }
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(memory);
  products.store(sums);
  __syncthreads();
  add_up<Shape>(args, part, first_output, sums, &scratch);
}

template <DType kType, int kRows, int kTiles>
cudaError_t multiply(cudaStream_t stream, ProductArgs args, int parts) {
  using Shape = ProductShape<kType, kRows, kTiles>;
  int64_t most = 0;
  for (int p = 0; p < parts; p++) most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const int64_t tiles = tiles_of(most, Shape::kOutputs), at_once = kMostTiles * (kMostRows / kRows) / parts;
  cudaError_t error = cudaSuccess;
  for (int64_t first = 0; first < tiles && error == cudaSuccess; first += at_once) {
    args.first_tile = static_cast<uint32_t>(first);
    const dim3 grid(static_cast<unsigned>(tiles - first < at_once ? tiles - first : at_once),
                    static_cast<unsigned>(parts), Shape::kSplits);
    error = launch(matmul_decode_kernel<kType, kRows, kTiles>, grid, kProductThreads, Shape::kShared, stream,
                   args);
  }
  return error;
}

template <DType kType>
cudaError_t multiply_rows(cudaStream_t stream, const ProductArgs& args, int parts) {
  if constexpr (kType == DType::f32)
    return cudaErrorInvalidValue;
  else
    return args.rows > 16 ? multiply<kType, 32, 4>(stream, args, parts)
                          : multiply<kType, 16, 4>(stream, args, parts);
}

// Weights of one type.
static cudaError_t multiply_alike(cudaStream_t stream, const MatmulArgs& args,
                                  const MatmulWorkspace& workspace) {
  const int64_t inputs = args.parts[0].weight.cols;
  for (int64_t row = 0; row < args.rows; row += kMostRows) {
    const int64_t rows = args.rows - row < kMostRows ? args.rows - row : kMostRows;
    MatmulArgs some = {args.in + row * inputs, rows, {}, args.part_count};
    for (int p = 0; p < args.part_count; p++) {
      some.parts[p] = args.parts[p];
      some.parts[p].out += row * args.parts[p].weight.rows;
    }
    cudaError_t error = cudaSuccess;
    if (rows <= kFewRows) {
      error = matmul_decode_few(stream, some, workspace.processors);
    } else {
      ProductArgs own = {some.in, static_cast<int>(rows), static_cast<int>(inputs), 0, {}, workspace};
      for (int p = 0; p < args.part_count; p++) own.parts[p] = some.parts[p];
      error = with_weights(args.parts[0].weight.type,
                           [&]<DType kType>() { return multiply_rows<kType>(stream, own, args.part_count); });
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Most that a launch leaves: of kMostRows by the outputs of a block.
constexpr int64_t kLeftOfTile =
    int64_t{kMostRows / 8} * kMostRows * ProductShape<DType::f16, kMostRows, 4>::kOutputs;

MatmulWorkspaceSize matmul_workspace(const MatmulArgs& args) {
  if (args.rows <= kFewRows) return {0, 0};
  using Least = ProductShape<DType::f16, 16, 4>;  // leaves less, but of more tiles
  using Most = ProductShape<DType::f16, kMostRows, 4>;
  int64_t most = 0;
  for (int p = 0; p < args.part_count; p++)
    most = args.parts[p].weight.rows > most ? args.parts[p].weight.rows : most;
  const auto at_most = [&](int outputs, int64_t limit) {
    const int64_t tiles = args.part_count * tiles_of(most, outputs);
    return static_cast<size_t>(tiles < limit ? tiles : limit);
  };
  return {at_most(Most::kOutputs, kMostTiles) * static_cast<size_t>(kLeftOfTile),
          at_most(Least::kOutputs, kMostTiles * (kMostRows / Least::kRows))};
}

cudaError_t matmul_decode(cudaStream_t stream, const MatmulArgs& args, const MatmulWorkspace& workspace) {
  for (int p = 0; p < args.part_count; p++)
    if (args.parts[p].weight.cols % 8 || !reads_weights(args.parts[p].weight.type))
      return cudaErrorInvalidValue;
  for (int p = 0; p < args.part_count;) {
    // Neighbours of one type go together.
    const DType type = args.parts[p].weight.type;
    MatmulArgs some = {args.in, args.rows, {}, 0};
    for (; p < args.part_count && args.parts[p].weight.type == type; p++)
      some.parts[some.part_count++] = args.parts[p];
    const cudaError_t error =
        type == DType::f32 ? matmul_decode_f32(stream, some) : multiply_alike(stream, some, workspace);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wi::cuda
